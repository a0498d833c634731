"""Cells of an experiment, such as a probe of a model, and what is stored of each."""

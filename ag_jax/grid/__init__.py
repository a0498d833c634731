"""Experiments as grids of cells, such as a probe of a model: what is computed, stored, resumed and shared."""

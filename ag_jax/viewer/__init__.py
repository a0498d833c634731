"""Attention maps of all heads of a model, as one interactive web page."""

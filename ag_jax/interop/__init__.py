"""Weights of other libraries, in and out: one name table for each family, used in both directions."""

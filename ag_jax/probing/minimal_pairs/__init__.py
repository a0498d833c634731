"""Minimal pairs: how often a model finds the grammatical one of two sentences more probable."""

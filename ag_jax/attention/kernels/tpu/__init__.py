"""Attention for TPUs, in Pallas."""

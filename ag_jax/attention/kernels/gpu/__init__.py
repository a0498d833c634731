"""Attention for NVIDIA GPUs, in Pallas."""

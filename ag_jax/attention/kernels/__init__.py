"""Guided attention by implementation: the plain one, and kernels for TPUs and GPUs that never write a matrix."""

"""Implementations of guided attention: a plain reference, and TPU and GPU kernels that store no attention matrix."""

"""Optimizer, sharding, the pure train step, checkpoints and the loop around them."""

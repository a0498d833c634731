"""Training loop, train step, optimizer, sharding, metrics and checkpoints."""

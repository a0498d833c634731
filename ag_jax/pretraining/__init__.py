"""Pre-training: a run from its config to its report."""

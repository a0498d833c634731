"""Pre-training: the config of a run, its model and objective, its text, training, comparisons and their report."""

"""Grid search of settings for pre-training: each arm has a grid, whose points are trained as runs with every seed."""

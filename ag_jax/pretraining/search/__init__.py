"""Search of settings: a grid of points for each arm, each point a pre-training run in a directory of its own."""

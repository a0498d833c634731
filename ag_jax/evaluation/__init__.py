"""Judging a trained model: losses on held-out text, spread over seeds, significance."""

"""Evaluation on downstream tasks: predictions, metrics, spread over seeds, and significance."""

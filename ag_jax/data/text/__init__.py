"""Text for pre-training: from files to batches of masked sequences."""

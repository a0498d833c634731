"""Text for pre-training: from files to batches."""

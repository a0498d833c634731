"""Wrappers of an objective that attack its model during training, in its attention or its embeddings."""

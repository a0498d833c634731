"""Objectives that attack the model of another one during training, in its attention or its embeddings."""

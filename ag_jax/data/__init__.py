"""Tokenizers, text and tasks as masked batches: numpy on the host, independent of the other packages of ag_jax."""

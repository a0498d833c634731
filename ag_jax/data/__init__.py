"""Text to masked batches: numpy on the host; no other room of ag_jax is imported here."""

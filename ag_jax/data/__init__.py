"""Tokenizers, and batches of text for pre-training, of translations, and of tasks for fine-tuning: numpy on the host,
independent of the other packages of ag_jax.
"""

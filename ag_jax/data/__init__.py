"""Tokenizers and batches of text for pre-training, translation, fine-tuning and probing.

Everything is numpy on the host, independent of the packages of ag_jax that use JAX.
"""

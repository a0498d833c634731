"""Downstream tasks, read from files or TFDS and encoded into batches of arrays.

files or TFDS --readers--> examples --encoding--> features --buckets--> batches
"""

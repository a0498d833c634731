"""Downstream tasks: from their files to batches of arrays.

files or TFDS --readers--> examples --encoding--> features --buckets--> batches
"""

"""Texts with their translations, for machine translation: from pairs of lines to batches."""

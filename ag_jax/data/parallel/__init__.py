"""Parallel corpora for machine translation: files of texts and translations are read, tokenised and batched."""

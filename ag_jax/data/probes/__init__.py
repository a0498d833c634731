"""Probes of attention heads: queries, made from annotated texts, about the words to which heads attend."""

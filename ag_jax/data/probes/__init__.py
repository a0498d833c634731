"""Probes of attention heads: readers of annotated texts, and the queries made from them."""

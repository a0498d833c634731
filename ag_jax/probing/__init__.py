"""Probes of attention heads: what each head of a trained encoder looks at, and how often it is right."""

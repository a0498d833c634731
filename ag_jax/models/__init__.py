"""Transformer encoders and their heads, as settings of one Linen `Encoder`."""

"""Attention, the patterns that guide it, the loss that does the guiding, and attacks on attention."""

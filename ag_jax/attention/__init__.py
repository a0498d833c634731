"""The subject of the papers: attention, the patterns that guide it, and the loss that does the guiding."""

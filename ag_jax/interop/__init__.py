"""Import and export of Hugging Face models: one name table for each family, used in both directions."""

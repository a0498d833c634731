"""Import and export of Hugging Face models, by one table of tensor and parameter names for each model family."""

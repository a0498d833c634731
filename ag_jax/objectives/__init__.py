"""What a model is trained to minimise: sums with weights, divided once."""

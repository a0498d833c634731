"""Training objectives: losses as sums with weights, divided once, and wrappers that guide or attack a model."""

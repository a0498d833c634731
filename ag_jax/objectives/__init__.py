"""Training objectives, and wrappers that guide or attack a model. Each loss term is a sum, divided once a batch."""

"""Head ablation: what the removal of each attention head does to the loss of a model."""

"""Training objectives, and wrappers that guide or attack a model.

Each loss term is a sum over a batch, divided once by the weight of the whole batch, also if the batch is computed in
microbatches.
"""

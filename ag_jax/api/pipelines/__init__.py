"""Trained models as functions of texts, which `ag_jax.Model` has as properties: `fill_mask`, `classify`, `tag`, ..."""

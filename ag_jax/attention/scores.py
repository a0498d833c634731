"""Scores of attention: how well a query fits a key.

Shape letters: B batch, Q query position, K key position, H head, W width of a head.
"""

import math

import jax.numpy as jnp
from jax import Array


def dot_product_scores(query_BQHW: Array, key_BKHW: Array) -> Array:
    """Return the scaled dot products q . k / sqrt(W) of queries and keys, W the width of a head: float32 `BHQK`.

    This is equation 1 of Vaswani et al. 2017.
    """
    # Scaled afterwards: in bfloat16 a scaled query would be rounded once more.
    scores_BHQK = jnp.einsum("bqhw,bkhw->bhqk", query_BQHW, key_BKHW, preferred_element_type=jnp.float32)
    return scores_BHQK / math.sqrt(query_BQHW.shape[-1])

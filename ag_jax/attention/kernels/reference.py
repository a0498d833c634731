"""Attention with its probabilities written out: what every kernel has to equal, and what a CPU runs.

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ag_jax.attention import guidance, scores
from ag_jax.attention.dropout import dropout
from ag_jax.attention.kernels.interface import MASKED_SCORE, Mixed

Array = jax.Array


def probabilities(
    query_BQHV: Array, key_BLHV: Array, sequences_BL: Array, bias: Array | None = None, asking_BQ: Array | None = None
) -> Array:
    """H = softmax(Q K^T / sqrt(d) + bias) within sequences: `BHQK`, float32.

    asking_BQ: the sequences of the queries, if these are not those of all positions.
    """
    scores_BHQK = scores.dot_product_scores(query_BQHV, key_BLHV)
    if bias is not None:
        scores_BHQK = scores_BHQK + bias
    asking_BQ = sequences_BL if asking_BQ is None else asking_BQ
    together_BQK = asking_BQ[:, :, None] == sequences_BL[:, None, :]
    return jax.nn.softmax(jnp.where(together_BQK[:, None], scores_BHQK, MASKED_SCORE))


def thinning(rate: float, key: Array | None) -> Callable[[Array], Array]:
    """What dropout does to this call's probabilities: the same each time it is applied."""
    return (lambda weights_BHQK: dropout(weights_BHQK, key, rate)) if rate else (lambda weights_BHQK: weights_BHQK)


def mix(
    weights_BHQK: Array,
    value_BLHV: Array,
    sequences_BL: Array,
    *,
    guides: guidance.Guides | None = None,
    rate: float = 0.0,
    key: Array | None = None,
) -> Mixed:
    """O = (H * M) V and the statistics, from probabilities that are at hand."""
    thin, statistics = thinning(rate, key), None
    if guides is not None:
        guided_BHQK = thin(weights_BHQK) if guides.after_dropout else weights_BHQK
        statistics = guidance.statistics(guided_BHQK, guides, sequences_BL)

    # The backward pass keeps the probabilities alone and thins them again: two arrays of their size fewer.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def apply(weights_BHQK: Array, value_BLHV: Array) -> Array:
        return jnp.einsum("bhqk,bkhv->bqhv", thin(weights_BHQK).astype(value_BLHV.dtype), value_BLHV)

    return apply(weights_BHQK, value_BLHV), statistics


def attend(
    query_BLHV: Array,
    key_BLHV: Array,
    value_BLHV: Array,
    sequences_BL: Array,
    *,
    bias: Array | None = None,
    guides: guidance.Guides | None = None,
    rate: float = 0.0,
    key: Array | None = None,
) -> Mixed:
    """`contract.Attend`, in plain XLA; memory grows with the square of the length."""
    weights_BHQK = probabilities(query_BLHV, key_BLHV, sequences_BL, bias)
    return mix(weights_BHQK, value_BLHV, sequences_BL, guides=guides, rate=rate, key=key)

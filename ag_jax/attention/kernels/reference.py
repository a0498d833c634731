"""Reference attention, which stores all probabilities: every kernel has to equal it, and CPUs run it.

Shape letters: B batch, Q query position, K key position, H head, W width of a head.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import guidance, scores
from ag_jax.attention.dropout import attention_dropout
from ag_jax.attention.kernels.interface import MASKED_SCORE, Attend, AttentionInputs, Mixed
from ag_jax.attention.visibility import EVERYTHING, Band, visible_mask


def probabilities(
    query_BQHW: Array,
    key_BKHW: Array,
    query_segments_BQ: Array,
    key_segments_BK: Array,
    bias: Array | None = None,
    band: Band = EVERYTHING,
) -> Array:
    """Return attention weights softmax(Q K^T / sqrt(W) + bias) over visible keys, 0 elsewhere: `BHQK`, float32."""
    return _scores_and_probabilities(query_BQHW, key_BKHW, query_segments_BQ, key_segments_BK, bias, band)[1]


def _scores_and_probabilities(
    query_BQHW: Array,
    key_BKHW: Array,
    query_segments_BQ: Array,
    key_segments_BK: Array,
    bias: Array | None,
    band: Band,
) -> tuple[Array, Array]:
    """Return (scores, `MASKED_SCORE` for keys that are not seen, and their softmax), both `BHQK`, float32."""
    scores_BHQK = scores.dot_product_scores(query_BQHW, key_BKHW)
    if bias is not None:
        scores_BHQK = scores_BHQK + bias
    visible_BQK = visible_mask(query_segments_BQ, key_segments_BK, band)
    scores_BHQK = jnp.where(visible_BQK[:, None], scores_BHQK, MASKED_SCORE)
    weights_BHQK = jax.nn.softmax(scores_BHQK)
    if query_segments_BQ is not key_segments_BK:  # otherwise every query sees at least itself
        weights_BHQK = jnp.where(visible_BQK.any(-1)[:, None, :, None], weights_BHQK, 0.0)
    return scores_BHQK, weights_BHQK


def dropout_of(rate: float, key: Array | None) -> Callable[[Array], Array]:
    """Return a function that applies dropout to attention weights, and drops the same elements in every call."""
    if not rate:
        return lambda weights_BHQK: weights_BHQK
    return lambda weights_BHQK: attention_dropout(weights_BHQK, key, rate)


def _mix(scores_BHQK: Array, weights_BHQK: Array, inputs: AttentionInputs) -> Mixed:
    """Return (values mixed by attention weights after dropout, guidance statistics or None without guides).

    That is (H * M) V, for H = `weights_BHQK` and dropout's multiplier M, and the statistics of the guided heads.
    """
    drop, statistics, guides = dropout_of(inputs.rate, inputs.key), None, inputs.guides
    if guides is not None:
        guided_BHQK = drop(weights_BHQK) if guides.after_dropout else weights_BHQK
        statistics = guidance.statistics(
            guided_BHQK, guides, inputs.query_segments_BQ, inputs.key_segments_BK, inputs.band, scores_BHQK
        )

    # The backward pass stores only the probabilities and drops elements again: two arrays of their size fewer.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def apply(weights_BHQK: Array, value_BKHW: Array) -> Array:
        return jnp.einsum("bhqk,bkhw->bqhw", drop(weights_BHQK).astype(value_BKHW.dtype), value_BKHW)

    return apply(weights_BHQK, inputs.value_BKHW), statistics


class Reference(Attend):
    """Attention in plain JAX, compiled by XLA; memory grows with the number of query-key pairs.

    save: function to call with the probabilities `BHQK`, float32, before dropout; None to save nothing.
    """

    def __init__(self, save: Callable[[Array], object] | None = None):
        self.save = save

    def compute(self, inputs: AttentionInputs) -> Mixed:
        """Return (attention output `BQHW`, guidance statistics or None) from the whole attention matrix."""
        scores_BHQK, weights_BHQK = _scores_and_probabilities(
            inputs.query_BQHW,
            inputs.key_BKHW,
            inputs.query_segments_BQ,
            inputs.key_segments_BK,
            inputs.bias,
            inputs.band,
        )
        if self.save is not None:
            self.save(weights_BHQK)
        return _mix(scores_BHQK, weights_BHQK, inputs)


attend = Reference()

"""Losses as sums with weights, which a train step divides once, by the weights of the whole batch.

Shape letters: C classes.
"""

import jax
import jax.numpy as jnp
from jax import Array


def cross_entropy(logits: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """Return sum -w log softmax(logits)[label], and the sum of w where the largest logit is the label's.

    `logits` (..., C) in float32, `labels` and `weights` (...). The first sum is zero if and only if every label
    of a non-zero weight has probability 1.
    """
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen[..., 0]
    # argmax == label by comparisons, which take a CPU a sixth of the time: no other class wins. Of equal logits, the
    # first one wins. NaN compares as false, so a prediction with NaN is not correct.
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    does_not_win = (logits < chosen) | ((logits == chosen) & (classes >= labels[..., None]))
    correct = (does_not_win.all(-1) & (labels >= 0)).astype(jnp.float32)
    return (losses * weights).sum(), (correct * weights).sum()

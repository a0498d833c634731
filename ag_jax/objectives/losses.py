"""Losses as sums with weights, which a train step divides once, by the weights of the whole batch.

Shape letters: C classes.
"""

import jax
import jax.numpy as jnp
from jax import Array


def cross_entropy(logits: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """Return two sums: of -w log softmax(logits)[label], and of the weights w of correct predictions.

    A prediction is correct if the label has the largest logit. The first sum is at least 0, and 0 if and only if every
    label whose weight is not 0 has probability 1.

    logits: float32, with an axis C of classes behind the axes of `labels` and `weights`.
    """
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen[..., 0]
    # argmax == label by comparisons, which are much faster on a CPU: no other class wins. Of equal logits, the
    # first one wins. NaN compares as false, so a prediction with NaN is not correct.
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    does_not_win = (logits < chosen) | ((logits == chosen) & (classes >= labels[..., None]))
    correct = (does_not_win.all(-1) & (labels >= 0)).astype(jnp.float32)
    return (losses * weights).sum(), (correct * weights).sum()

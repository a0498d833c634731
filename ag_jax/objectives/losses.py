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
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    return (losses * weights).sum(), (correct * weights).sum()

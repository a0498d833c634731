"""Losses as sums with weights, which a train step divides once, by the weights of the whole batch.

Shape letters: C classes.
"""

import jax
import jax.numpy as jnp
from jax import Array


def cross_entropy(logits: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """Return the weighted sum of the cross entropies, and the total weight of the correct predictions.

    The cross entropy is -log softmax(logits)[label], and a prediction is correct if the label has the largest logit.
    The first sum is at least 0, and 0 if and only if every label whose weight is not 0 has probability 1.

    logits: float32, with an axis C of classes behind the axes of `labels` and `weights`.
    """
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=-1)
    largest = jax.lax.stop_gradient(logits.max(-1, keepdims=True))
    losses = jnp.log(jnp.exp(logits - largest).sum(-1)) + (largest - label_logits)[..., 0]
    # argmax == label by comparisons, which are much faster on a CPU: the label has the largest logit, and no class
    # before it has that, too. The two sums over classes take one pass over the logits. NaN compares as false, so a
    # prediction with NaN is not correct.
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    earlier = ((logits == largest) & (classes < labels[..., None])).astype(jnp.float32).sum(-1)
    correct = ((label_logits == largest)[..., 0] & (earlier == 0) & (labels >= 0)).astype(jnp.float32)
    return (losses * weights).sum(), (correct * weights).sum()


def first_largest(logits: Array) -> Array:
    """Return the class with the largest logit, of equal ones the first, as int32; the number of classes for NaN."""
    # As in `cross_entropy`, by comparisons: on a CPU, `argmax` takes several times as long.
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(logits == logits.max(-1, keepdims=True), classes, logits.shape[-1]).min(-1)

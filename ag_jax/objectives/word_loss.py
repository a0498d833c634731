"""The loss of the masked words, without the scores of all words at all positions in memory at once.

Shape letters: B batch, M masked positions of a row, D width, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.masked_lm import word_scores
from ag_jax.objectives.losses import cross_entropy

POSITIONS = 32  # of every row, at most, whose scores are in memory together


def in_chunks(array_BMx: Array) -> Array:
    """Split `(B, M, ...)` into `(chunks, B, positions, ...)`, filled up with zeros; rows stay on their devices."""
    batch, positions = array_BMx.shape[:2]
    chunks = -(-positions // POSITIONS)
    widths = [(0, 0), (0, -positions % chunks)] + [(0, 0)] * (array_BMx.ndim - 2)
    return jnp.pad(array_BMx, widths).reshape(batch, chunks, -1, *array_BMx.shape[2:]).swapaxes(0, 1)


@jax.custom_vjp
def word_loss(
    hidden_BMD: Array, embedding_VD: Array, bias_V: Array, labels_BM: Array, weights_BM: Array
) -> tuple[Array, Array]:
    """Return two weighted sums over masked positions, `BM`: the cross entropy, and how often the label scores best.

    The scores are h E^T + b, and both sums those of `losses.cross_entropy`, computed a few positions at a time. The
    gradient with regard to a score s_v is w (softmax(s)_v - [v = label]), known as soon as the scores are. So the
    gradients of h, E and b are computed with the loss, up to the factor that comes from outside, and no score is
    computed twice. Not differentiable in labels and weights, nor in the second result.
    """

    def add(sums: tuple, chunk: tuple) -> tuple:
        hidden, labels, weights = chunk
        one = cross_entropy(word_scores(hidden, embedding_VD, bias_V), labels, weights)
        return jax.tree.map(jnp.add, sums, one), None

    zeros = (jnp.float32(0), jnp.float32(0))
    return jax.lax.scan(add, zeros, tuple(map(in_chunks, (hidden_BMD, labels_BM, weights_BM))))[0]


def _forward(hidden_BMD: Array, embedding_VD: Array, bias_V: Array, labels_BM: Array, weights_BM: Array):
    def add(sums: tuple, chunk: tuple):
        (loss, correct, d_embedding_VD, d_bias_V), (hidden, labels, weights) = sums, chunk
        scores = word_scores(hidden, embedding_VD, bias_V)
        one_loss, one_correct = cross_entropy(scores, labels, weights)
        is_label = labels[..., None] == jnp.arange(scores.shape[-1])[None, None, :]
        d_scores = weights[..., None] * (jax.nn.softmax(scores) - is_label)
        narrow = d_scores.astype(hidden.dtype)
        d_embedding_VD += jnp.einsum("bmv,bmd->vd", narrow, hidden, preferred_element_type=jnp.float32)
        d_hidden = jnp.einsum("bmv,vd->bmd", narrow, embedding_VD, preferred_element_type=jnp.float32)
        sums = (loss + one_loss, correct + one_correct, d_embedding_VD, d_bias_V + d_scores.sum((0, 1)))
        return sums, d_hidden.astype(hidden.dtype)

    zeros = (jnp.float32(0), jnp.float32(0), jnp.zeros(embedding_VD.shape, jnp.float32), jnp.zeros_like(bias_V))
    chunks = tuple(map(in_chunks, (hidden_BMD, labels_BM, weights_BM)))
    (loss, correct, d_embedding_VD, d_bias_V), d_chunks = jax.lax.scan(add, zeros, chunks)
    batch, positions, width = hidden_BMD.shape
    d_hidden_BMD = d_chunks.swapaxes(0, 1).reshape(batch, -1, width)[:, :positions]
    # Arrays without elements, for their types alone.
    return (loss, correct), (d_hidden_BMD, d_embedding_VD, d_bias_V, embedding_VD[:0])


def _backward(residuals: tuple, cotangents: tuple):
    d_hidden_BMD, d_embedding_VD, d_bias_V, like = residuals
    factor = cotangents[0]
    d_hidden_BMD = (factor * d_hidden_BMD).astype(d_hidden_BMD.dtype)
    return d_hidden_BMD, (factor * d_embedding_VD).astype(like.dtype), factor * d_bias_V, None, None


word_loss.defvjp(_forward, _backward)

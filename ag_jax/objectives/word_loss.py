"""The loss of predicted words, without the scores of all words at all positions in memory at once.

Every row has M slots for predicted words, and uses as many of them as it has masked positions, or tokens of a target
text.

Shape letters: B batch, M slots of a row, D width, V vocabulary, G groups of rows, S slots of a group, x any other axes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.masked_lm import word_scores
from ag_jax.objectives.losses import cross_entropy, first_largest

POSITIONS = 32  # of every row, at most, whose scores are in memory together
GROUP_SLOTS = 96  # most slots of a group of rows
GROUP_POSITIONS = 16  # slots of a group whose scores are in memory together

Add = Callable[[Any, tuple], tuple[Any, Any]]


def _in_chunks(array_BMx: Array, most: int | None = None) -> Array:
    """Split axis M (a row's slots for predicted words) into equal chunks: return `(chunks, B, length, ...)`.

    Rows are filled up with zeros behind the last slot. They are not split, so each stays on its device.

    most: maximum length of a chunk; None for `POSITIONS`.
    """
    batch, positions = array_BMx.shape[:2]
    chunks = -(-positions // (most or POSITIONS))
    widths = [(0, 0), (0, -positions % chunks)] + [(0, 0)] * (array_BMx.ndim - 2)
    return jnp.pad(array_BMx, widths).reshape(batch, chunks, -1, *array_BMx.shape[2:]).swapaxes(0, 1)


def _joined(chunks: Array) -> Array:
    """Join the chunks from `_in_chunks`, with the zeros that it appended: return `(B, chunks * length, ...)`."""
    chunks = chunks.swapaxes(0, 1)
    return chunks.reshape(chunks.shape[0], -1, *chunks.shape[3:])


def rows_per_group(slots: int) -> int:
    """Return how many rows, with `slots` slots for predicted words each, form a group in `over_used_slots`.

    It is the largest power of two with which a group has at most `GROUP_SLOTS` slots, and at least 1.
    """
    return 1 << max(0, (GROUP_SLOTS // slots).bit_length() - 1)


def over_chunks(add: Add, sums: Any, arrays: tuple[Array, ...]) -> tuple[Any, Any]:
    """Scan `add` over chunks of the rows' slots for predicted words; return (final sums, results of all slots, `BMx`).

    add: (sums, chunks of `arrays`) -> new sums, results of the chunk's slots or None.
    sums: the sums to start with.
    """
    sums, results = jax.lax.scan(add, sums, tuple(map(_in_chunks, arrays)))
    return sums, jax.tree.map(lambda chunks: _joined(chunks)[:, : arrays[0].shape[1]], results)


def over_used_slots(add: Add, sums: Any, arrays: tuple[Array, ...], rows: int) -> tuple[Any, Any]:
    """Scan `add` as `over_chunks` does, but skip chunks of unused slots; return (final sums, results of all slots).

    The results of unused slots are 0, and all results have the order of the slots.

    If every token is masked by a random choice of its own, a row has spare slots for rows with many masked tokens: with
    64 tokens 22 slots, of which it uses 10 on average. The sums of several rows vary less. So rows form groups, in each
    of which the used slots are moved before the unused ones of all rows, and chunks without a used slot are skipped.
    For one device only, because several devices would have to skip the same chunks.

    add, sums: as in `over_chunks`.
    arrays: the last one is `weights_BM`, 0 in unused slots.
    rows: number of rows in a group, a divisor of the number of rows in the batch.
    """
    batch, slots = arrays[-1].shape

    def grouped(array_BMx: Array) -> Array:
        return array_BMx.reshape(batch // rows, rows * slots, *array_BMx.shape[2:])

    def moved(array_GSx: Array, order_GS: Array) -> Array:
        return jnp.take_along_axis(array_GSx, order_GS.reshape(*order_GS.shape, *[1] * (array_GSx.ndim - 2)), axis=1)

    def skip(sums: Any, chunk: tuple) -> tuple[Any, Any]:
        results = jax.eval_shape(add, sums, chunk)[1]
        return sums, jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), results)

    def add_if_used(sums: Any, chunk: tuple) -> tuple[Any, Any]:
        return jax.lax.cond((chunk[-1] != 0).any(), add, skip, sums, chunk)

    # The sort is stable, so that a group's used slots keep their order.
    order_GS = jnp.argsort(grouped(arrays[-1]) == 0, axis=1, stable=True)
    most = min(POSITIONS, GROUP_POSITIONS)
    chunks = tuple(_in_chunks(moved(grouped(array), order_GS), most) for array in arrays)
    sums, results = jax.lax.scan(add_if_used, sums, chunks)
    back_GS = jnp.argsort(order_GS, axis=1)

    def restored(result: Array) -> Array:
        return moved(_joined(result)[:, : rows * slots], back_GS).reshape(batch, slots, *result.shape[3:])

    return sums, jax.tree.map(restored, results)


def over_slots(add: Add, sums: Any, arrays: tuple[Array, ...], group_rows: int) -> tuple[Any, Any]:
    """Scan `add` over the slots for predicted words, by `over_used_slots` if rows form groups, else by `over_chunks`.

    group_rows: rows of a group, see `rows_per_group`; only a divisor that it shares with the batch is used.
    """
    rows = math.gcd(arrays[-1].shape[0], group_rows)
    return over_chunks(add, sums, arrays) if rows == 1 else over_used_slots(add, sums, arrays, rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def word_loss(
    hidden_BMD: Array,
    embedding_VD: Array,
    bias_V: Array,
    labels_BM: Array,
    weights_BM: Array,
    group_rows: int = 1,
    smoothing: float = 0.0,
    with_words: bool = False,
) -> tuple[Array, Array, Array, Array | None]:
    """Return sums over predicted words (loss with label smoothing, right predictions, cross entropy), and the words.

    The sums are weighted. The words are ids, int32 `BM`, of the largest score in each slot, without meaning in unused
    slots; they are None without `with_words`.

    The scores are s = h E^T + b. Cross entropy and right predictions are those of `losses.cross_entropy`, computed a
    few positions at a time. The loss is the cross entropy with the smoothed distribution

        q(v) = (1 - smoothing) [v = label] + smoothing / V,

    which without smoothing is the same. Its gradient with regard to a score s_v is w (softmax(s)_v - q(v)), known as
    soon as the scores are. So the gradients of h, E and b are computed with the loss, up to the factor that comes from
    outside, and no score is computed twice. Until the backward pass, the gradient of E is an array of float32. Labels,
    weights and the other results have no gradient: theirs is 0.

    hidden_BMD: h, the vectors from which words are predicted.
    embedding_VD, bias_V: E and b, of the word head; b is float32.
    labels_BM: ids of the words to predict.
    weights_BM: of the slots, 0 in those that are not used.
    group_rows: rows that form a group in `over_used_slots`, on one device; with 1, all slots are computed.
    """

    def add(sums: tuple, chunk: tuple) -> tuple[Any, Any]:
        hidden, labels, weights = chunk
        scores = word_scores(hidden, embedding_VD, bias_V)
        chunk_sums = _sums(scores, labels, weights, smoothing)
        return jax.tree.map(jnp.add, sums, chunk_sums), first_largest(scores) if with_words else None

    zeros = (jnp.float32(0), jnp.float32(0), jnp.float32(0))
    sums, words_BM = over_slots(add, zeros, (hidden_BMD, labels_BM, weights_BM), group_rows)
    return *sums, words_BM


def _sums(scores_BMV: Array, labels_BM: Array, weights_BM: Array, smoothing: float) -> tuple[Array, Array, Array]:
    """Return the sums (loss, right predictions, cross entropy) of `word_loss` over some words, from their scores."""
    entropy, correct = cross_entropy(scores_BMV, labels_BM, weights_BM)
    if not smoothing:
        return entropy, correct, entropy
    # -sum_v q(v) log softmax(s)_v, where -sum_v log softmax(s)_v / V = logsumexp(s) - mean(s).
    even_BM = jax.nn.logsumexp(scores_BMV, axis=-1) - scores_BMV.mean(-1)
    return (1 - smoothing) * entropy + smoothing * (even_BM * weights_BM).sum(), correct, entropy


def _forward(
    hidden_BMD: Array,
    embedding_VD: Array,
    bias_V: Array,
    labels_BM: Array,
    weights_BM: Array,
    group_rows: int,
    smoothing: float,
    with_words: bool,
):
    def add(sums: tuple, chunk: tuple) -> tuple[Any, Any]:
        (*totals, d_embedding_DV, d_bias_V), (hidden, labels, weights) = sums, chunk
        scores = word_scores(hidden, embedding_VD, bias_V)
        totals = jax.tree.map(jnp.add, tuple(totals), _sums(scores, labels, weights, smoothing))
        is_label = labels[..., None] == jnp.arange(scores.shape[-1])[None, None, :]
        target = (1 - smoothing) * is_label + smoothing / scores.shape[-1] if smoothing else is_label
        d_scores = weights[..., None] * (jax.nn.softmax(scores) - target)
        narrow = d_scores.astype(hidden.dtype)
        # `DV` instead of `VD`: a CPU would copy the scores' gradient, transposed, for a product of the other form.
        d_embedding_DV += jnp.einsum("bmd,bmv->dv", hidden, narrow, preferred_element_type=jnp.float32)
        d_hidden = jnp.einsum("bmv,vd->bmd", narrow, embedding_VD, preferred_element_type=jnp.float32)
        words = first_largest(scores) if with_words else None
        return (*totals, d_embedding_DV, d_bias_V + d_scores.sum((0, 1))), (d_hidden.astype(hidden.dtype), words)

    gradients = (jnp.zeros(embedding_VD.shape[::-1], jnp.float32), jnp.zeros_like(bias_V))
    zeros = (*[jnp.float32(0)] * 3, *gradients)
    sums, (d_hidden_BMD, words_BM) = over_slots(add, zeros, (hidden_BMD, labels_BM, weights_BM), group_rows)
    *totals, d_embedding_DV, d_bias_V = sums
    # The last array has no elements: it carries the type of E.
    return (*totals, words_BM), (d_hidden_BMD, d_embedding_DV.T, d_bias_V, embedding_VD[:0])


def _backward(group_rows: int, smoothing: float, with_words: bool, residuals: tuple, cotangents: tuple):
    del group_rows, smoothing, with_words
    d_hidden_BMD, d_embedding_VD, d_bias_V, like = residuals
    factor = cotangents[0]
    d_hidden_BMD = (factor * d_hidden_BMD).astype(d_hidden_BMD.dtype)
    return d_hidden_BMD, (factor * d_embedding_VD).astype(like.dtype), factor * d_bias_V, None, None


word_loss.defvjp(_forward, _backward)

"""Segment ids: which tokens of a row belong to the same text, and what is counted within each text.

`segments_BL` is int32. The tokens of a text follow one another and have the same id, 1, 2, ... along the row; padding
has id 0. A row with a single text has 1 everywhere but on its padding.

Shape letters: B batch, L length, Q query position, K key position.
"""

import jax
import jax.numpy as jnp
from jax import Array


def same_segment_mask(segments_BL: Array) -> Array:
    """Return booleans `BQK` (batch, query, key): whether two positions belong to the same text; padding has no text."""
    same_BQK = segments_BL[:, :, None] == segments_BL[:, None, :]
    return jnp.logical_and(same_BQK, (segments_BL > 0)[:, None, :])


def totals(values_BL: Array, segments_BL: Array) -> Array:
    """Return for every position the sum of `values_BL` over the text of the position; 0 on padding."""
    # A plain sum over pairs, because differences of running sums would lose digits. For TPUs, XLA makes no array of the
    # pairs; for CPUs it does, for a moment, so do not call this in every layer.
    return jnp.where(same_segment_mask(segments_BL), values_BL[:, None, :], 0).sum(-1)


def sizes(segments_BL: Array) -> Array:
    """Return for every position, as int32, the number of tokens in the text of the position; 0 on padding."""
    first_BL, last_BL = _bounds(segments_BL)
    return jnp.where(segments_BL > 0, last_BL - first_BL + 1, 0)


def order(segments_BL: Array) -> Array:
    """Return for every position, as int32, the index of the position in the text, counted from 0; 0 also on padding."""
    first_BL, _ = _bounds(segments_BL)
    return jnp.where(segments_BL > 0, jnp.arange(segments_BL.shape[1])[None, :] - first_BL, 0)


def is_first(segments_BL: Array) -> Array:
    """Return booleans `BL` (batch, length): whether a position is the first token of a text."""
    return jnp.logical_and(order(segments_BL) == 0, segments_BL > 0)


def _bounds(segments_BL: Array) -> tuple[Array, Array]:
    """Return for every position the first and the last position of the run of equal segment ids around it."""
    length = segments_BL.shape[1]
    place_1L = jnp.arange(length)[None, :]
    is_border_BL = segments_BL[:, 1:] != segments_BL[:, :-1]
    begins_BL = jnp.pad(is_border_BL, [(0, 0), (1, 0)], constant_values=True)
    ends_BL = jnp.pad(is_border_BL, [(0, 0), (0, 1)], constant_values=True)
    first_BL = jax.lax.cummax(jnp.where(begins_BL, place_1L, 0), axis=1)
    last_BL = jax.lax.cummin(jnp.where(ends_BL, place_1L, length - 1), axis=1, reverse=True)
    return first_BL, last_BL

"""Texts that share a row, and what is counted within each of them.

`sequences_BL` is int32: the tokens of a text follow one another and have the same number, 1, 2, ... along the row, and
padding has 0. A row that is a single text has 1 everywhere but on its padding.

Shape letters: B batch, L length, Q query position, K key position.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def together(sequences_BL: Array) -> Array:
    """Pairs of positions that are of one text, `BQK`; padding is of none."""
    same_BQK = sequences_BL[:, :, None] == sequences_BL[:, None, :]
    return jnp.logical_and(same_BQK, (sequences_BL > 0)[:, None, :])


def totals(values_BL: Array, sequences_BL: Array) -> Array:
    """For every position the sum of `values_BL` over its own text; 0 on padding.

    A plain sum over pairs, as differences of running sums would lose digits. For TPUs, XLA makes no array of the pairs; for
    CPUs it does, for a moment, so this is nothing to do in every layer.
    """
    return jnp.where(together(sequences_BL), values_BL[:, None, :], 0).sum(-1)


def sizes(sequences_BL: Array) -> Array:
    """For every position the number of tokens n of its own text, int32; 0 on padding."""
    first_BL, last_BL = _bounds(sequences_BL)
    return jnp.where(sequences_BL > 0, last_BL - first_BL + 1, 0)


def order(sequences_BL: Array) -> Array:
    """For every position its place in its own text, 0, 1, ..., int32; 0 on padding."""
    first_BL, _ = _bounds(sequences_BL)
    return jnp.where(sequences_BL > 0, jnp.arange(sequences_BL.shape[1])[None, :] - first_BL, 0)


def firsts(sequences_BL: Array) -> Array:
    """Which positions are the first token of a text."""
    return jnp.logical_and(order(sequences_BL) == 0, sequences_BL > 0)


def _bounds(sequences_BL: Array) -> tuple[Array, Array]:
    """The first and the last position of the run of equal numbers that each position is in."""
    length = sequences_BL.shape[1]
    place_1L = jnp.arange(length)[None, :]
    is_border_BL = sequences_BL[:, 1:] != sequences_BL[:, :-1]
    begins_BL = jnp.pad(is_border_BL, [(0, 0), (1, 0)], constant_values=True)
    ends_BL = jnp.pad(is_border_BL, [(0, 0), (0, 1)], constant_values=True)
    first_BL = jax.lax.cummax(jnp.where(begins_BL, place_1L, 0), axis=1)
    last_BL = jax.lax.cummin(jnp.where(ends_BL, place_1L, length - 1), axis=1, reverse=True)
    return first_BL, last_BL

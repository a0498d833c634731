"""Texts that share a row, and what is counted within each of them.

`sequences_BL` is int32: the positions of one text have the same number, 1, 2, ... along the row, and padding has 0. A row
that is a single text has 1 everywhere but on its padding.

Sums over a text compare positions pair by pair inside of one reduction, which XLA fuses: no array of L x L elements is made.

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
    """For every position the sum of `values_BL` over its own text; 0 on padding."""
    return jnp.where(together(sequences_BL), values_BL[:, None, :], 0).sum(-1)


def sizes(sequences_BL: Array) -> Array:
    """For every position the number of tokens n of its own text, int32; 0 on padding."""
    return totals(jnp.ones_like(sequences_BL), sequences_BL)


def order(sequences_BL: Array) -> Array:
    """For every position its place in its own text, 0, 1, ..., int32; 0 on padding."""
    place_L = jnp.arange(sequences_BL.shape[1])
    earlier_1QK = (place_L[None, :] < place_L[:, None])[None]
    return jnp.logical_and(together(sequences_BL), earlier_1QK).sum(-1)


def firsts(sequences_BL: Array) -> Array:
    """Which positions are the first token of a text."""
    return jnp.logical_and(order(sequences_BL) == 0, sequences_BL > 0)

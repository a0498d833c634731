"""Attention patterns, and the sparse targets that they make of a batch.

A *pattern* is a function `(tokens_BL, valid_BL, special) -> Target`; the five of the paper (appendix A.2) and
`same` are in `PATTERNS`. A pattern of one's own is any function of that type, named in a config by its import path:

    def second(tokens_BL, valid_BL, special):           # my_patterns.py
        return columns(jnp.arange(tokens_BL.shape[1])[None, :] == 1, valid_BL)

    --config.guidance.heads=next:1,prev:1,my_patterns.second:2

A *target* is a row-stochastic matrix P that is never built: a `Shift` (row p wants column p + offset) or `Columns`
(every row wants the same distribution over the columns). `dense` builds it, for tests and pictures.

Shape letters: B batch, L length, Q query position, K key position.
"""

import dataclasses
import difflib
import importlib
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class SpecialTokens:
    """Token ids that patterns look for: `delimiters` added by the tokenizer, and the tokens that are a full stop."""

    delimiters: tuple[int, ...]
    periods: tuple[int, ...]


@flax.struct.dataclass
class Shift:
    """Row p wants column p + `offset`; where that is no valid token, the boundary rule of the guidance applies."""

    offset: int = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Columns:
    """Every row of example b wants `weights_BK[b]`; `present_B[b]` is false where the pattern found nothing to point at."""

    weights_BK: Array
    present_B: Array


Target = Shift | Columns
Pattern = Callable[[Array, Array, SpecialTokens], Target]


def columns(chosen_BK: Array, valid_BK: Array) -> Columns:
    """Spread each row evenly over the chosen valid columns; where there are none, over all valid columns.

    P[p, q] = 1/CNT if q is chosen, else 0 (appendix A.2; CNT = 0 is undefined there).
    """
    chosen_BK = jnp.logical_and(chosen_BK, valid_BK)
    present_B = chosen_BK.any(-1)
    support_BK = jnp.where(present_B[:, None], chosen_BK, valid_BK).astype(jnp.float32)
    return Columns(support_BK / jnp.maximum(support_BK.sum(-1, keepdims=True), 1.0), present_B)


def _among(tokens_BL: Array, ids: tuple[int, ...]) -> Array:
    return jnp.isin(tokens_BL, jnp.asarray(ids, tokens_BL.dtype))


def next_token(tokens_BL: Array, valid_BL: Array, special: SpecialTokens) -> Shift:
    """[Next]: P[p, p + 1] = 1."""
    del tokens_BL, valid_BL, special
    return Shift(1)


def previous_token(tokens_BL: Array, valid_BL: Array, special: SpecialTokens) -> Shift:
    """[Prev]: P[p, p - 1] = 1."""
    del tokens_BL, valid_BL, special
    return Shift(-1)


def same_token(tokens_BL: Array, valid_BL: Array, special: SpecialTokens) -> Shift:
    """[Same]: P[p, p] = 1 (in the released code, not in the paper)."""
    del tokens_BL, valid_BL, special
    return Shift(0)


def first_token(tokens_BL: Array, valid_BL: Array, special: SpecialTokens) -> Columns:
    """[First]: P[p, 1] = 1, for rows that begin at column 0."""
    del special
    return columns(jnp.arange(tokens_BL.shape[1])[None, :] == 0, valid_BL)


def delimiters(tokens_BL: Array, valid_BL: Array, special: SpecialTokens) -> Columns:
    """[Delim]: P[p, q] = 1/CNT(DELIM) if token q was added by the tokenizer to mark a border."""
    return columns(_among(tokens_BL, special.delimiters), valid_BL)


def periods(tokens_BL: Array, valid_BL: Array, special: SpecialTokens) -> Columns:
    """[Period]: P[p, q] = 1/CNT('.') if token q is a full stop."""
    return columns(_among(tokens_BL, special.periods), valid_BL)


PATTERNS: dict[str, Pattern] = {
    "next": next_token,
    "prev": previous_token,
    "first": first_token,
    "delim": delimiters,
    "period": periods,
    "same": same_token,
}


def find_pattern(name: str) -> Pattern:
    """The pattern called `name`: a key of `PATTERNS`, or the import path `module.function` of one from outside.

    Raises ValueError, with the nearest name, if there is none.
    """
    if name in PATTERNS:
        return PATTERNS[name]
    module_name, _, function_name = name.rpartition(".")
    if module_name:
        try:
            pattern = getattr(importlib.import_module(module_name), function_name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"cannot import the attention pattern {name!r}: {error}") from error
        if not callable(pattern):
            raise ValueError(f"the attention pattern {name!r} must be a function, got {pattern!r}")
        return pattern
    near = difflib.get_close_matches(name, PATTERNS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"unknown attention pattern {name!r}{hint} Known: {', '.join(PATTERNS)}, or module.function")


def hits(target: Target, valid_BL: Array) -> Array:
    """Rows `BQ` for which the target names a column: a valid token p + offset, or a token that was found."""
    if isinstance(target, Columns):
        return jnp.logical_and(valid_BL, target.present_B[:, None])
    length = valid_BL.shape[1]
    columns_Q = jnp.arange(length) + target.offset
    inside_Q = jnp.logical_and(columns_Q >= 0, columns_Q < length)
    shifted_BL = jnp.take(valid_BL, jnp.clip(columns_Q, 0, length - 1), axis=1)
    return valid_BL & shifted_BL & inside_Q[None, :]


def dense(target: Target, valid_BL: Array, *, boundary: str = "uniform") -> Array:
    """The matrix `P_BQK` in full; rows of padding are zero. For tests, pictures and `mode=bias`.

    `boundary` is what a `Shift` row without its column wants: `uniform` over the valid tokens (the paper), or `zero`
    (the released code; `ignore` looks the same, as such rows are left out of the loss).
    """
    valid_BK = valid_BL.astype(jnp.float32)
    if isinstance(target, Columns):
        rows_BQK = jnp.broadcast_to(target.weights_BK[:, None, :], (*valid_BK.shape, valid_BK.shape[1]))
    else:
        length = valid_BL.shape[1]
        rows_BQK = jnp.eye(length, k=target.offset)[None] * hits(target, valid_BL)[:, :, None]
        if boundary == "uniform":
            uniform_BK = valid_BK / jnp.maximum(valid_BK.sum(-1, keepdims=True), 1.0)
            rows_BQK = jnp.where(hits(target, valid_BL)[:, :, None], rows_BQK, uniform_BK[:, None, :])
    return rows_BQK * valid_BK[:, :, None]

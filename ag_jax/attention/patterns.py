"""Attention patterns, and the sparse targets that they make of a batch.

A *pattern* is a function `(tokens_BL, segments_BL, special) -> Target`; the five of the paper (appendix A.2) and
`same` are in `PATTERNS`. A custom pattern is any function of that type, named in a config by its import path:

    def second(tokens_BL, segments_BL, special):       # my_patterns.py
        return columns(segments.order(segments_BL) == 1, segments_BL)

    --config.guidance.heads=next:1,prev:1,my_patterns.second:2

A *target* is a row-stochastic matrix P that is never built: a `Shift` (row p wants column p + offset), `Columns` (every
row of a text wants the same distribution over the text's columns) or `Entries` (every row wants one column). `dense`
builds it, for tests and pictures.

In a decoder, rows see no columns after themselves: a row of `Columns` then wants the columns that it sees, evenly. In
attention from a translation to its source, the columns are those of the source.

Several texts may share a row (`attention.segments`); each has targets of its own, as if it were alone.

Shape letters: B batch, L length, Q query position, K key position.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.attention import segments
from ag_jax.attention.assignment import custom
from ag_jax.attention.visibility import EVERYTHING, Band, visible_in_text, visible_targets


@dataclasses.dataclass(frozen=True)
class PatternTokens:
    """Token ids that patterns look for: those of delimiters and of full stops.

    delimiters: ids of the tokens that the tokenizer adds to mark borders.
    periods: ids of the tokens that are a full stop.
    """

    delimiters: tuple[int, ...]
    periods: tuple[int, ...]


@flax.struct.dataclass
class Shift:
    """Target matrix of which each row (query) p has weight 1 in column (key) p + `offset`.

    `guidance.boundary` decides about rows whose column is outside their text.
    """

    offset: int = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Columns:
    """Target matrix in which all rows (queries) of a text have the same weights.

    weights_BK: weight of each column in the rows of its text, where weights sum to 1; rows of other texts have 0 there.
    present_BK: false in the columns of a text in which the pattern found no token to point at.
    """

    weights_BK: Array
    present_BK: Array


@flax.struct.dataclass
class Entries:
    """Target matrix of which each row (query) has weight 1 in one column (key), `column_BQ`, or in none.

    column_BQ: the column of each row; -1 for rows without one.
    """

    column_BQ: Array


Target = Shift | Columns | Entries
Pattern = Callable[[Array, Array, PatternTokens], Shift | Columns]


def columns(chosen_BK: Array, segments_BK: Array) -> Columns:
    """Return the target in which every query attends uniformly to the chosen tokens of the query's text.

    In a text without a chosen token, every query attends uniformly to all tokens of the text.

    P[p, q] = 1/CNT if q is chosen, else 0 (appendix A.2; CNT = 0 is undefined there).
    """
    chosen_BK = jnp.logical_and(chosen_BK, segments_BK > 0)
    count_BK = segments.totals(chosen_BK.astype(jnp.int32), segments_BK)
    present_BK = count_BK > 0
    support_BK = jnp.where(present_BK, chosen_BK, segments_BK > 0).astype(jnp.float32)
    divisor_BK = jnp.where(present_BK, count_BK, jnp.maximum(segments.sizes(segments_BK), 1)).astype(jnp.float32)
    return Columns(support_BK / divisor_BK, present_BK)


def _among(tokens_BL: Array, ids: tuple[int, ...]) -> Array:
    return jnp.isin(tokens_BL, jnp.asarray(ids, tokens_BL.dtype))


def next_token(tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Shift:
    """Return the target of the pattern [Next], the following token: P[p, p + 1] = 1."""
    del tokens_BL, segments_BL, special
    return Shift(1)


def previous_token(tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Shift:
    """Return the target of the pattern [Prev], the preceding token: P[p, p - 1] = 1."""
    del tokens_BL, segments_BL, special
    return Shift(-1)


def same_token(tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Shift:
    """Return the target of the pattern [Same], each token itself: P[p, p] = 1.

    The released code has this pattern, the paper does not.
    """
    del tokens_BL, segments_BL, special
    return Shift(0)


def first_token(tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Columns:
    """Return the target of the pattern [First]: P[p, f] = 1, where f is the first token in the text of token p."""
    del tokens_BL, special
    return columns(segments.is_first(segments_BL), segments_BL)


def delimiters(tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Columns:
    """Return the target of the pattern [Delim]: P[p, q] = 1/n if token q is one of the n delimiters of the text.

    Delimiters are tokens that the tokenizer adds, such as [SEP]; n is CNT(DELIM) in the paper.
    """
    return columns(_among(tokens_BL, special.delimiters), segments_BL)


def periods(tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Columns:
    """Return the target of the pattern [Period]: P[p, q] = 1/n if token q is one of the n full stops of the text.

    n is CNT('.') in the paper.
    """
    return columns(_among(tokens_BL, special.periods), segments_BL)


PATTERNS: dict[str, Pattern] = {
    "next": next_token,
    "prev": previous_token,
    "first": first_token,
    "delim": delimiters,
    "period": periods,
    "same": same_token,
}


_TYPE = "a function (tokens_BL, segments_BL, special) -> Shift or Columns"


def find_pattern(name: str) -> Pattern:
    """Return the pattern called `name`: a key of `PATTERNS`, or the import path `module.function` of a custom pattern.

    Raises ValueError as `imported.function` does, and if there is no such pattern.
    """
    return PATTERNS[name] if name in PATTERNS else custom(name)


def find_target(name: str, tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Shift | Columns:
    """Return the target matrix, in sparse form, of the pattern called `name` for a batch of token ids.

    Raises ValueError if a custom pattern fails or does not return what its contract says. Values are unknown within a
    compiled function, so they are checked for an example.
    """
    pattern = find_pattern(name)
    if name in PATTERNS:
        return pattern(tokens_BL, segments_BL, special)
    with jax.ensure_compile_time_eval():
        _check_on_example(name, pattern, special)
    return _call(name, pattern, tokens_BL, segments_BL, special)


@functools.cache
def _check_on_example(name: str, pattern: Pattern, special: PatternTokens) -> None:
    """Raise ValueError if a custom pattern returns no valid target for a small batch of example texts.

    The texts have 5, 1, 4 and 2 tokens, first without delimiters and full stops, then of these alone.
    """
    segments_BL = jnp.array([[1] * 5 + [2] + [3] * 4 + [0], [1] * 2 + [0] * 9], jnp.int32)
    ids = {*special.delimiters, *special.periods}
    other = next(id for id in range(len(ids) + 1) if id not in ids)
    for token in (other, *ids):
        _call(name, pattern, jnp.full_like(segments_BL, token), segments_BL, special)


def _call(name: str, pattern: Pattern, tokens_BL: Array, segments_BL: Array, special: PatternTokens) -> Shift | Columns:
    """Return a custom pattern's target for a batch; raise ValueError if the pattern fails or its target is not valid.

    Values of the target are checked as far as they are known: not while JAX traces.
    """
    try:
        target = pattern(tokens_BL, segments_BL, special)
    except (Exception, SystemExit) as error:  # it may raise anything
        reason = next(iter(str(error).splitlines()), "").rstrip(".")
        raise ValueError(
            f"the attention pattern {name!r} raised {type(error).__name__}: {reason}; expected {_TYPE}, which JAX can "
            "compile, so that Python code must not depend on the values of the arrays"
        ) from error
    if fault := _fault_of_target(target, segments_BL):
        raise ValueError(f"the attention pattern {name!r} returned {fault}; expected {_TYPE}, see `patterns.columns`")
    return target


def _fault_of_target(target: Any, segments_BL: Array) -> str:
    """Return what is wrong with the target that a pattern returned, as a part of a message; "" if nothing is.

    target: the pattern's result, of any type. While JAX traces, only its types, shapes and dtypes are known.
    segments_BL: the argument of the pattern: the number of the text of each token, 0 for padding.
    """
    if isinstance(target, Shift):
        is_offset = isinstance(target.offset, int | np.integer) and abs(target.offset) < 2**31
        return "" if is_offset else f"a Shift of {target.offset!r}, which is no whole number of tokens"
    if not isinstance(target, Columns):
        return f"an object of type {type(target).__name__}"
    # Other types and shapes would broadcast, or be rounded, without an error.
    shape = segments_BL.shape
    for field, kind, kind_name in (
        ("weights_BK", jnp.floating, "numbers with a point"),
        ("present_BK", jnp.bool_, "bool"),
    ):
        array = getattr(target, field)
        if not isinstance(array, Array | np.ndarray):
            return f"Columns with {field} of type {type(array).__name__}, which is no array"
        if array.shape != shape or not jnp.issubdtype(array.dtype, kind):
            return f"Columns with {field} of shape {array.shape} and type {array.dtype}, not {shape} of {kind_name}"
    leaves = (target.weights_BK, target.present_BK, segments_BL)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return ""
    # Masses and losses of guidance assume weights that are a distribution over the text of a query.
    weights_BK, present_BK, segments_BK = map(np.asarray, leaves)
    weights_BK = weights_BK.astype(np.float64)
    if not np.isfinite(weights_BK).all() or (weights_BK < 0).any():
        return f"Columns with the weight {weights_BK[~(weights_BK >= 0) | np.isinf(weights_BK)][0]}"
    if weights_BK[segments_BK == 0].any():
        return "Columns with weights on padding, where segments_BL is 0"
    for row, segments_K in enumerate(segments_BK):
        for text in sorted({*segments_K[segments_K > 0].tolist()}):
            members = segments_K == text
            if not 0.99 < (total := weights_BK[row, members].sum()) < 1.01:
                return f"Columns whose weights sum to {total:g} in a text of {members.sum()} tokens, not to 1"
            if len({*present_BK[row, members].tolist()}) > 1:
                return (
                    "Columns with present_BK that differs within a text, where it says whether the text has the token"
                )
    return ""


def diagonal(segments_BQ: Array, key_segments_BK: Array) -> Entries:
    """Return the target of [Diagonal] in cross-attention: the source token at about the query's relative position.

    P[p, round(p n_s / n_t)] = 1, where p is the position in a translation of n_t tokens, and n_s the number of tokens
    of its source.
    """
    tokens_BQ = jnp.maximum(segments.sizes(segments_BQ), 1)
    together_BQK = (segments_BQ[:, :, None] == key_segments_BK[:, None, :]) & (segments_BQ > 0)[:, :, None]
    source_BQ, first_BQ = together_BQK.sum(-1), jnp.argmax(together_BQK, axis=-1)
    # round(p n_s / n_t) in integers: rounding a half up, without the rounding of floating-point numbers.
    place_BQ = (2 * segments.order(segments_BQ) * source_BQ + tokens_BQ) // (2 * tokens_BQ)
    column_BQ = first_BQ + jnp.minimum(place_BQ, source_BQ - 1)
    return Entries(jnp.where(source_BQ > 0, column_BQ, -1).astype(jnp.int32))


def find_source_target(
    name: str, tokens_BK: Array, key_segments_BK: Array, segments_BQ: Array, special: PatternTokens
) -> Target:
    """Return the target of the pattern called `name` for cross-attention from translations to their sources.

    tokens_BK, key_segments_BK: tokens and segment ids of the sources.
    segments_BQ: segment ids of the translations.

    Raises ValueError for a pattern of neighbours, such as `next`, which a source of another length does not have.
    """
    if name == "diagonal":
        return diagonal(segments_BQ, key_segments_BK)
    target = find_target(name, tokens_BK, key_segments_BK, special)
    if isinstance(target, Shift):
        raise ValueError(
            f"the pattern {name!r} points at neighbours of a token, which attention to another text does not have: "
            "use first, delim, period, diagonal, or a custom pattern of columns"
        )
    return target


def has_target(
    target: Target, segments_BQ: Array, key_segments_BK: Array | None = None, band: Band = EVERYTHING
) -> Array:
    """Return booleans `BQ` (batch, query): whether the pattern finds a key for a query in the query's own text.

    For `Shift` this is the key p + offset of query p, for `Columns` any token that the pattern looks for and that the
    query sees.

    key_segments_BK: segment ids of the keys; None for self-attention.
    band: in which keys are seen.
    """
    is_same = key_segments_BK is None or key_segments_BK is segments_BQ
    key_segments_BK = segments_BQ if key_segments_BK is None else key_segments_BK
    if isinstance(target, Entries):
        return jnp.logical_and(target.column_BQ >= 0, segments_BQ > 0)
    if isinstance(target, Columns):
        if is_same and band.is_everything:
            return jnp.logical_and(target.present_BK, segments_BQ > 0)
        # In a text without the token, all columns have weights: `present_BK` tells them from columns with the token.
        weights_BK = jnp.where(target.present_BK, target.weights_BK, 0.0)
        return (visible_targets(weights_BK, segments_BQ, key_segments_BK, band) > 0) & (segments_BQ > 0)
    length = segments_BQ.shape[1]
    columns_Q = jnp.arange(length) + target.offset
    inside_Q = jnp.logical_and(columns_Q >= 0, columns_Q < length)
    shifted_BQ = jnp.take(key_segments_BK, jnp.clip(columns_Q, 0, length - 1), axis=1)
    return (segments_BQ > 0) & (shifted_BQ == segments_BQ) & inside_Q[None, :]


def dense(
    target: Target,
    segments_BQ: Array,
    key_segments_BK: Array | None = None,
    band: Band = EVERYTHING,
    *,
    boundary: str = "uniform",
) -> Array:
    """Return the target as a dense matrix `BQK` (batch, query, key), 0 on padding and where a query cannot see a key.

    For tests, pictures and `guidance.mode=bias`, which adds the matrix to the scores.

    key_segments_BK, band: as in `has_target`.
    boundary: content of a `Shift` row whose column is outside its text: `uniform` over the tokens that it sees (the
        paper), or `zero` (the released code; `ignore` looks the same, because such rows are left out of the loss).
    """
    is_same = key_segments_BK is None
    key_segments_BK = segments_BQ if key_segments_BK is None else key_segments_BK
    visible_BQK = visible_in_text(segments_BQ, key_segments_BK, band)
    uniform_BQK = visible_BQK / jnp.maximum(visible_BQK.sum(-1, keepdims=True), 1)
    if isinstance(target, Columns):
        weights_BQK = jnp.where(visible_BQK, target.weights_BK[:, None, :], 0.0)
        if is_same and band.is_everything:
            return weights_BQK
        if not band.is_everything:  # of the columns, a row sees only some
            weights_BQK = (weights_BQK > 0).astype(jnp.float32)
            weights_BQK /= jnp.maximum(weights_BQK.sum(-1, keepdims=True), 1)
        return jnp.where((weights_BQK > 0).any(-1, keepdims=True), weights_BQK, uniform_BQK)
    if isinstance(target, Entries):
        rows_BQK = jax.nn.one_hot(target.column_BQ, key_segments_BK.shape[1]) * visible_BQK
    else:
        rows_BQK = jnp.eye(segments_BQ.shape[1], k=target.offset)[None] * visible_BQK
    if boundary == "zero":
        return rows_BQK
    return jnp.where(has_target(target, segments_BQ, key_segments_BK, band)[:, :, None], rows_BQK, uniform_BQK)

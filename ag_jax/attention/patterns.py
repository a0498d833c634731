"""Attention patterns, and the sparse targets that they make of a batch.

A *pattern* is a function `(PatternInputs) -> Target`; the five of the paper (appendix A.2) and three more are in
`PATTERNS` and `REPETITIONS`. A custom pattern is any function of that type, named in a config by its import path:

    def second(inputs):       # my_patterns.py
        return columns(segments.order(inputs.segments_BL) == 1, inputs.segments_BL)

    --config.guidance.heads=next:1,prev:1,my_patterns.second:2

Any other name is a column of pointers in annotated text (`data.pointers`), such as `head`.

A *target* is a row-stochastic matrix P that is never built: a `Pointer` (every row wants one column, its own) or
`Columns` (every row of a text wants the same distribution over the text's columns). `dense` builds it, for tests and
pictures.

In a decoder, rows see no columns after themselves: a row of `Columns` then wants the columns that it sees, evenly. In
attention from a translation to its source, the columns are those of the source.

Several texts may share a row (`attention.segments`); each has targets of its own, as if it were alone.

Shape letters: B batch, L length, Q query position, K key position.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

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


class PatternInputs(NamedTuple):
    """What a pattern finds its target in: a batch of texts before masking, of which several may share a row.

    tokens_BL: token ids.
    masked_BL: whether the token was chosen for masking, also where masking left it as it was.
    segments_BL: number of the text of each token, 0 for padding.
    special: token ids that patterns look for.
    pointers: {name: position `BL` to which each token points in the annotated text, -1 for none}.
    """

    tokens_BL: Array
    masked_BL: Array
    segments_BL: Array
    special: PatternTokens
    pointers: Mapping[str, Array] = {}


def no_pointers(tokens_BL: Array | np.ndarray) -> Mapping[str, Array]:
    """Return `PatternInputs.pointers` for texts without annotation: under any name, -1 for every token."""
    return collections.defaultdict(lambda: jnp.full(tokens_BL.shape, -1, jnp.int32))


@flax.struct.dataclass
class Pointer:
    """Target matrix of which each row (query) has weight 1 in one column (key), or in none.

    column_BQ: int32, the column of each row; -1 for none. A column that the query does not see counts as none (`seen`).
    offset: if every row p has the column p + offset, this offset; otherwise None.
    missing: what becomes of rows without a column: `boundary` leaves it to `guidance.boundary`, `ignore` leaves these
        rows out of the loss.
    """

    column_BQ: Array
    offset: int | None = flax.struct.field(pytree_node=False, default=None)
    missing: Literal["boundary", "ignore"] = flax.struct.field(pytree_node=False, default="ignore")


@flax.struct.dataclass
class Columns:
    """Target matrix in which all rows (queries) of a text have the same weights.

    weights_BK: weight of each column in the rows of its text, where weights sum to 1; rows of other texts have 0 there.
    present_BK: false in the columns of a text in which the pattern found no token to point at.
    """

    weights_BK: Array
    present_BK: Array


Target = Pointer | Columns
Pattern = Callable[[PatternInputs], Target]


def neighbour(segments_BL: Array, offset: int) -> Pointer:
    """Return the target in which every query attends to the token `offset` positions after it, such as -1."""
    column_Q = jnp.arange(offset, segments_BL.shape[1] + offset, dtype=jnp.int32)
    return Pointer(jnp.broadcast_to(column_Q, segments_BL.shape), offset, "boundary")


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


def next_token(inputs: PatternInputs) -> Pointer:
    """Return the target of the pattern [Next], the following token: P[p, p + 1] = 1."""
    return neighbour(inputs.segments_BL, 1)


def previous_token(inputs: PatternInputs) -> Pointer:
    """Return the target of the pattern [Prev], the preceding token: P[p, p - 1] = 1."""
    return neighbour(inputs.segments_BL, -1)


def same_token(inputs: PatternInputs) -> Pointer:
    """Return the target of the pattern [Same], each token itself: P[p, p] = 1.

    The released code has this pattern, the paper does not.
    """
    return neighbour(inputs.segments_BL, 0)


def first_token(inputs: PatternInputs) -> Columns:
    """Return the target of the pattern [First]: P[p, f] = 1, where f is the first token in the text of token p."""
    return columns(segments.is_first(inputs.segments_BL), inputs.segments_BL)


def delimiters(inputs: PatternInputs) -> Columns:
    """Return the target of the pattern [Delim]: P[p, q] = 1/n if token q is one of the n delimiters of the text.

    Delimiters are tokens that the tokenizer adds, such as [SEP]; n is CNT(DELIM) in the paper.
    """
    return columns(_among(inputs.tokens_BL, inputs.special.delimiters), inputs.segments_BL)


def periods(inputs: PatternInputs) -> Columns:
    """Return the target of the pattern [Period]: P[p, q] = 1/n if token q is one of the n full stops of the text.

    n is CNT('.') in the paper.
    """
    return columns(_among(inputs.tokens_BL, inputs.special.periods), inputs.segments_BL)


def previous_same(inputs: PatternInputs) -> Pointer:
    """Return the target of the pattern [Previous same]: the last earlier position of the text with the same token.

    Tokens that were chosen for masking neither point nor are pointed at.
    """
    return Pointer(_previous_same(inputs))


def after_previous_same(inputs: PatternInputs) -> Pointer:
    """Return the target of the pattern [After previous same]: the token after the last earlier one that is the same.

    It is the target of an induction head (Olsson et al. 2022). Tokens that were chosen for masking neither point nor
    are pointed at.
    """
    previous_BQ = _previous_same(inputs)
    column_BQ = jnp.where(previous_BQ < 0, -1, previous_BQ + 1)
    is_masked_BQ = jnp.take_along_axis(inputs.masked_BL, jnp.maximum(column_BQ, 0), axis=1)
    return Pointer(jnp.where(is_masked_BQ, -1, column_BQ))


def _previous_same(inputs: PatternInputs) -> Array:
    """Return the last earlier position `BQ` of the same token in the same text, -1 for none, without masked tokens."""
    tokens_BL, masked_BL, segments_BL, *_ = inputs
    position_11L = jnp.arange(tokens_BL.shape[1], dtype=jnp.int32)[None, None, :]
    counts_BL = (segments_BL > 0) & ~masked_BL
    same_BQK = (tokens_BL[:, :, None] == tokens_BL[:, None, :]) & (segments_BL[:, :, None] == segments_BL[:, None, :])
    same_BQK &= counts_BL[:, :, None] & counts_BL[:, None, :] & (position_11L.swapaxes(1, 2) > position_11L)
    return jnp.where(same_BQK, position_11L, -1).max(-1)


PATTERNS: dict[str, Pattern] = {
    "next": next_token,
    "prev": previous_token,
    "first": first_token,
    "delim": delimiters,
    "period": periods,
    "same": same_token,
}


REPETITIONS: dict[str, Pattern] = {"previous_same": previous_same, "after_previous_same": after_previous_same}

_TYPE = "a function of PatternInputs that returns a Pointer or Columns"


def find_pattern(name: str) -> Pattern:
    """Return the pattern called `name`: one that is built in, or the import path `module.function` of a custom one.

    Raises ValueError as `imported.function` does, and if there is no such pattern.
    """
    return (PATTERNS | REPETITIONS).get(name) or custom(name)


def find_target(name: str, inputs: PatternInputs) -> Target:
    """Return the target matrix, in sparse form, of the pattern called `name` for a batch.

    Raises ValueError if a custom pattern fails or does not return what its contract says. Values are unknown within a
    compiled function, so they are checked for an example.
    """
    if name in inputs.pointers:
        return Pointer(inputs.pointers[name])
    pattern = find_pattern(name)
    if name in PATTERNS or name in REPETITIONS:
        return pattern(inputs)
    with jax.ensure_compile_time_eval():
        _check_on_example(name, pattern, inputs.special)
    return _call(name, pattern, inputs)


@functools.cache
def _check_on_example(name: str, pattern: Pattern, special: PatternTokens) -> None:
    """Raise ValueError if a custom pattern returns no valid target for a small batch of example texts.

    The texts have 5, 1, 4 and 2 tokens, first without delimiters and full stops, then of these alone.
    """
    segments_BL = jnp.array([[1] * 5 + [2] + [3] * 4 + [0], [1] * 2 + [0] * 9], jnp.int32)
    ids = {*special.delimiters, *special.periods}
    other = next(id for id in range(len(ids) + 1) if id not in ids)
    for token in (other, *ids):
        tokens_BL, is_masked_BL = jnp.full_like(segments_BL, token), jnp.zeros(segments_BL.shape, bool)
        _call(name, pattern, PatternInputs(tokens_BL, is_masked_BL, segments_BL, special, no_pointers(tokens_BL)))


def _call(name: str, pattern: Pattern, inputs: PatternInputs) -> Target:
    """Return a custom pattern's target for a batch; raise ValueError if the pattern fails or its target is not valid.

    Values of the target are checked as far as they are known: not while JAX traces.
    """
    try:
        target = pattern(inputs)
    except (Exception, SystemExit) as error:  # it may raise anything
        reason = next(iter(str(error).splitlines()), "").rstrip(".")
        raise ValueError(
            f"the attention pattern {name!r} raised {type(error).__name__}: {reason}; expected {_TYPE}, which JAX can "
            "compile, so that Python code must not depend on the values of the arrays"
        ) from error
    if fault := _fault_of_target(target, inputs.segments_BL):
        raise ValueError(f"the attention pattern {name!r} returned {fault}; expected {_TYPE}, see `patterns.columns`")
    return target


def _fault_of_target(target: Any, segments_BL: Array) -> str:
    """Return what is wrong with the target that a pattern returned, as a part of a message; "" if nothing is.

    target: the pattern's result, of any type. While JAX traces, only its types, shapes and dtypes are known.
    segments_BL: the number of the text of each token, 0 for padding.
    """
    kinds = {"weights_BK": (jnp.floating, "numbers with a point"), "present_BK": (jnp.bool_, "bool")}
    if isinstance(target, Pointer):
        kinds = {"column_BQ": (jnp.int32, "int32")}
    elif not isinstance(target, Columns):
        return f"an object of type {type(target).__name__}"
    # Other types and shapes would broadcast, or be rounded, without an error.
    shape, kind = segments_BL.shape, type(target).__name__
    for field, (dtype, dtype_name) in kinds.items():
        array = getattr(target, field)
        if not isinstance(array, Array | np.ndarray):
            return f"{kind} with {field} of type {type(array).__name__}, which is no array"
        if array.shape != shape or not jnp.issubdtype(array.dtype, dtype):
            return f"{kind} with {field} of shape {array.shape} and type {array.dtype}, not {shape} of {dtype_name}"
    if isinstance(target, Pointer):
        return _fault_of_offset(target, segments_BL)
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


def _fault_of_offset(target: Pointer, segments_BL: Array) -> str:
    """Return what is wrong with the offset of a pointer, as a part of a message; "" if nothing is."""
    if target.offset is None or isinstance(target.column_BQ, jax.core.Tracer):
        return ""
    expected_Q = np.arange(segments_BL.shape[1]) + target.offset
    is_equal = np.array_equal(np.asarray(target.column_BQ), np.broadcast_to(expected_Q, segments_BL.shape))
    return "" if is_equal else f"a Pointer whose columns are not those of its offset {target.offset}"


def diagonal(segments_BQ: Array, key_segments_BK: Array) -> Pointer:
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
    return Pointer(jnp.where(source_BQ > 0, column_BQ, -1).astype(jnp.int32))


def find_source_target(name: str, sources: PatternInputs, segments_BQ: Array) -> Target:
    """Return the target of the pattern called `name` for cross-attention from translations to their sources.

    sources: the sources. `sources.pointers` has the position in the source for each token of the translation.
    segments_BQ: segment ids of the translations.

    Raises ValueError for a pattern of the source's tokens, such as `next`: a source of another length has none.
    """
    if name == "diagonal":
        return diagonal(segments_BQ, sources.segments_BL)
    target = find_target(name, sources)
    if isinstance(target, Pointer) and name not in sources.pointers:
        raise ValueError(
            f"the pattern {name!r} points from tokens of a text to others of the same text, which attention to another "
            "text does not have: use first, delim, period, diagonal, alignment, or a custom pattern of columns"
        )
    return target


def seen(target: Pointer, segments_BQ: Array, key_segments_BK: Array | None = None, band: Band = EVERYTHING) -> Array:
    """Return the column of each query as int32 `BQ` if the query sees it, otherwise -1.

    key_segments_BK: segment ids of the keys; None for self-attention.
    band: in which keys are seen.
    """
    key_segments_BK = segments_BQ if key_segments_BK is None else key_segments_BK
    column_BQ, keys = target.column_BQ, key_segments_BK.shape[1]
    if target.offset is None:
        key_segment_BQ = jnp.take_along_axis(key_segments_BK, jnp.clip(column_BQ, 0, keys - 1), axis=1)
    else:  # the same columns in every row, which need no gather for each row
        column_Q = np.clip(np.arange(column_BQ.shape[1]) + target.offset, 0, keys - 1)
        key_segment_BQ = jnp.take(key_segments_BK, column_Q, axis=1)
    seen_BQ = (column_BQ >= 0) & (column_BQ < keys) & (segments_BQ > 0) & (key_segment_BQ == segments_BQ)
    if not band.is_everything:
        seen_BQ &= band.contains(jnp.arange(segments_BQ.shape[1])[None, :], column_BQ)
    return jnp.where(seen_BQ, column_BQ, -1)


def has_target(
    target: Target, segments_BQ: Array, key_segments_BK: Array | None = None, band: Band = EVERYTHING
) -> Array:
    """Return booleans `BQ` (batch, query): whether the pattern finds a key for a query in the query's own text.

    For `Pointer` this is the query's column, for `Columns` any token that the pattern looks for. Both count only if the
    query sees them.

    key_segments_BK, band: as in `seen`.
    """
    if isinstance(target, Pointer):
        return seen(target, segments_BQ, key_segments_BK, band) >= 0
    is_same = key_segments_BK is None or key_segments_BK is segments_BQ
    if is_same and band.is_everything:
        return jnp.logical_and(target.present_BK, segments_BQ > 0)
    key_segments_BK = segments_BQ if key_segments_BK is None else key_segments_BK
    # In a text without the token, all columns have weights: `present_BK` tells them from columns with the token.
    weights_BK = jnp.where(target.present_BK, target.weights_BK, 0.0)
    return (visible_targets(weights_BK, segments_BQ, key_segments_BK, band) > 0) & (segments_BQ > 0)


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

    key_segments_BK, band: as in `seen`.
    boundary: content of the row of a neighbour that is outside the query's text: `uniform` over the tokens that it sees
        (the paper), or `zero` (the released code; `ignore` looks the same, because such rows are left out of the loss).
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
    column_BQ = seen(target, segments_BQ, key_segments_BK, band)
    rows_BQK = jax.nn.one_hot(column_BQ, key_segments_BK.shape[1])
    if boundary == "zero" or target.missing == "ignore":
        return rows_BQK
    return jnp.where(column_BQ[:, :, None] >= 0, rows_BQK, uniform_BQK)

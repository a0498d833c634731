"""Attention of a model from, or to, chosen words, as one number for each word of the text.

A model attends between tokens; a probe asks about words. As in Clark et al. 2019 (section 4.1), the attention *to* a
word is the sum over its tokens, and the attention *from* a word is the mean over its tokens. A row over words then sums
to 1 minus the attention to the begin and end tokens.

Only the rows of the queries leave the device, and only as numbers for each word.

Shape letters: B batch, L length, N layers, H heads, Q all queries (in `NBHQK` query and key positions), F queries of a
batch, P tokens of a word, U units: the words of a window, or its positions.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.analysis import maps
from ag_jax.models.encoder import Ports
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.probing.encoding import EncodedWindow

From = Literal["mean", "first"]
To = Literal["sum", "mean"]
Unit = Literal["word", "position"]
LENGTH_STEP = 32  # rows are padded to multiples of it, so that few programs are compiled
QUERIES = 64  # least number of queries of a batch, which is padded to a power of two for the same reason
BYTES = 2**28  # of attention weights on the device at a time; decides how many windows a batch has


@dataclasses.dataclass(frozen=True)
class Convention:
    """How attention between tokens becomes attention between words.

    from_: attention from a word: the `mean` over its tokens, or that of its `first` token.
    to: attention to a word: the `sum` over its tokens, or the `mean`, so that words of many tokens have no advantage.
    transposed: whether the numbers of a query are the attention of all words to its word, instead of the attention of
        its word to all words.
    """

    from_: From = "mean"
    to: To = "sum"
    transposed: bool = False


@dataclasses.dataclass(frozen=True)
class Rows:
    """Attention of the queries of a batch.

    queries: indices of the queries, `F`.
    weights_FNHU: for each query, layer and head the attention to each unit. U is the padded length in tokens, also for
        words; the attention to units that the window lacks is 0.
    """

    queries: np.ndarray
    weights_FNHU: np.ndarray


def attention_rows(
    model: PretrainingModel,
    params: Any,
    windows: Sequence[EncodedWindow],
    window_Q: np.ndarray,
    at_Q: np.ndarray,
    unit: Unit = "word",
    convention: Convention = Convention(),
) -> Iterator[Rows]:
    """Yield the attention rows of all queries, in batches of windows of similar length, so not in the order of queries.

    windows: the texts.
    window_Q, at_Q: for each query its window, and its word in that window.
    unit: what a row has a number for: `word`, or `position` of the window, where the begin and end tokens are units,
        too.
    convention: how tokens become words; with `position`, how the tokens of the query's word become one row.
    """
    queries_of = [np.zeros(0, np.int64)] * len(windows)
    order = np.argsort(window_Q, kind="stable")
    found, begins = np.unique(window_Q[order], return_index=True)
    for window, queries in zip(found, np.split(order, begins[1:]), strict=True):
        queries_of[window] = queries
    lengths = [_up(len(window.ids), LENGTH_STEP) for window in windows]
    for length in sorted(set(lengths)):
        members = [index for index in found if lengths[index] == length]
        for chunk in _chunks(members, [len(queries_of[index]) for index in members], length, model):
            queries = np.concatenate([queries_of[index] for index in chunk])
            place = {window: row for row, window in enumerate(chunk)}
            batch = _batch([windows[index] for index in chunk], length, unit, convention)
            asked = _asked(windows, window_Q[queries], at_Q[queries], place, convention)
            fields = {
                "tokens": batch["tokens_BL"],
                "segment_ids": batch["segments_BL"],
                "token_type_ids": np.zeros_like(batch["tokens_BL"]),
            }
            # Apart from the gathering, whose shapes vary more: the encoder is compiled once for each shape of a batch.
            weights_NBHQK = maps.attention_weights(model, params, fields, Ports())
            weights_FNHU = np.asarray(_gathered(weights_NBHQK, batch, asked, convention.transposed))[: len(queries)]
            if not np.isfinite(weights_FNHU).all():
                raise ValueError("the model's attention is NaN or infinite: give a model whose weights are finite")
            yield Rows(queries, weights_FNHU)


def _chunks(
    windows: Sequence[int], queries: Sequence[int], length: int, model: PretrainingModel
) -> Iterator[list[int]]:
    """Split windows of one length into batches whose attention weights need at most `BYTES`, or one window does.

    queries: number of queries of each window. All batches have at most the same number of windows, a power of two.
    """
    heads = model.config.layers * model.config.heads
    of_window, of_query = 4 * heads * length**2, 2 * 4 * heads * length
    most = max(1, BYTES // (of_window + of_query * (sum(queries) // max(1, len(queries)) + 1)))
    most = 1 << (most.bit_length() - 1)
    for begin in range(0, len(windows), most):
        yield list(windows[begin : begin + most])


def _up(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def _batch(windows: Sequence[EncodedWindow], length: int, unit: Unit, convention: Convention) -> dict[str, np.ndarray]:
    """Return the tokens of a batch, the unit of each token and its share in that unit's number.

    The number of rows is a power of two, so that few programs are compiled; those without a window are padding.
    """
    rows = 1 << (len(windows) - 1).bit_length()
    batch = {
        "tokens_BL": np.zeros((rows, length), np.int32),
        "segments_BL": np.zeros((rows, length), np.int32),
        "unit_BL": np.full((rows, length), length, np.int32),  # `length` is no unit
        "share_BL": np.zeros((rows, length), np.float32),
    }
    for row, window in enumerate(windows):
        size, counts = len(window.ids), np.diff(window.starts)
        batch["tokens_BL"][row, :size] = window.ids
        batch["segments_BL"][row, :size] = 1
        if unit == "position":
            batch["unit_BL"][row, :size] = np.arange(size)
            batch["share_BL"][row, :size] = 1.0
            continue
        inside = slice(1, size - 1)
        batch["unit_BL"][row, inside] = np.repeat(np.arange(len(counts)), counts)
        batch["share_BL"][row, inside] = np.concatenate(
            [_shares(int(count), convention, is_from=convention.transposed) for count in counts]
        )
    return batch


def _shares(count: int, convention: Convention, *, is_from: bool) -> np.ndarray:
    """Return the share of each of a word's tokens in the word's number.

    is_from: whether attention comes from the word; otherwise it goes to the word.
    """
    if is_from and convention.from_ == "first":
        return np.eye(1, count, dtype=np.float32)[0]
    averaged = is_from or convention.to == "mean"
    return np.full(count, 1.0 / count if averaged else 1.0, np.float32)


def _asked(
    windows: Sequence[EncodedWindow],
    window_F: np.ndarray,
    at_F: np.ndarray,
    place: dict[int, int],
    convention: Convention,
) -> dict[str, np.ndarray]:
    """Return where the rows of the queries are in a batch: row, positions of the word's tokens and their shares."""
    spans = [windows[window].starts[at : at + 2] for window, at in zip(window_F, at_F, strict=True)]
    pieces = max(int(end - begin) for begin, end in spans)
    pieces = 1 << (pieces - 1).bit_length()
    size = max(QUERIES, 1 << (len(spans) - 1).bit_length())
    asked = {
        "row_F": np.zeros(size, np.int32),
        "position_FP": np.zeros((size, pieces), np.int32),
        "share_FP": np.zeros((size, pieces), np.float32),
    }
    for index, (begin, end) in enumerate(spans):
        count = int(end - begin)
        asked["row_F"][index] = place[int(window_F[index])]
        asked["position_FP"][index, :count] = np.arange(begin, end)
        asked["share_FP"][index, :count] = _shares(count, convention, is_from=not convention.transposed)
    return asked


@functools.partial(jax.jit, static_argnames=("transposed",))
def _gathered(
    weights_NBHQK: jax.Array, batch: dict[str, jax.Array], asked: dict[str, jax.Array], transposed: bool
) -> jax.Array:
    """Return the attention of the queries to each unit, `FNHU`, with as many units as tokens."""
    own_FNHL: Any = 0.0
    for piece in range(asked["position_FP"].shape[1]):
        position_F, share_F = asked["position_FP"][:, piece], asked["share_FP"][:, piece]
        # Indices on both sides of a slice put their common axis, F, in front.
        if transposed:
            rows_FNHL = weights_NBHQK[:, asked["row_F"], :, :, position_F]
        else:
            rows_FNHL = weights_NBHQK[:, asked["row_F"], :, position_F, :]
        own_FNHL = own_FNHL + share_F[:, None, None, None] * rows_FNHL
    one_hot_BLU = jax.nn.one_hot(batch["unit_BL"], weights_NBHQK.shape[-1], dtype=jnp.float32)
    to_unit_BLU = batch["share_BL"][:, :, None] * one_hot_BLU
    # Products with 0 and 1 are exact, so that words with equal attention stay tied.
    return jnp.einsum("fnhl,flu->fnhu", own_FNHL, to_unit_BLU[asked["row_F"]], precision=jax.lax.Precision.HIGHEST)

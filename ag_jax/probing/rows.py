"""Attention of every head from, or to, chosen words: one number for each word, or each token, of the text.

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
    weights: for each kind of unit, `FNHU`: for each query, layer and head the attention to each unit. U is the padded
        length in tokens, also for words; the attention to units that the window lacks is 0.
    """

    queries: np.ndarray
    weights: dict[Unit, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Windows that are computed together, with their queries.

    windows: their indices.
    queries: indices of their queries, `F`.
    length: tokens of a row, with padding.
    """

    windows: list[int]
    queries: np.ndarray
    length: int


def attention_rows(
    model: PretrainingModel,
    params: Any,
    windows: Sequence[EncodedWindow],
    window_Q: np.ndarray,
    at_Q: np.ndarray,
    units: Sequence[Unit] = ("word",),
    convention: Convention = Convention(),
) -> Iterator[Rows]:
    """Yield the attention rows of all queries, in batches of windows of similar length, so not in the order of queries.

    windows: the texts.
    window_Q, at_Q: for each query its window, and its word in that window.
    units: what a row has a number for: every `word`, or every `position` of the window, where the begin and end tokens
        are units, too. Several kinds of unit share the forward passes.
    convention: how tokens become words; with `position`, how the tokens of the query's word become one row.
    """
    for chunk in chunks(windows, window_Q, model):
        texts = [windows[index] for index in chunk.windows]
        fields = batch_of(texts, chunk.length)
        place = {window: row for row, window in enumerate(chunk.windows)}
        asked = _asked(windows, window_Q[chunk.queries], at_Q[chunk.queries], place, convention)
        # Apart from the gathering, whose shapes vary more: the encoder is compiled once for each shape of a batch.
        weights_NBHQK = maps.attention_weights(model, params, fields, Ports())
        found = {}
        for unit in units:
            shares = _unit_of_tokens(texts, fields["tokens"].shape, unit, convention)
            weights_FNHU = np.asarray(_gathered(weights_NBHQK, shares, asked, convention.transposed))
            found[unit] = weights_FNHU[: len(chunk.queries)]
            if not np.isfinite(found[unit]).all():
                raise ValueError("the model's attention is NaN or infinite: give a model whose weights are finite")
        yield Rows(chunk.queries, found)


def chunks(windows: Sequence[EncodedWindow], window_Q: np.ndarray, model: PretrainingModel) -> Iterator[Chunk]:
    """Split the windows that have queries, by their lengths, into batches whose attention weights need at most `BYTES`.

    A batch has at least one window. The batches of one length have at most the same number of windows, a power of two.
    """
    order = np.argsort(window_Q, kind="stable")
    found, begins = np.unique(window_Q[order], return_index=True)
    queries_of = dict(zip(found.tolist(), np.split(order, begins[1:]), strict=True))
    lengths = {index: _up(len(windows[index].ids), LENGTH_STEP) for index in queries_of}
    for length in sorted(set(lengths.values())):
        members = [index for index in queries_of if lengths[index] == length]
        heads = model.config.layers * model.config.heads
        of_window, of_query = 4 * heads * length**2, 2 * 4 * heads * length
        mean = sum(len(queries_of[index]) for index in members) // len(members) + 1  # queries of a window
        most = max(1, BYTES // (of_window + of_query * mean))
        most = 1 << (most.bit_length() - 1)
        for begin in range(0, len(members), most):
            taken = members[begin : begin + most]
            yield Chunk(taken, np.concatenate([queries_of[index] for index in taken]), length)


def _up(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def batch_of(windows: Sequence[EncodedWindow], length: int) -> dict[str, np.ndarray]:
    """Return windows as a batch that an encoder reads.

    The number of rows is a power of two, so that few programs are compiled; those without a window are padding.
    """
    shape = 1 << (len(windows) - 1).bit_length(), length
    batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "segment_ids", "token_type_ids")}
    for row, window in enumerate(windows):
        batch["tokens"][row, : len(window.ids)] = window.ids
        batch["segment_ids"][row, : len(window.ids)] = 1
    return batch


def _unit_of_tokens(
    windows: Sequence[EncodedWindow], shape: tuple[int, ...], unit: Unit, convention: Convention
) -> dict[str, np.ndarray]:
    """Return the unit of each token of a batch and its share in that unit's number, of the shape of the tokens."""
    length = shape[1]
    found = {"unit_BL": np.full(shape, length, np.int32), "share_BL": np.zeros(shape, np.float32)}  # `length`: no unit
    for row, window in enumerate(windows):
        size, counts = len(window.ids), np.diff(window.starts)
        if unit == "position":
            found["unit_BL"][row, :size] = np.arange(size)
            found["share_BL"][row, :size] = 1.0
            continue
        inside = slice(1, size - 1)
        found["unit_BL"][row, inside] = np.repeat(np.arange(len(counts)), counts)
        found["share_BL"][row, inside] = _shares(counts, convention, is_from=convention.transposed)
    return found


def _shares(counts: np.ndarray, convention: Convention, *, is_from: bool) -> np.ndarray:
    """Return the share of each token in the number of its word, for the tokens of words one after the other.

    counts: number of tokens of each word.
    is_from: whether attention comes from the words; otherwise it goes to them.
    """
    if is_from and convention.from_ == "first":
        shares = np.zeros(counts.sum(), np.float32)
        shares[np.cumsum(counts) - counts] = 1.0
        return shares
    averaged = is_from or convention.to == "mean"
    return np.repeat((1.0 / counts if averaged else np.ones(len(counts))).astype(np.float32), counts)


def _asked(
    windows: Sequence[EncodedWindow],
    window_F: np.ndarray,
    at_F: np.ndarray,
    place: dict[int, int],
    convention: Convention,
) -> dict[str, np.ndarray]:
    """Return where the rows of the queries are in a batch: row, positions of the word's tokens and their shares."""
    queries = list(zip(window_F.tolist(), at_F.tolist(), strict=True))
    begin_F = np.array([windows[window].starts[at] for window, at in queries])
    count_F = np.array([windows[window].starts[at + 1] for window, at in queries]) - begin_F
    pieces = 1 << (int(count_F.max()) - 1).bit_length()
    size = max(QUERIES, 1 << (len(queries) - 1).bit_length())
    asked = {
        "row_F": np.zeros(size, np.int32),
        "position_FP": np.zeros((size, pieces), np.int32),
        "share_FP": np.zeros((size, pieces), np.float32),
    }
    asked["row_F"][: len(queries)] = [place[window] for window, _ in queries]
    query, piece = np.nonzero(np.arange(pieces) < count_F[:, None])  # the tokens of the words, one after the other
    asked["position_FP"][query, piece] = begin_F[query] + piece
    asked["share_FP"][query, piece] = _shares(count_F, convention, is_from=not convention.transposed)
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

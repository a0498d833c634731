"""Attention of every head from, or to, chosen words: one number for each word, or each token, of the text.

A model attends between tokens; a probe asks about words. As in Clark et al. 2019 (section 4.1), the attention *to* a
word is the sum over its tokens, and the attention *from* a word is the mean over its tokens, by default. A row over
words then sums to 1 minus the attention to the begin and end tokens.

Only the rows of the queries leave the device. The host sums them over the tokens of each word, while the device
computes the next batch.

Shape letters: B batch, L length, N layers, H heads, Q all queries (in `NBHQK` query and key positions), F queries of a
batch, P tokens of a word, U units: the words of a window, or its positions.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np

from ag_jax.analysis import maps
from ag_jax.analysis.heads.encoding import EncodedWindow
from ag_jax.data.probes.queries import From, To
from ag_jax.models.encoder import Ports
from ag_jax.models.masked_lm import PretrainingModel

Unit = Literal["word", "position"]
LENGTH_STEP = 32  # rows are padded to multiples of it, so that few programs are compiled
QUERIES = 64  # least number of queries of a batch, which is padded to a power of two for the same reason
# Bytes of the attention weights of a batch, which decide how many windows it has; two batches are on the device at a
# time. On a CPU, at most 32 MiB: the GNU C library gives back larger blocks, and the system zeroes them anew each time.
BYTES = {"cpu": 2**25}
OTHER_BYTES = 2**28  # on other devices


@dataclasses.dataclass(frozen=True)
class Convention:
    """How attention between tokens becomes attention between words.

    from_: attention from a word: the `mean` over its tokens, or that of its `first` token.
    to: attention to a word: the `sum` over its tokens, or the `mean`, so that words of many tokens have no advantage.
    transposed: whether a row has the attention *to* the query's word from every word, instead of *from* the query's
        word to every word.
    """

    from_: From = "mean"
    to: To = "sum"
    transposed: bool = False

    @property
    def asked(self) -> From | To:
        """How attention of the tokens of the query's word becomes one vector: `sum`, `mean` or `first`."""
        return self.to if self.transposed else self.from_

    @property
    def others(self) -> From | To:
        """How attention of the tokens of each word of the text becomes one number: `sum`, `mean` or `first`."""
        return self.from_ if self.transposed else self.to


@dataclasses.dataclass(frozen=True)
class Rows:
    """Attention of every head from (or, transposed, to) the word of each query of a batch.

    queries: indices of the queries, `F`.
    weights: for each kind of unit, `FNHU`: for each query, layer and head the attention to each unit. U is the padded
        length in tokens, also for words; the attention to units that the window lacks is 0.
    """

    queries: np.ndarray
    weights: dict[Unit, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A batch of windows that are computed together, with the queries about them.

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
    """Yield the attention of all heads for all queries, by batches of windows of similar length, so not in order.

    windows: the texts.
    window_Q, at_Q: for each query its window, and its word in that window.
    units: `word` for one number per word, `position` for one per token of the window, begin and end tokens included.
        Both use the same forward passes.
    convention: how tokens become words; with `position`, how the tokens of the query's word become one row.
    """

    def start(chunk: Chunk) -> jax.Array:
        """Start the computation of a batch on the device; return its result without waiting for it."""
        texts = [windows[index] for index in chunk.windows]
        fields = batch_of(texts, chunk.length)
        place = {window: row for row, window in enumerate(chunk.windows)}
        places = _places_of_queries(windows, window_Q[chunk.queries], at_Q[chunk.queries], place, convention.asked)
        # Apart from the gathering, whose shapes vary more: the encoder is compiled once for each shape of a batch.
        weights_NBHQK = maps.attention_weights(model, params, fields, Ports())
        return _gather_rows(weights_NBHQK, places, convention.transposed)

    def finish(chunk: Chunk, started: jax.Array) -> Rows:
        """Wait for the result of a batch, and turn attention to tokens into attention to words."""
        weights_FNHL = np.asarray(started)[: len(chunk.queries)]
        if not np.isfinite(weights_FNHL).all():
            raise ValueError("the model's attention is NaN or infinite: give a model whose weights are finite")
        weights: dict[Unit, np.ndarray] = {"position": weights_FNHL} if "position" in units else {}
        if "word" in units:
            weights["word"] = _to_words(weights_FNHL, windows, window_Q[chunk.queries], convention.others)
        return Rows(chunk.queries, weights)

    # The device computes a batch while the caller scores the one before.
    before: tuple[Chunk, jax.Array] | None = None
    for chunk in chunks(windows, window_Q, model):
        started = chunk, start(chunk)
        if before:
            yield finish(*before)
        before = started
    if before:
        yield finish(*before)


def chunks(windows: Sequence[EncodedWindow], window_Q: np.ndarray, model: PretrainingModel) -> Iterator[Chunk]:
    """Group the windows that have queries into batches, by their padded lengths.

    Batches of one length have at most the same number of windows: a power of two, estimated from the bound of `BYTES`
    and the mean number of queries of a window, and at least one.
    """
    order = np.argsort(window_Q, kind="stable")
    window_of_queries, begins = np.unique(window_Q[order], return_index=True)
    queries_of = dict(zip(window_of_queries.tolist(), np.split(order, begins[1:]), strict=True))
    size = BYTES.get(jax.default_backend(), OTHER_BYTES)
    lengths = {index: _up(len(windows[index].ids), LENGTH_STEP) for index in queries_of}
    for length in sorted(set(lengths.values())):
        members = [index for index in queries_of if lengths[index] == length]
        heads = model.config.layers * model.config.heads
        of_window, of_query = 4 * heads * length**2, 2 * 4 * heads * length
        mean = sum(len(queries_of[index]) for index in members) // len(members) + 1  # queries of a window
        most = max(1, size // (of_window + of_query * mean))
        most = 1 << (most.bit_length() - 1)
        for begin in range(0, len(members), most):
            part = members[begin : begin + most]
            yield Chunk(part, np.concatenate([queries_of[index] for index in part]), length)


def _up(number: int, step: int) -> int:
    """Return the smallest multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def batch_of(windows: Sequence[EncodedWindow], length: int) -> dict[str, np.ndarray]:
    """Return tokenised windows as a padded batch that an encoder reads.

    The number of rows is a power of two, so that few programs are compiled; those without a window are padding.
    """
    shape = 1 << (len(windows) - 1).bit_length(), length
    batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "segment_ids", "token_type_ids")}
    for row, window in enumerate(windows):
        batch["tokens"][row, : len(window.ids)] = window.ids
        batch["segment_ids"][row, : len(window.ids)] = 1
    return batch


def _places_of_queries(
    windows: Sequence[EncodedWindow],
    window_F: np.ndarray,
    word_F: np.ndarray,
    place: dict[int, int],
    how: From | To,
) -> dict[str, np.ndarray]:
    """Return the batch row of each query, and the positions and weights of its word's tokens, as arrays by name."""
    queries = list(zip(window_F.tolist(), word_F.tolist(), strict=True))
    begin_F = np.array([windows[window].starts[word] for window, word in queries])
    count_F = np.array([windows[window].starts[word + 1] for window, word in queries]) - begin_F
    pieces = 1 << (int(count_F.max()) - 1).bit_length()
    size = max(QUERIES, 1 << (len(queries) - 1).bit_length())
    places = {
        "row_F": np.zeros(size, np.int32),
        "position_FP": np.zeros((size, pieces), np.int32),
        "share_FP": np.zeros((size, pieces), np.float32),
    }
    places["row_F"][: len(queries)] = [place[window] for window, _ in queries]
    query, piece = np.nonzero(np.arange(pieces) < count_F[:, None])  # the tokens of the words, one after the other
    places["position_FP"][query, piece] = begin_F[query] + piece
    share_P = {"sum": 1.0, "mean": 1.0 / count_F[query], "first": piece == 0}[how]
    places["share_FP"][query, piece] = share_P
    return places


def _to_words(
    weights_FNHL: np.ndarray, windows: Sequence[EncodedWindow], window_F: np.ndarray, how: From | To
) -> np.ndarray:
    """Turn attention of F queries to L tokens, `FNHL`, into attention to words, `FNHU`, padded with 0 to U = L.

    window_F: the window of each query; queries of the same window stand together.
    """
    weights_FNHU = np.zeros_like(weights_FNHL)
    begins = np.flatnonzero(np.diff(window_F, prepend=-1)).tolist()
    for begin, end in itertools.pairwise([*begins, len(window_F)]):
        starts = windows[window_F[begin]].starts
        rows_FNHL = weights_FNHL[begin:end, ..., : starts[-1]]
        if how == "first":
            words_FNHU = rows_FNHL[..., starts[:-1]]
        else:
            # Sums in the order of the tokens, so that words with equal attention stay tied.
            words_FNHU = np.add.reduceat(rows_FNHL, starts[:-1], axis=-1)
            if how == "mean":
                words_FNHU /= np.diff(starts).astype(np.float32)
        weights_FNHU[begin:end, ..., : len(starts) - 1] = words_FNHU
    return weights_FNHU


@functools.partial(jax.jit, static_argnames=("transposed",))
def _gather_rows(weights_NBHQK: jax.Array, places: dict[str, jax.Array], transposed: bool) -> jax.Array:
    """Return attention from F queries' words to L tokens, `FNHL`; with `transposed`, from the tokens to the words."""
    sum_FNHL: Any = 0.0
    for piece in range(places["position_FP"].shape[1]):
        position_F, share_F = places["position_FP"][:, piece], places["share_FP"][:, piece]
        # Indices on both sides of a slice put their common axis, F, in front.
        if transposed:
            rows_FNHL = weights_NBHQK[:, places["row_F"], :, :, position_F]
        else:
            rows_FNHL = weights_NBHQK[:, places["row_F"], :, position_F, :]
        sum_FNHL = sum_FNHL + share_F[:, None, None, None] * rows_FNHL
    return sum_FNHL

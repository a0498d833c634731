"""Mix the rows of several sources: `data.source=books/:3,news/:1` takes three rows in four from `books/`.

A weight is a number after the last colon of a part of `data.source`. Either all parts have one or none has. Without
weights, the parts are one text, read one after the other. With weights,

* every source is prepared for itself, so it holds out its own part for validation, and a row never has text of two
  sources. Only the tokenizer is trained on all of them, on equal amounts of text; it does not depend on the weights.
* the share of a source is its weight divided by the sum of all weights. It is a share of the rows that training draws,
  exact to less than two rows for each source, and to 2^-23 of the rows drawn so far (`SCALE`).
* every source has epochs of its own: its rows come in a random order, and after its last row it begins anew in another
  order. So a small source with a large weight is read more often than a large source.
* validation reads the held-out rows of all sources together, whatever the weights.

The source of a row is a function of the row's number g among all rows drawn in training, and so is the row's place in
the order of its source; see `assign`.

Shape letters: B batch, K sources, P names of pointers.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ag_jax.data import order, randomness
from ag_jax.data.config import DataConfig
from ag_jax.data.records import sources
from ag_jax.data.records.files import warn_once
from ag_jax.data.store import Rows

SCALE = 2**24  # shares are whole multiples of its inverse, so that they are exact on every machine


def components(config: DataConfig, identity: Callable[[str], list[Any]] = sources.identity) -> list[DataConfig]:
    """Return the settings of each source of a mixture, as if it were the only source.

    Returns `[config]` if there are no weights.

    identity: returns what identifies the content of a source, as `sources.identity`.

    Raises ValueError for weights in `data.validation_source`, for weights with `data.max_words`, and for a file that is
    in two sources, or twice in a text that holds out a part, because it would be trained on what is held out. Warns of
    files that are both in `data.validation_source` and in `data.source`.
    """
    if config.validation_source and sources.weights(config.validation_source):
        raise ValueError(
            f"data.validation_source={config.validation_source!r} has weights, but validation reads every row once: "
            "leave the weights out"
        )
    if config.validation_source:
        _warn_of_common(identity(config.source), identity(config.validation_source))
    if sources.weights(config.source) is None:
        if len(sources.parts(config.source)) > 1 and not config.validation_source:
            _check_once(config.source, identity(config.source))
        return [config]
    if config.max_words is not None:
        raise ValueError(
            f"data.max_words={config.max_words} ends a text that is read in order, but data.source={config.source!r} "
            "has weights: leave out the weights or data.max_words"
        )
    paths = sources.parts(config.source)
    skipped = sources.skipped(config.source, config.skip_words)
    owner: dict[str, str] = {}
    for path in paths:
        for item in identity(path):
            if (other := owner.setdefault(sources.content(item), path)) != path:
                raise ValueError(
                    f"data.source={config.source!r}: {item[0]} is in two of the sources, {other!r} and {path!r}, so "
                    "that one would be trained on what the other holds out: name it in one of them"
                )
    return [
        dataclasses.replace(config, source=path, skip_words=(words,) if words else ())
        for path, words in zip(paths, skipped, strict=True)
    ]


def _check_once(source: str, items: list[Any]) -> None:
    """Raise ValueError if `items`, the identities of the files of a source, contain the same file twice."""
    counts = collections.Counter(map(sources.content, items))
    if twice := [item[0] for item in items if counts[sources.content(item)] > 1]:
        raise ValueError(
            f"data.source={source!r} has {twice[0]} twice, so that one copy would be trained on what is held "
            "out of the other: name it once; data.duplicates repeats all rows"
        )


def _warn_of_common(trained_on: list[Any], held_out: list[Any]) -> None:
    """Warn of files that, by their identities, are both in `data.source` and in `data.validation_source`."""
    contents = set(map(sources.content, trained_on))
    if common := [item[0] for item in held_out if sources.content(item) in contents]:
        warn_once(
            f"data.source and data.validation_source have {len(common):,} files in common, the first being "
            f"{common[0]}: their loss is that of text which the model is trained on"
        )


def shares(config: DataConfig) -> tuple[float, ...]:
    """Return the share of each source in the rows that training draws; (1,) for text without weights.

    Raises ValueError for a share that is too small to be ever drawn.
    """
    weights = sources.weights(config.source)
    if weights is None:
        return (1.0,)
    fractions = tuple(weight / sum(weights) for weight in weights)
    for path, share in zip(sources.parts(config.source), fractions, strict=True):
        if share * SCALE < 1:
            raise ValueError(
                f"data.source={config.source!r} gives {path!r} a share of {share:.2g} of the rows, expected at least "
                f"{1 / SCALE:.2g}: raise its weight, or leave it out"
            )
    return fractions


def assign(number_B: np.ndarray, share_K: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return (index of the source, number of earlier rows of this source) of the drawn rows `number_B`, as two arrays.

    number_B: number g of each row among all rows drawn in training.
    share_K: shares of the sources, with sum 1.

    Of the first n rows, floor(n s + 1/2) are from the first source, where s is its share; the others are divided among
    the other sources in the same way, with s as the share in what is left.
    """
    source_B = np.full(len(number_B), len(share_K) - 1)
    # The number of each row among the rows that are not of the sources so far.
    rest_B, place_B = np.array(number_B, np.int64), np.array(number_B, np.int64)
    undecided_B = np.ones(len(number_B), bool)
    for source, share in enumerate(share_K[:-1]):
        # Counts are computed with whole multiples of 1 / SCALE, so that they are the same on every machine.
        scaled = round(share / sum(share_K[source:]) * SCALE)
        before_B, after_B = ((rest_B + more) * scaled + SCALE // 2 >> 24 for more in (0, 1))
        is_mine_B = undecided_B & (after_B > before_B)  # the number of rows of the source grows with this row
        source_B[is_mine_B], place_B[is_mine_B] = source, before_B[is_mine_B]
        undecided_B &= ~is_mine_B
        rest_B -= before_B
        place_B[undecided_B] = rest_B[undecided_B]
    return source_B, place_B


class MixedRows:
    """Rows of several sources, numbered one source after the other, with the attributes and methods of `Rows`.

    parts: the rows of each source.
    share_K: share of each source in the rows that training draws.
    """

    def __init__(self, parts: Sequence[Rows], share_K: Sequence[float]):
        self.parts, self.share_K = tuple(parts), tuple(share_K)
        self.has_pairs, self.is_packed = parts[0].has_pairs, parts[0].is_packed
        self.tokens = Joined([part.tokens for part in parts])
        if self.has_pairs:
            self.second_start = Joined([part.second_start for part in parts])
            self.is_random_next = Joined([part.is_random_next for part in parts])
        self._ends_K = np.cumsum([len(part) for part in parts])
        # For each source, two permutations for the epochs that a batch may span, and one for another reader.
        self._permutation = functools.lru_cache(maxsize=3 * len(parts))(randomness.permutation.__wrapped__)

    def __len__(self) -> int:
        return int(self._ends_K[-1])

    def drawn(self, number_B: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (index in the corpus, epoch of its source), two arrays, of the rows with numbers `number_B` among all.

        In epoch e of source k, the rows of the source come in the order permutation(seed, e, k).
        """
        source_B, place_B = assign(number_B, self.share_K)
        example_B, epoch_B = np.empty(len(number_B), np.int64), np.empty(len(number_B), np.int64)
        for source, part in enumerate(self.parts):
            is_mine_B = source_B == source
            epochs, places = np.divmod(place_B[is_mine_B], len(part))
            rows = np.empty(len(places), np.int64)
            for epoch in np.unique(epochs):
                is_of_epoch = epochs == epoch
                rows[is_of_epoch] = self._permutation(len(part), seed, int(epoch), source)[places[is_of_epoch]]
            epoch_B[is_mine_B] = epochs
            example_B[is_mine_B] = self._ends_K[source] - len(part) + rows
        return example_B, epoch_B

    def gather(self, row_B: np.ndarray, length: int, *, pad: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids `BL` (batch, length) and the lengths `B` of rows, as `Rows.gather` does."""
        tokens_BL, lengths_B = np.empty((len(row_B), length), np.int32), np.empty(len(row_B), np.int64)
        for part, is_mine_B, rows in self._places(row_B):
            tokens_BL[is_mine_B], lengths_B[is_mine_B] = part.gather(rows, length, pad=pad)
        return tokens_BL, lengths_B

    def segment_ids(self, row_B: np.ndarray, length: int) -> np.ndarray:
        """Return the segment ids of rows, int32 `BL` (batch, length), as `Rows.segment_ids` does."""
        segments_BL = np.empty((len(row_B), length), np.int32)
        for part, is_mine_B, rows in self._places(row_B):
            segments_BL[is_mine_B] = part.segment_ids(rows, length)
        return segments_BL

    def gather_pointers(self, row_B: np.ndarray, length: int) -> np.ndarray:
        """Return the pointers of rows, int16 `BPL` (batch, names, length), as `Rows.gather_pointers` does."""
        offsets_BPL = np.empty((len(row_B), len(self.parts[0].pointers), length), np.int16)
        for part, is_mine_B, rows in self._places(row_B):
            offsets_BPL[is_mine_B] = part.gather_pointers(rows, length)
        return offsets_BPL

    def row(self, number: int) -> np.ndarray:
        """Return the token ids of a row."""
        [(part, _, [row])] = self._places(np.array([number]))
        return part.row(int(row))

    def counts(self, vocabulary_size: int) -> np.ndarray:
        """Return how often each token id occurs in all sources, whatever their shares: int64 `V` (vocabulary)."""
        return np.sum([part.counts(vocabulary_size) for part in self.parts], axis=0)

    def _places(self, row_B: np.ndarray) -> list[tuple[Rows, np.ndarray, np.ndarray]]:
        """Return [(rows of a source, mask of its rows in `row_B`, their indices in the source), ...]."""
        source_B = np.searchsorted(self._ends_K, row_B, side="right")
        return [
            (part, source_B == source, row_B[source_B == source] - (self._ends_K[source] - len(part)))
            for source, part in enumerate(self.parts)
            if (source_B == source).any()
        ]


class Joined:
    """View of several one-dimensional arrays as their concatenation, which is read with arrays of indices."""

    def __init__(self, arrays: Sequence[Any]):
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        index = np.asarray(index)
        number = np.searchsorted(self._ends, index, side="right")
        values = np.empty(index.shape, np.int64)
        for place, array in enumerate(self._arrays):
            is_mine = number == place
            if is_mine.any():
                values[is_mine] = array[index[is_mine] - (self._ends[place] - len(array))]
        return values


def join(parts: Sequence[Rows], share_K: Sequence[float]) -> Rows | MixedRows:
    """Return the rows of all sources as one object: `MixedRows`, or the rows of the only source."""
    return parts[0] if len(parts) == 1 else MixedRows(parts, share_K)


def drawn(rows: Rows | MixedRows, number_B: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (index in the corpus, epoch), two arrays, of the rows with numbers `number_B` among all drawn in training.

    number_B: numbers of the rows among all rows drawn in training (`BatchSizes.numbers`).
    """
    if isinstance(rows, MixedRows):
        return rows.drawn(number_B, seed)
    return order.drawn(len(rows), number_B, seed)


def sample(rows: Any, count: int) -> np.ndarray:
    """Return about the first `count` tokens of a split, taken from each source of a mixture by its share.

    They are fewer if that is enough to read every source once. As in training, a source with fewer tokens than its
    share is repeated.
    """
    if not isinstance(rows, MixedRows):
        return rows.tokens[:count]
    pairs = list(zip(rows.parts, rows.share_K, strict=True))
    count = min(count, max(math.ceil(len(part.tokens) / share) for part, share in pairs))
    counts = [max(1, round(count * share)) for _, share in pairs]
    return np.concatenate([np.resize(part.tokens[:most], most) for (part, _), most in zip(pairs, counts, strict=True)])

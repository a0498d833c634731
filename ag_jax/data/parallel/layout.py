"""The layout of a parallel corpus: which pairs are for training, which for validation, and how they become rows.

Without a `validation_source`, the share `validation_fraction` of the pairs is held out for validation, by a hash of the
source text: translations of the same text are never in both parts, and a pair stays in its part if others are added.

Of both parts, pairs are left out that

    with null texts      have null or no text in a field of their record; only with `skip_null`, otherwise an error
    without text         have no word on one side or on both
    of unequal lengths   have more than `max_words_ratio` times as many words on one side as on the other
    too long             have a side of more than `max_tokens` tokens

Words are what spaces separate. A pair to which several reasons apply counts for the first one. Test sets
(`pairs.read_test_set`) keep all pairs.
"""

import dataclasses
import itertools
import math
import pathlib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from ag_jax.data import store
from ag_jax.data.checksums import CheckedArray, Entry, KnownContent
from ag_jax.data.config import DataConfig
from ag_jax.data.layout import SPLITS, UNDECIDED, Encoded, Part, Piece, parts_of
from ag_jax.data.parallel import alignments, pairs
from ag_jax.data.parallel.alignments import AlignedPair
from ag_jax.data.parallel.pairs import Pair
from ag_jax.data.records import formats
from ag_jax.data.store import ABSENT, WRITTEN_TOGETHER, Block, Row, Rows, TextStore
from ag_jax.data.tokenizers import SpecialTokens, Tokenizer

WITHOUT_TEXT, UNEQUAL, TOO_LONG = REASONS = ("without text", "of unequal lengths", "too long")
SORTED_TOGETHER = 1024  # pairs that are packed in the order of their lengths


class PairRows:
    """The rows of the source texts and of their translations.

    source: source sides; every text ends with the end token.
    target: target sides, as many, with the translation of each text at the same place.
    """

    is_packed: bool

    def __init__(self, directory: pathlib.Path, entry: Entry | None = None):
        self.source, self.target = (Rows(directory / side, entry) for side in Pairs.sides)

    def __len__(self) -> int:
        return len(self.target)

    @property
    def tokens(self) -> np.ndarray | CheckedArray:
        """The token ids of all target rows, concatenated: the tokens that a translation model predicts."""
        return self.target.tokens


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs of a parallel corpus.

    config: the settings of the data.
    """

    config: DataConfig

    sides: ClassVar[tuple[str, ...]] = ("source", "target")
    without_tokens: ClassVar[str] = WITHOUT_TEXT

    @property
    def pointers(self) -> tuple[str, ...]:
        """With `data.alignments` the name `alignment`: of target tokens, the number of a token of the source text."""
        return ("alignment",) if self.config.alignments else ()

    def identity(self) -> list[Any]:
        """Return settings and versions of files that are equal only for the same pieces; made without reading text."""
        validation = pairs.validation(self.config)
        held_out = validation.identity() if validation else self.config.validation_fraction
        skip_null = ["skip_null"] if self.config.skip_null else []
        training = pairs.training(self.config).identity()
        return [self.config.format, training, held_out, self.config.max_words_ratio, *skip_null]

    def files(self) -> dict[str, list[tuple[str, pathlib.Path | KnownContent]]]:
        """Return {setting: [(name, path), ...]} of the files of the pairs."""
        validation = pairs.validation(self.config)
        return pairs.training(self.config).files() | (validation.files() if validation else {})

    def characters(self) -> float:
        """Return infinity: how many characters the pairs have is only known when they are read."""
        return math.inf

    def training_texts(self) -> Iterator[tuple[str, ...]]:
        """Yield the pairs that are for training and not left out."""
        for part in self.parts():
            if part.held_out != 1:
                pieces = self.read(part, Counter(), self.config.validation_fraction)
                yield from (piece.texts[: len(self.sides)] for piece in pieces if not piece.held_out)

    def parts(self) -> list[Part]:
        """Return the parts of the corpus: consecutive files, those for validation last."""
        validation = pairs.validation(self.config)
        return parts_of(pairs.training(self.config).units(), validation.units() if validation else ())

    def read(self, part: Part, left_out: Counter[str], fraction: float) -> Iterator[Piece]:
        """Yield the pairs of a part that are used, and count the others by split and reason.

        fraction: share of the pairs that is held out.
        """
        nulls = Counter[str]()
        texts = (
            pair for unit in part.units for pair in formats.without_nulls(unit.read(""), self.config.skip_null, nulls)
        )
        for number, pair in enumerate(texts):
            held_out = _is_held_out(pair, fraction) if part.held_out == UNDECIDED else bool(part.held_out)
            if reason := _left_out(pair, self.config.max_words_ratio):
                left_out[f"{SPLITS[held_out]} pairs {reason}"] += 1
            else:
                yield Piece(pair, int(held_out), number)
        left_out.update({f"pairs with {name}": count for name, count in nulls.items()})

    @staticmethod
    def encode(tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]]) -> Encoded:
        """Return the token ids of several pairs, each as a document of two sentences."""
        sources, targets, *alignment = zip(*texts, strict=True)
        located: list[Any] = []
        sides: Iterable[tuple[list[int], ...]]
        if alignment:
            located = list(zip(tokenizer.locate_batch(sources), tokenizer.locate_targets(targets), strict=True))
            sides = (tuple(ids for ids, _ in both) for both in located)
        else:
            sides = zip(tokenizer.encode_batch(sources), tokenizer.encode_targets(targets), strict=True)
        # A text of characters that the tokenizer drops, such as a zero-width space, has no token.
        encoded = [both if all(both) else () for both in sides]
        ids = [side for both in encoded for side in both]
        pointers = [
            alignments.source_tokens(AlignedPair(*pair), *(places for _, places in both))
            for pair, both in zip(texts, located, strict=False)
            if all(found for found, _ in both)
        ]
        return Encoded(
            store.joined(ids, tokenizer.vocabulary_size),
            np.array([len(side) for side in ids], np.int64),
            np.array([len(both) for both in encoded], np.int64),
            np.array([len(source.split()) for source in sources], np.int64),
            {"alignment": np.concatenate(pointers)} if pointers else {},
        )

    def rows(
        self, directory: pathlib.Path, special: SpecialTokens, split: str, facts: dict[str, Any]
    ) -> Iterator[tuple[Block, ...]]:
        """Yield the rows of a stored split, a block for each side; pairs that are too long are counted in `facts`."""
        rows = self._rows(TextStore(directory), special.end, split, facts)
        yield from store.blocks(_sorted(rows) if self.config.pack else rows)

    def _rows(self, texts: TextStore, end: int, split: str, facts: dict[str, Any]) -> Iterator[tuple[Row, Row]]:
        """Yield (source row, target row) with end tokens for each stored pair that is not too long."""
        longest = self.config.max_tokens or self.config.sequence_length
        count = 2 * len(texts)
        for first in range(0, count, 2 * WRITTEN_TOGETHER):
            both = texts.sentences(first, min(first + 2 * WRITTEN_TOGETHER, count))
            sides = _ended(both, texts, texts.token_index(first), end)
            for source, target in zip(sides, sides, strict=True):
                if max(len(source.tokens), len(target.tokens)) > longest:
                    facts["left_out"][f"{split} pairs {TOO_LONG}"] += 1
                    facts["documents"][split] -= 1
                else:
                    yield source, target

    @staticmethod
    def open(directory: pathlib.Path, entry: Entry | None = None) -> PairRows:
        """Return the stored rows of a split."""
        return PairRows(directory, entry)


def _ended(sentences: Sequence[np.ndarray], texts: TextStore, begin: int, end: int) -> Iterator[Row]:
    """Yield consecutive sentences with the end token, and their pointers, as rows; `begin` is their first token."""
    ends = np.cumsum([len(sentence) for sentence in sentences])
    stored = [pointers.read(begin, begin + int(ends[-1])) for pointers in texts.pointers.values()]
    for sentence, *pointers in zip(sentences, *(np.split(of_name, ends[:-1]) for of_name in stored), strict=True):
        of_end = [np.append(of_name, np.int16(ABSENT)) for of_name in pointers]
        yield Row(np.append(sentence, end), pointers=np.stack(of_end) if of_end else None)


def _is_held_out(pair: Pair | AlignedPair, fraction: float) -> bool:
    return zlib.crc32(pair.source.encode()) < fraction * 2**32


def _left_out(pair: Pair | AlignedPair, max_words_ratio: float | None) -> str:
    fewer, more = sorted(len(side.split()) for side in (pair.source, pair.target))
    if not fewer:
        return WITHOUT_TEXT
    if max_words_ratio is not None and more > max_words_ratio * fewer:
        return UNEQUAL
    return ""


def _sorted(rows: Iterable[tuple[Row, Row]]) -> Iterator[tuple[Row, Row]]:
    """Yield the (source row, target row) pairs, sorted from longest to shortest within groups of `SORTED_TOGETHER`.

    Best fit then begins with the texts that leave the fewest choices, which fills rows better.
    """
    rows = iter(rows)
    while together := list(itertools.islice(rows, SORTED_TOGETHER)):
        yield from sorted(together, key=lambda pair: -sum(len(side.tokens) for side in pair))

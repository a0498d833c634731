"""What the pipeline has to know of a text: how it is read, encoded, cut into rows, and made into batches.

`ag_jax.data.text.documents` is the layout of texts, whose sentences are masked, and `ag_jax.data.parallel.layout` that
of texts with their translations.
"""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ag_jax.data.checksums import Entry, KnownContent
from ag_jax.data.config import DataConfig
from ag_jax.data.records.units import Unit
from ag_jax.data.store import Block
from ag_jax.data.tokenizers import SpecialTokens, Tokenizer

HostBatch = dict[str, np.ndarray]
SPLITS = ("train", "validation")
PART_SIZE = 2**28  # bytes of files after which a part is given no further file
UNDECIDED = -1  # `Piece.held_out` if the number of the document among all of them decides


class Piece(NamedTuple):
    """A document, a part of one, or a pair of texts, used either for training or for validation.

    texts: the text; of a pair, the text and its translation.
    held_out: 1 if it is for validation, 0 if it is for training, or `UNDECIDED`.
    document: number of the document in its part of the corpus.
    """

    texts: tuple[str, ...]
    held_out: int
    document: int


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive files of a text, which one process tokenises as a whole.

    units: the files.
    held_out: 1 or 0 if every document of the part is for validation, or for training; `UNDECIDED` if each document
        decides for itself, by its text or its number; None if a document's place depends on those before it: the text
        is then a single part, and `Layout.read` reads the whole source.
    """

    units: tuple[Unit, ...]
    held_out: int | None

    @property
    def size(self) -> int:
        """The approximate number of bytes of the part's text."""
        return sum(unit.size for unit in self.units)


def parts_of(units: Iterable[Unit], held_out: Iterable[Unit]) -> list[Part]:
    """Return the parts of a text: consecutive files until they have `PART_SIZE` bytes, those for validation last.

    units: files for training, from which documents are held out if there are no others.
    held_out: files for validation.
    """
    validation = [Part(group, 1) for group in _grouped(held_out)]
    return [*(Part(group, 0 if validation else UNDECIDED) for group in _grouped(units)), *validation]


def _grouped(units: Iterable[Unit]) -> list[tuple[Unit, ...]]:
    groups: list[list[Unit]] = []
    size = PART_SIZE
    for unit in units:
        if size >= PART_SIZE:
            groups.append([])
            size = 0
        groups[-1].append(unit)
        size += unit.size
    return [tuple(group) for group in groups]


class Encoded(NamedTuple):
    """Token ids of several pieces of a text, of which each has one or more sentences, or two sides.

    tokens: token ids of all sentences, one after the other.
    lengths: number of tokens of each sentence, at least one.
    sentences: number of sentences of each piece; 0 for a piece that has no token and is left out.
    words: number of words of each piece, separated by white space.
    pointers: by name, the offset from each token to the one that it points to, int16, as `TextStore` has them.
    left_out: numbers of pointers that are left out, with their names.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    sentences: np.ndarray
    words: np.ndarray
    pointers: Mapping[str, np.ndarray] | None = None
    left_out: Mapping[str, int] | None = None


class Layout(Protocol):
    """Protocol of a text with its settings.

    config: the settings of the data.
    sides: names of the sides of a row, such as source and target; an empty name for the only one.
    without_tokens: name under which pieces without any token are counted; "" does not count them.
    """

    sides: ClassVar[tuple[str, ...]]
    without_tokens: ClassVar[str]

    @property
    def config(self) -> DataConfig: ...

    def identity(self) -> list[Any]:
        """Return settings and versions of files that are equal only for the same pieces; made without reading text."""

    def files(self) -> dict[str, list[tuple[str, pathlib.Path | KnownContent]]]:
        """Return {setting: [(name, path), ...]} of the files of the text."""

    def characters(self) -> float:
        """Return a number of characters that the text surely has at most, without reading it; infinity if unknown."""

    def training_texts(self) -> Iterator[tuple[str, ...]]:
        """Yield the texts of each document or pair that is for training."""

    def parts(self) -> list[Part]:
        """Return the parts of the text in order; reads at most the first documents."""

    def read(self, part: Part, left_out: Counter[str], fraction: float) -> Iterator[Piece]:
        """Yield the pieces of a part, and count what is left out.

        fraction: share of the text that is held out; `data.validation_fraction`, or less if that has too many tokens.
        """

    def encode(self, tokenizer: Tokenizer, texts: Sequence[tuple[str, ...]]) -> Encoded:
        """Return the token ids of the texts of several pieces."""

    def rows(
        self, directory: pathlib.Path, special: SpecialTokens, split: str, facts: dict[str, Any]
    ) -> Iterator[tuple[Block, ...]]:
        """Yield the rows of a stored split, one block for each side; update `facts` by what is left out of the rows."""

    def open(self, directory: pathlib.Path, entry: Entry) -> Any:
        """Return the stored rows of a split."""

"""Stored rows of a parallel corpus: token ids of source texts, and of their translations in the same order."""

import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from ag_jax.data.cache import Entry
from ag_jax.data.checksums import CheckedArray
from ag_jax.data.text.formats import Row
from ag_jax.data.text.store import Rows, RowsWriter
from ag_jax.distributed import interruption

SIDES = ("source", "target")


class PairRows:
    """The source rows and target rows of token ids in a directory that `write_pair_rows` wrote.

    The directory has a directory of `Rows` for each side.

    source: source sides; every text ends with the end token.
    target: target sides, as many, with the translation of each text at the same place.

    entry: the entry of the cache for the directory or one above it, by which large files are checked as they are read.
    """

    def __init__(self, directory: pathlib.Path, entry: Entry | None = None):
        self.source, self.target = (Rows(directory / side, entry) for side in SIDES)

    def __len__(self) -> int:
        return len(self.target)

    @property
    def tokens(self) -> np.ndarray | CheckedArray:
        """The token ids of all target rows, concatenated: the tokens that a translation model predicts."""
        return self.target.tokens

    @property
    def pair_count(self) -> int:
        """The number of pairs of texts in all rows together; a packed row holds several."""
        return self.target.text_count

    def fill_rates(self, length: int) -> dict[str, float]:
        """Return {"source": share, "target": share} of positions that hold a token, in rows of `length` positions."""
        return {side: getattr(self, side).fill_rate(length) for side in SIDES}


def write_pair_rows(
    directory: pathlib.Path, rows: Iterable[Sequence[Row]], vocabulary_size: int, *, is_packed: bool
) -> None:
    """Write (source row, target row) pairs of token ids into a directory, in the format that `PairRows` reads."""
    writers = [RowsWriter(directory / side, vocabulary_size, is_packed=is_packed) for side in SIDES]
    for row in interruption.checked(rows):
        for writer, side in zip(writers, row, strict=True):
            writer.append(side)
    for writer in writers:
        writer.close()

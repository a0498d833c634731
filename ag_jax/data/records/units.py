"""The parts of a text source, whatever their kind."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ag_jax.data.checksums import KnownContent


@dataclasses.dataclass(frozen=True)
class Unit:
    """A piece of a source that is read as a whole: a file, or a part of a TensorFlow or Hugging Face data set.

    path: the file, the file that describes the data set, or the name of the data set.
    size: bytes of text, about; of a compressed file, those of the file.
    read: function that yields the documents, and in place of null a `formats.NullText`; its arguments are the key,
        column or feature that holds the text, and the names of the pointers that annotated texts have with them.
    has_changed: function that returns whether the content is another one than when the units were listed.
    skip_words: number of words that are left out at the beginning of each document.
    """

    path: Any
    size: int
    read: Callable[..., Iterator[Any]]
    has_changed: Callable[[], bool]
    skip_words: int = 0


class Part(Protocol):
    """One part of a comma-separated list of sources, such as a folder or a data set."""

    def identity(self) -> list[list[Any]]:
        """Return what identifies the present content, without reading the text; an item for each file or data set."""

    def files(self) -> list[tuple[str, pathlib.Path | KnownContent]]:
        """Return (name relative to the directory that was given, path) of each file, in reading order."""

    def units(self) -> Iterator[Unit]:
        """Yield the units in reading order."""

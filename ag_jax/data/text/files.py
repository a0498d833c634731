"""Read the documents of a file, in the format that the ending of its name tells.

    .txt             one document, whose lines are paragraphs; a file longer than `LARGEST_DOCUMENT` is read as several
    .jsonl, .ndjson  one JSON object per line; the document is its field `data.text_field`
    .json            a list of such objects, one such object, or an object with exactly one key that holds such a
                     list. Parsed as a whole, so at most `fields.LARGEST_PARSED` bytes. JSON lines are recognised
    .csv, .tsv       a table with a header, quoted as Python's csv module does it; the document is a column
    .parquet         the document is a column; needs pyarrow
    .tar             an archive of such files

Each may be compressed, with the further ending .gz, .xz, .bz2 or .zst, as in books.jsonl.zst (.zst needs pyarrow).
.tgz, .tbz2, .txz and .tzst are compressed archives. Endings are not case-sensitive. A file with any other ending is
read as text, except for the endings in `NOT_TEXT`, which are rejected with an error.
"""

import bz2
import codecs
import contextlib
import functools
import gzip
import io
import itertools
import logging
import lzma
import os
import pathlib
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from ag_jax.data.text import fields

LARGEST_DOCUMENT = 2**22  # bytes of a .txt file
LARGEST_WORD = 2**18  # characters; training BPE takes the square of this: 40 s for this many, hours for a document
NOT_TEXT = frozenset(
    ".7z .arrow .avro .br .db .doc .docx .epub .feather .h5 .hdf5 .htm .html .ipynb .lz4 .lzma .msgpack .npy .npz .odp "
    ".ods .odt .orc .pdf .pickle .pkl .ppt .pptx .rar .rtf .safetensors .sqlite .svg .tfrecord .toml .xhtml .xls .xlsx "
    ".xml .yaml .yml .z .zip .zstd".split()
)
_SHORT_FORMS = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
_MARKUP = re.compile(r'\s*(\{\s*"[^"]*"\s*:|\[\s*\{|\{\\rtf|<\?xml|<!doctype|<html)', re.IGNORECASE)
_WORD = re.compile(r"\w+|[^\w\s]+")
_PLAIN_TEXT = "expected plain text in UTF-8; convert it or leave it out"
_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)


def kind(name: str) -> tuple[str, str]:
    """Return (format, compression) of a file name as its endings, such as (".csv", ".gz"); "" for a missing one."""
    path = pathlib.PurePath(name.lower())
    path = path.with_suffix(_SHORT_FORMS.get(path.suffix, path.suffix))
    compression = path.suffix if path.suffix in _DECOMPRESSORS else ""
    return (path.with_suffix("") if compression else path).suffix, compression


def read_as(name: str) -> tuple[str, str]:
    """Return (format, compression) of a file name as in `kind`, with ".txt" for all formats that are read as text."""
    ending, compression = kind(name)
    return ending if ending in _READERS else ".txt", compression


def is_known(name: str) -> bool:
    """Return whether a file of this name is read when it is found in a directory or an archive."""
    return kind(name)[0] in _READERS


def known_endings() -> str:
    """Return the endings of all formats and compressions as one text, for messages."""
    return f"{', '.join(_READERS)}, each also with {', '.join(_DECOMPRESSORS)}"


def documents(file: Any, text_field: str) -> Iterator[str]:
    """Yield the documents of a file, which is a `pathlib.Path` or a `remote.RemoteFile`.

    text_field: the key or column that holds the documents, for formats that have several.

    Raises ValueError, with the name of the file, if it is damaged or is not what its name says, and for a word of more
    than `LARGEST_WORD` characters.
    """
    with file.open("rb") as opened:
        for text in _documents(opened, file.name, str(file), text_field):
            _check_words(text, str(file))
            yield text


def _check_words(text: str, place: str) -> None:
    """Raise ValueError for a word that is too long for a tokenizer to be trained on."""
    for line in text.split("\n") if len(text) > LARGEST_WORD else ():
        if len(line) > LARGEST_WORD and any(word.end() - word.start() > LARGEST_WORD for word in _WORD.finditer(line)):
            raise ValueError(
                f"{place}: expected words of at most {LARGEST_WORD:,} characters, got a longer one in a line that "
                f"begins with {line[:40]!r}; leave the line out"
            )


@contextlib.contextmanager
def decompressed(file: pathlib.Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if its name says so, for a `with` statement.

    Raises ValueError, with the name of the file, if it turns out to be damaged as it is read.
    """
    with file.open("rb") as opened, _plain(opened, file.name, str(file)) as plain:
        yield plain


@contextlib.contextmanager
def _plain(opened: IO[bytes], name: str, place: str) -> Iterator[IO[bytes]]:
    """Context manager that gives a file's decompressed content; damaged content is a ValueError with `place`."""
    compression = kind(name)[1]
    try:
        yield _DECOMPRESSORS[compression](opened) if compression else opened
    except UnicodeDecodeError as error:
        raise ValueError(f"{place} is not UTF-8 text ({error.reason}): {_PLAIN_TEXT}") from error
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk or the network failed, not the content
            error.filename = error.filename or place
            raise
        raise fields.damaged(place, error) from error


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, but only the first time, because every source is read more than once."""
    logging.getLogger(__name__).warning(message)


def _documents(opened: IO[bytes], name: str, place: str, field: str) -> Iterator[str]:
    """Yield the documents of an open file or member of an archive; `place` is its name in error messages."""
    ending, _ = kind(name)
    if ending in NOT_TEXT:
        raise ValueError(
            f"{place} is not read: expected {known_endings()}, got {ending}; convert it, or name it .txt if you "
            "want to train on its characters as they are"
        )
    with _plain(opened, name, place) as plain:
        yield from _READERS.get(ending, _text)(plain, place, field)


def _text(opened: IO[bytes], place: str, field: str) -> Iterator[str]:
    """Yield the text of a file; a long text in parts, cut at line ends unless a line is itself too long."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a part may end inside a character
    for number in itertools.count():
        part = opened.read(LARGEST_DOCUMENT)
        if not part:
            break
        if len(part) == LARGEST_DOCUMENT:
            part += opened.readline(LARGEST_DOCUMENT)
        if b"\0" in part:
            raise ValueError(f"{place} is a binary file: {_PLAIN_TEXT}")
        text = decoder.decode(part)
        if number == 0 and _MARKUP.match(text):
            warn_once(
                f"{place} begins like JSON or markup, but is read as plain text, with all its braces and tags; if it "
                "is JSON, rename it to .jsonl or .json, of which only data.text_field is read"
            )
        yield text
    decoder.decode(b"", final=True)


def _archive(opened: IO[bytes], place: str, field: str) -> Iterator[str]:
    """Yield the documents of the members of a tar archive; archives within it are left out."""
    left_out = 0
    with tarfile.open(fileobj=opened, mode="r|*") as archive:  # as a stream: nothing is unpacked on disk
        for member in archive:
            name = pathlib.PurePosixPath(member.name).name
            if member.isfile() and is_known(name) and kind(name)[0] != ".tar" and not name.startswith("."):
                yield from _documents(archive.extractfile(member), name, f"{member.name} of {place}", field)
            else:
                left_out += not member.isdir()
    while opened.read(2**20):  # read on, because a compressed archive has its checksum at the end
        pass
    if fields.is_plain(opened):
        opened.seek(-tarfile.BLOCKSIZE, os.SEEK_END)
        if any(opened.read()):  # tarfile accepts an archive that was cut off between two members
            # `fields.damaged` adds the name of the archive and the remedy.
            raise tarfile.ReadError("expected a block of zeros at the end, got other bytes: the archive was cut off")
    if left_out:
        warn_once(f"{place}: left out {left_out} members that are links, hidden, or have other endings")


def _unzstd(opened: IO[bytes]) -> IO[bytes]:
    """Return the decompressed content of an open .zst file."""
    return io.BufferedReader(fields.load_pyarrow("a .zst file").CompressedInputStream(opened, "zstd"))


_DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _unzstd,
}
_READERS: dict[str, Callable[[IO[bytes], str, str], Iterator[str]]] = {
    ".txt": _text,
    ".jsonl": fields.json_lines,
    ".ndjson": fields.json_lines,
    ".json": fields.json_entries,
    ".csv": functools.partial(fields.table, delimiter=","),
    ".tsv": functools.partial(fields.table, delimiter="\t"),
    ".parquet": fields.parquet,
    ".tar": _archive,
}

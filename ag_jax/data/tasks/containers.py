"""Read the records of a task's files, each with its location for error messages.

The content of records is checked later, by the parser of the task. A record that cannot be read is yielded as a
ValueError in its place, or raised, as `ag_jax.data.records.formats` says.
"""

import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from ag_jax.data.conll import without_comments
from ag_jax.data.json_files import parse_json
from ag_jax.data.records import files, formats
from ag_jax.data.records.formats import LocatedRecord, Record


def read(container: str, path: pathlib.Path, **options: Any) -> Iterator[LocatedRecord]:
    """Yield the records of a file, which is decompressed if its name says so, or of a folder of RACE (`tree`).

    container: a key of `CONTAINERS`, or `tree`.
    options: further arguments of the reader.

    Raises ValueError for a file that is damaged.
    """
    for file in tree_files(path) if container == TREE else [path]:
        with files.decompressed(file) as stream:
            yield from CONTAINERS[container](stream, str(file), **options)


def columns(stream: IO[bytes], place: str) -> Iterator[LocatedRecord]:
    """Yield the sentences of a CoNLL file, which has one word per line and blank lines between sentences.

    The word is in the first column and its tag in the last one. Comments and -DOCSTART- lines are left out.
    """
    words, tags, first_line = [], [], 0
    error = None
    # The appended blank line ends the last sentence.
    for number, line in without_comments([*(line.rstrip("\r\n") for _, line in formats.lines(stream, place)), ""]):
        # Not str.split(): a word may contain a non-ASCII space, and, where tabs separate the columns, any space.
        fields = [field for field in line.split("\t" if "\t" in line else " ") if field.strip(" ")]
        if fields and fields[0] == "-DOCSTART-":
            continue
        if fields:
            first_line = first_line or number
            if len(fields) < 2:
                error = error or ValueError(f"line {number} has no tag: expected a word and a tag, got {line!r}")
            words.append(fields[0])
            tags.append(fields[-1])
        elif words:
            yield f"{place}, line {first_line}", error or {"words": words, "tags": tags}
            words, tags, first_line, error = [], [], 0, None


def dialogues(stream: IO[bytes], place: str) -> Iterator[LocatedRecord]:
    """Yield the dialogues of a DREAM file, which is a JSON list of [turns, questions, id]."""
    for number, entry in enumerate(formats.json_value(stream, place, list), 1):
        where = f"{place}, dialogue {number}"
        if isinstance(entry, list) and len(entry) == 3:
            turns, questions, id = entry
            yield f"{where} ({id})", {"turns": turns, "questions": questions, "id": str(id)}
        else:
            yield where, ValueError(f"expected [turns, questions, id], got {entry!r}")


def articles(stream: IO[bytes], place: str) -> Iterator[LocatedRecord]:
    """Read the articles of a SQuAD file and yield their questions, each with its context.

    The file is {"data": [{"paragraphs": [{"context", "qas": [...]}]}]}, or a list of articles, of paragraphs, or of
    questions that have their context.
    """
    for number, article in enumerate(_data(stream, place), 1):
        paragraphs = _list(article, "paragraphs") if _field(article, "paragraphs") is not None else [article]
        for paragraph_number, paragraph in enumerate(paragraphs, 1):
            where = f"{place}, article {number}, paragraph {paragraph_number}"
            yield from _questions(where, paragraph, {"context": _field(paragraph, "context")})


def passages(stream: IO[bytes], place: str) -> Iterator[LocatedRecord]:
    """Read the passages of a ReCoRD file and yield their queries, each with its passage.

    The file is {"data": [{"passage", "qas": [...]}]} or, in SuperGLUE's form, a .jsonl file of {"passage", "qas"}.
    """
    entries: Iterable[tuple[str, Any]] = (
        formats.json_lines(stream, place)
        if files.kind(place)[0] == ".jsonl"
        else ((f"{place}, passage {number}", entry) for number, entry in enumerate(_data(stream, place), 1))
    )
    for where, entry in entries:
        if isinstance(entry, ValueError):
            yield where, entry
        else:
            yield from _questions(where, entry, {"passage": _field(entry, "passage")})


def article(stream: IO[bytes], place: str) -> Iterator[LocatedRecord]:
    """Yield the article of a RACE file, which is one JSON object."""
    try:
        yield place, parse_json(formats.whole(stream, place))
    except ValueError as error:
        yield place, error


def tree_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files with the articles of a RACE folder, in the order of their paths."""
    return files.walk(folder, lambda name: name.endswith(".txt"))[0]


TREE = "tree"
CONTAINERS: dict[str, Callable[..., Iterator[LocatedRecord]]] = {
    "jsonl": formats.json_lines,
    "tsv": functools.partial(formats.table, delimiter="\t", quoted=False),
    "quoted": functools.partial(formats.table, delimiter=","),
    "columns": columns,
    "dialogues": dialogues,
    "articles": articles,
    "passages": passages,
    TREE: article,
}


def _data(stream: IO[bytes], place: str) -> list[Any]:
    content = formats.json_value(stream, place)
    data = content if isinstance(content, list) else _field(content, "data")
    if not isinstance(data, list):
        raise ValueError(f'{place}: expected {{"data": [...]}} as in SQuAD, got {type(data).__name__} under "data"')
    return data


def _field(entry: Any, name: str) -> Any:
    return entry.get(name) if isinstance(entry, dict) else None


def _list(entry: Any, name: str) -> list[Any]:
    value = _field(entry, name)
    return value if isinstance(value, list) else [None]  # None becomes a record that is rejected


def _questions(place: str, entry: Any, common: Record) -> Iterator[LocatedRecord]:
    for number, question in enumerate([entry] if _field(entry, "question") else _list(entry, "qas"), 1):
        if isinstance(question, dict):
            yield f"{place}, question {number}", {**question, **common}
        else:
            yield f"{place}, question {number}", ValueError(f'expected an object in the list "qas", got {question!r}')

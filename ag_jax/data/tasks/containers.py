"""Readers that split files into records, each with its location for error messages.

The content of records is checked later, by the parser of the task. A row that cannot be read is yielded as a ValueError
in the place of the record, so that one bad row does not hide the errors behind it. Where the rest of a file cannot be
split into rows any more, the ValueError is raised, because leaving out one row would leave out all rows behind it.
"""

import collections
import csv
import io
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ag_jax.data.conll import without_comments
from ag_jax.data.json_files import parse_json, reading
from ag_jax.data.text.fields import text_lines, whole
from ag_jax.data.text.files import decompressed

Record = Mapping[str, Any]
LocatedRecord = tuple[str, Record | ValueError]

LARGEST_LINE = 2**24  # bytes
csv.field_size_limit(LARGEST_LINE)  # news articles exceed the library's default of 128 KiB


def lines(file: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yield (number, line with its line end) for each line of a file, which is decompressed if its name says so.

    Raises ValueError for a file that is damaged or not UTF-8, and for a line of more than `LARGEST_LINE` bytes.
    """
    with decompressed(file) as stream:
        yield from text_lines(stream, str(file), LARGEST_LINE)


def jsonl(file: pathlib.Path) -> Iterator[LocatedRecord]:
    """Yield the records of a JSON-lines file, which has one object per line; blank lines are left out."""
    for number, line in lines(file):
        if line.strip():
            yield f"line {number}", _object(line)


def tsv(file: pathlib.Path, header: bool = True) -> Iterator[LocatedRecord]:
    """Yield (location, record) for each row of a tab-separated file, in which quotes are ordinary characters.

    header: whether the first line has the names of the fields; otherwise they are "0", "1", ...
    """
    names: list[str] = []
    for number, line in lines(file):
        fields = line.rstrip("\r\n").split("\t")
        if fields == [""]:
            continue
        if not names:
            names = _header(file, fields) if header else [str(column) for column in range(len(fields))]
            if header:
                continue
        yield f"line {number}", _row(names, fields)


def quoted(file: pathlib.Path, delimiter: str = ",") -> Iterator[LocatedRecord]:
    """Yield the records of a table with a header and quoted fields, as spreadsheets write it.

    A field in quotes may contain line breaks.

    Raises ValueError for a row whose quotes are not closed properly, even if malformed rows are to be skipped: a line
    break behind it may or may not be inside a field, so neither the beginning of the next row nor the number of rows
    is known.
    """
    # Strict, because otherwise a quote that is never closed would silently take the rest of the file into one field.
    # Without translated line ends, so that those inside of fields stay as they are; also a carriage return ends a line.
    parts = itertools.chain.from_iterable(io.StringIO(line, newline="") for _, line in lines(file))
    rows = csv.reader(parts, delimiter=delimiter, strict=True)
    names: list[str] = []
    first_line = 1
    while True:
        try:
            fields = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"{file}, line {first_line}: expected a row of a table with well-formed quotes, got others ({error}); "
                "skip_malformed does not help, as no row after this line can be read: mend the quotes of this line"
            ) from error
        if fields is None:
            return
        if not names:
            names = _header(file, fields)
        elif fields:
            place = f"line {first_line}" if first_line == rows.line_num else f"lines {first_line} to {rows.line_num}"
            yield place, _row(names, fields)
        first_line = rows.line_num + 1


def columns(file: pathlib.Path) -> Iterator[LocatedRecord]:
    """Yield the sentences of a CoNLL file, which has one word per line and blank lines between sentences.

    The word is in the first column and its tag in the last one. Comments and -DOCSTART- lines are left out.
    """
    words, tags, first_line = [], [], 0
    error = None
    # The appended blank line ends the last sentence.
    for number, line in without_comments([*(line.rstrip("\r\n") for _, line in lines(file)), ""]):
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
            yield f"line {first_line}", error or {"words": words, "tags": tags}
            words, tags, first_line, error = [], [], 0, None


def dialogues(file: pathlib.Path) -> Iterator[LocatedRecord]:
    """Yield the dialogues of a DREAM file, which is a JSON list of [turns, questions, id]."""
    for number, entry in enumerate(_json(file, list), 1):
        if isinstance(entry, list) and len(entry) == 3:
            turns, questions, id = entry
            yield f"dialogue {number} ({id})", {"turns": turns, "questions": questions, "id": str(id)}
        else:
            yield f"dialogue {number}", ValueError(f"expected [turns, questions, id], got {entry!r}")


def articles(file: pathlib.Path) -> Iterator[LocatedRecord]:
    """Read the articles of a SQuAD file and yield their questions, each with its context.

    The file is {"data": [{"paragraphs": [{"context", "qas": [...]}]}]}, or a list of articles, of paragraphs, or of
    questions that have their context.
    """
    for number, article in enumerate(_data(file), 1):
        paragraphs = _list(article, "paragraphs") if _field(article, "paragraphs") is not None else [article]
        for paragraph_number, paragraph in enumerate(paragraphs, 1):
            place = f"article {number}, paragraph {paragraph_number}"
            yield from _questions(place, paragraph, {"context": _field(paragraph, "context")})


def passages(file: pathlib.Path) -> Iterator[LocatedRecord]:
    """Read the passages of a ReCoRD file and yield their queries, each with its passage.

    The file is {"data": [{"passage", "qas": [...]}]} or, in SuperGLUE's form, a .jsonl file of {"passage", "qas"}.
    """
    if file.name.removesuffix(".gz").endswith(".jsonl"):
        entries = jsonl(file)
    else:
        entries = ((f"passage {number}", entry) for number, entry in enumerate(_data(file), 1))
    for place, entry in entries:
        if isinstance(entry, ValueError):
            yield place, entry
        else:
            yield from _questions(place, entry, {"passage": _field(entry, "passage")})


def tree(folder: pathlib.Path) -> Iterator[LocatedRecord]:
    """Yield the articles of a RACE folder, each with its path in the folder; each .txt file is an article, in JSON."""
    for file in tree_files(folder):
        yield f"{file.relative_to(folder)}", _object(_text(file))


def tree_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files with the articles of a RACE folder, in the order of their paths."""
    return sorted(folder.rglob("*.txt"))


CONTAINERS: dict[str, Callable[..., Iterator[LocatedRecord]]] = {
    function.__name__: function for function in (jsonl, tsv, quoted, columns, dialogues, articles, passages, tree)
}


def _text(file: pathlib.Path) -> str:
    """Return the whole content of a file, decompressed if its name says so, as text."""
    with decompressed(file) as stream:
        return whole(stream, str(file)).decode("utf-8-sig")


def _object(text: str) -> Record | ValueError:
    try:
        return parse_json(text)
    except ValueError as error:
        return error


def _header(file: pathlib.Path, names: list[str]) -> list[str]:
    """Return `names`, the column names of a table's header, unless two columns have the same name.

    Raises ValueError if a name other than the empty one occurs more than once.
    """
    if repeated := [name for name, times in collections.Counter(names).items() if name and times > 1]:
        raise ValueError(
            f"{file}: expected columns with different names in the header, got {repeated[0]!r} more than once; rename "
            "one of these columns"
        )
    return names


def _row(names: list[str], fields: list[str]) -> Record | ValueError:
    if len(fields) != len(names):
        return ValueError(f"expected {len(names)} columns, got {len(fields)}")
    return dict(zip(names, fields, strict=True))


def _json(file: pathlib.Path, kind: type) -> Any:
    text = _text(file)  # not `read_json`, because the file may be compressed
    with reading(file, "copy it anew"):
        return parse_json(text, kind)


def _data(file: pathlib.Path) -> list[Any]:
    content = _json(file, object)
    data = content if isinstance(content, list) else _field(content, "data")
    if not isinstance(data, list):
        raise ValueError(f'{file}: expected {{"data": [...]}} as in SQuAD, got {type(data).__name__} under "data"')
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

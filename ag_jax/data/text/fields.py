"""Read documents that are one field of each record of a file: JSON, CSV and TSV tables, and Parquet.

`ag_jax.data.text.files` describes the formats. Each reader has the arguments

    opened   the open file
    place    name of the file in error messages
    field    key or column that holds the document

and raises ValueError, with the place in the file, if the file is damaged or an entry lacks the field.
"""

import contextlib
import csv
import io
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import IO, Any

from ag_jax.data.json_files import parse_json, reading
from ag_jax.data.text.remote import RemoteStream

LARGEST_PARSED = 2**28  # bytes of a .json file, or of a line of another file: both are held in memory
ROWS_TOGETHER = 256  # rows of a .parquet file that are in memory at the same time


def json_lines(opened: IO[bytes], place: str, field: str) -> Iterator[str]:
    """Yield the text in one field of the JSON object on each line of a file."""
    return (field_of(entry, field, where) for where, entry in json_objects(opened, place))


def json_objects(opened: IO[bytes], place: str) -> Iterator[tuple[str, Any]]:
    """Yield (location for error messages, parsed content) for each line of JSON; blank lines are left out.

    Whether a content is an object is checked by `field_of`.
    """
    return _objects(_filled_lines(opened, place), place)


def _filled_lines(opened: IO[bytes], place: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) for each line of a file that is not blank."""
    return ((number, line) for number, line in text_lines(opened, place) if line.strip())


def lines(opened: IO[bytes], place: str, most: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line with its line feed) for each line of a file, of at most `most` bytes a line.

    most: the most bytes of a line; None stands for `LARGEST_PARSED`.

    Raises ValueError for a longer line, of which no more than this is in memory.
    """
    most = most or LARGEST_PARSED
    for number, line in enumerate(iter(lambda: opened.readline(most + 1), b""), 1):
        if len(line) > most:
            raise ValueError(f"{place}, line {number}: expected at most {most:,} bytes, got more; split the line")
        yield number, line


def text_lines(opened: IO[bytes], place: str, most: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number, line as text) of a UTF-8 file without its byte order mark; `most` is as in `lines`.

    Raises ValueError, with the number of the line, also for a line that is not UTF-8.
    """
    for number, line in lines(opened, place, most):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{place}, line {number}: expected text in UTF-8, got other bytes ({error.reason}); convert the file, "
                "or copy it anew"
            ) from error
        yield number, text


def whole(opened: IO[bytes], place: str) -> bytes:
    """Return the content of a file. Raises ValueError if it has more than `LARGEST_PARSED` bytes."""
    content = opened.read(LARGEST_PARSED + 1)
    if len(content) > LARGEST_PARSED:
        raise ValueError(f"{place}: expected at most {LARGEST_PARSED:,} bytes, got more; split the file")
    return content


def _objects(numbered: Iterable[tuple[int, str]], place: str) -> Iterator[tuple[str, Any]]:
    """Yield (location for error messages, parsed JSON) for each (line number, line)."""
    for number, line in numbered:
        where = f"{place}, line {number}"
        yield where, _parse(line, where)


def _parse(content: str, where: str) -> Any:
    """Return the content of a JSON text. Raises ValueError with its location, `where`."""
    with reading(where, "mend it, or copy the file anew"):
        return parse_json(content, object)


def json_entries(opened: IO[bytes], place: str, field: str) -> Iterator[str]:
    """Yield the text in one field of each object in a JSON file, or of each line if the file contains JSON lines."""
    filled = _filled_lines(opened, place)
    first_two = list(itertools.islice(filled, 2))
    filled = itertools.chain(first_two, filled)
    if len(first_two) == 2 and _is_object(first_two[0][1]):  # JSON lines are often published under this name
        yield from (field_of(entry, field, where) for where, entry in _objects(filled, place))
        return
    content, size = [], 0
    for _, line in filled:
        content.append(line)
        size += len(line)
        if size > LARGEST_PARSED:
            raise ValueError(
                f"{place}: expected at most {LARGEST_PARSED:,} characters, as a .json file is parsed as a whole; write "
                "one object per line instead, for instance with: jq -c '.[]' FILE.json > FILE.jsonl"
            )
    if content:
        for number, entry in enumerate(_entries(_parse("".join(content), place), field, place), 1):
            yield field_of(entry, field, f"{place}, entry {number}")


def _is_object(line: str) -> bool:
    """Return whether a line is a complete JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _entries(value: Any, field: str, place: str) -> list[Any]:
    """Return the list of records (JSON objects) in a parsed JSON file.

    The file is a list of objects, or an object in which exactly one key holds a list of objects, or a single object
    with the text field `field`. Raises ValueError for other files.

    field: the field that the caller reads from each object.
    place: the file, for the error message.
    """
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        if isinstance(value.get(field), str):
            return [value]
        lists = [item for item in value.values() if item and isinstance(item, list) and isinstance(item[0], dict)]
        if len(lists) == 1:
            return lists[0]
    content = f"an object with the keys {_joined(value)}" if isinstance(value, dict) else type(value).__name__
    raise ValueError(
        f'{place}: expected a list of objects, an object with the field "{field}", or an object with one key that '
        f"holds a list of objects, got {content}; set data.text_field, or leave the file out"
    )


def field_of(entry: Any, field: str, where: str, setting: str = "data.text_field") -> str:
    """Return the text in a field of a JSON object. Raises ValueError if the field is missing or is not text."""
    if not isinstance(entry, dict):
        raise ValueError(f'{where}: expected a JSON object with the field "{field}", got {type(entry).__name__}')
    check_field(field, entry, where, setting)
    return _checked(entry[field], field, where)


def check_field(field: str, names: Iterable[str], where: str, setting: str = "data.text_field") -> None:
    """Raise ValueError if the field that a setting chose is not among `names`, the fields of a record."""
    if field not in names:
        raise ValueError(f'{where}: expected the field "{field}", got only {_joined(names)}; set {setting}')


def _joined(names: Iterable[str]) -> str:
    """Return up to 12 names, quoted, without line breaks and joined by commas, and the number of further names."""
    quoted = [json.dumps(name[:40], ensure_ascii=False) for name in names]
    return ", ".join(quoted[:12] + [f"and {len(quoted) - 12} more"] * (len(quoted) > 12)) or "none"


def _checked(text: Any, field: str, where: str) -> str:
    """Return the content of a field. Raises ValueError unless it is a text."""
    if not isinstance(text, str):
        raise ValueError(f'{where}: the field "{field}" must be a string, got {type(text).__name__}')
    return text


def table(opened: IO[bytes], place: str, field: str, *, delimiter: str) -> Iterator[str]:
    """Yield the text in one column of each row of a CSV or TSV table with a header."""
    csv.field_size_limit(max(csv.field_size_limit(), LARGEST_PARSED))  # the csv module has one limit for the process
    decoded = (line for _, line in text_lines(opened, place))
    # strict, because otherwise an unclosed quote would swallow the rows after it.
    rows = _located_rows(csv.reader(decoded, delimiter=delimiter, strict=True), place)
    where, header = next(rows, ("", []))
    if header:
        check_field(field, header, f"{where}, the header")
    if header.count(field) > 1:
        raise ValueError(
            f'{where}: expected one column "{field}", got {header.count(field)} of this name; rename the others'
        )
    for where, row in rows:
        if len(row) != len(header):
            raise ValueError(f"{where}: expected {len(header)} columns, as in the header, got {len(row)}; mend the row")
        yield row[header.index(field)]


def _located_rows(rows: Any, place: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, row) for each row of a `csv.reader` that is not blank; the location is for error messages."""
    while True:
        where = f"{place}, line {rows.line_num + 1}"
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"{where}: expected fields that are quoted as Python's csv module does it, got {error}; mend the "
                "quotes, or write the text as JSON lines"
            ) from error
        if row is None:
            return
        if row:
            yield where, row


def parquet(opened: IO[bytes], place: str, field: str) -> Iterator[str]:
    """Yield the text in one column of each row of a Parquet file."""
    pyarrow = load_pyarrow(place)
    try:
        with _with_random_access(opened) as file:
            rows = pyarrow.parquet.ParquetFile(file)
            check_field(field, rows.schema_arrow.names, place)
            numbers = itertools.count(1)
            for batch in rows.iter_batches(ROWS_TOGETHER, columns=[field]):
                for text in batch.column(0).to_pylist():
                    yield _checked(text, field, f"{place}, row {next(numbers)}")
    except pyarrow.ArrowException as error:
        raise damaged(place, error) from error


def is_plain(opened: IO[bytes]) -> bool:
    """Return whether an open file is itself a file on a disk or in an object store, which has random access.

    Compressed files and members of an archive have none.
    """
    return isinstance(opened, io.BufferedReader) and isinstance(opened.raw, (io.FileIO, RemoteStream))


@contextlib.contextmanager
def _with_random_access(opened: IO[bytes]) -> Iterator[IO[bytes]]:
    """Context manager that gives `opened` itself if it has random access, else a temporary copy that has it."""
    if is_plain(opened):
        yield opened
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(opened, copy)
        yield copy


def damaged(place: str, error: Exception) -> ValueError:
    """Return the error for a file that cannot be decoded, with a message of one line."""
    return ValueError(f"{place} is damaged or not what its name says ({' '.join(str(error).split())}); copy it anew")


def load_pyarrow(place: str) -> ModuleType:
    """Import and return pyarrow. Raises ValueError with the remedy if it is not installed."""
    try:
        import pyarrow  # imported here, because it takes long and is rarely needed
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{place} needs pyarrow, which is not installed: pip install 'ag_jax[parquet]'") from error
    return pyarrow

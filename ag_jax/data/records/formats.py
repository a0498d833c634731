"""Split the content of files into records, each with its location for error messages.

The ending of a file's name tells its format:

    .txt             one record, whose lines are paragraphs; a file longer than `LARGEST_TEXT` is read as several
    .jsonl, .ndjson  one JSON object per line
    .json            a list of objects, one object, or an object with exactly one key that holds a list of objects.
                     Parsed as a whole, so at most `LARGEST_PARSED` bytes. JSON lines are recognised
    .csv, .tsv       a table with a header, quoted as Python's csv module does it
    .parquet         a table; needs pyarrow
    .conllu          words with their trees (`conllu.py`); a document begins with a comment newdoc
    .tar             an archive of such files

Each may be compressed (`files.py`). A file with any other ending is read as text, except for the endings in `NOT_TEXT`,
which are rejected with an error. Tasks and pairs of texts have variants of these formats, by arguments of the readers.

A reader of a format has the arguments

    stream  the content
    place   name of the file in error messages
    field   key or column that is read; the others need not be, and plain text has no other

and yields (location, record). Where the next record can be found, a record that cannot be read is yielded as a
ValueError in its place, so that one bad row does not hide the errors behind it; otherwise the error is raised.
"""

import codecs
import collections
import csv
import functools
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

from ag_jax.data.json_files import parse_json, reading
from ag_jax.data.records import annotated, conllu, files

Item = TypeVar("Item")
Record = Mapping[str, Any]
LocatedRecord = tuple[str, Record | ValueError]

NULLS = "null texts"  # name under which records without a text are counted
LARGEST_PARSED = 2**28  # bytes of a .json file, or of a line of another file: both are held in memory
LARGEST_TEXT = 2**22  # bytes of a .txt file that are one record
ROWS_TOGETHER = 256  # rows of a .parquet file that are in memory at the same time
NOT_TEXT = frozenset(
    ".7z .arrow .avro .br .db .doc .docx .epub .feather .h5 .hdf5 .htm .html .ipynb .lz4 .lzma .msgpack .npy .npz .odp "
    ".ods .odt .orc .pdf .pickle .pkl .ppt .pptx .rar .rtf .safetensors .sqlite .svg .tfrecord .toml .xhtml .xls .xlsx "
    ".xml .yaml .yml .z .zip .zstd".split()
)
_MARKUP = re.compile(r'\s*(\{\s*"[^"]*"\s*:|\[\s*\{|\{\\rtf|<\?xml|<!doctype|<html)', re.IGNORECASE)
_REMEDY = "mend it, or copy the file anew"
csv.field_size_limit(LARGEST_PARSED)  # news articles exceed the library's default of 128 KiB


def records(file: Any, field: str = "text") -> Iterator[LocatedRecord]:
    """Yield the records of a file, or of all files in an archive, in the formats that their endings tell.

    file: a `pathlib.Path` or a `remote.RemoteFile`.
    field: key or column that is read.

    Raises ValueError, with the name of the file, if it is damaged or is not what its name says.
    """
    ending = files.kind(file.name)[0]
    if ending in NOT_TEXT:
        raise ValueError(
            f"{file} is not read: expected {known_endings()}, got {ending}; convert it, or name it .txt if you "
            "want to train on its characters as they are"
        )
    return files.read(
        file, lambda stream, name, place: READERS.get(files.kind(name)[0], text)(stream, place, field), is_known
    )


def is_known(name: str) -> bool:
    """Return whether a file of this name is read when it is found in a directory or an archive."""
    return files.kind(name)[0] in (*READERS, files.ARCHIVE)


def read_as(name: str) -> tuple[str, str]:
    """Return (format, compression) of a file name as `files.kind`, with ".txt" for all that is read as text."""
    ending, compression = files.kind(name)
    return ending if is_known(name) else ".txt", compression


def known_endings() -> str:
    """Return the endings of all formats and compressions as one text, for messages."""
    return f"{', '.join((*READERS, files.ARCHIVE))}, each also with {', '.join(files.DECOMPRESSORS)}"


def lines(stream: IO[bytes], place: str, most: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number, line with its line end) for each line of a UTF-8 file; only line feeds end lines.

    most: the most bytes of a line; None stands for `LARGEST_PARSED`.

    Raises ValueError, with the number of the line, for a longer line, of which no more than this is in memory, and for
    what is no text.
    """
    return _decoded(_lines(stream, place, most or LARGEST_PARSED), place)


def _lines(stream: IO[bytes], place: str, most: int) -> Iterator[bytes]:
    for number, line in enumerate(iter(lambda: stream.readline(most + 1), b""), 1):
        if len(line) > most:
            raise ValueError(f"{place}, line {number}: expected at most {most:,} bytes, got more; split the line")
        yield line


def whole(stream: IO[bytes], place: str) -> str:
    """Return the content of a UTF-8 file. Raises ValueError for more than `LARGEST_PARSED` bytes, and for no text."""
    content = stream.read(LARGEST_PARSED + 1)
    if len(content) > LARGEST_PARSED:
        raise ValueError(f"{place}: expected at most {LARGEST_PARSED:,} bytes, got more; split the file")
    return "".join(part for _, part in _decoded([content], place))


def _decoded(pieces: Iterable[bytes], place: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, text) for the pieces of a UTF-8 file, without its byte order mark.

    A character that a piece ends in comes with the next piece.

    Raises ValueError, with the number of the line, for bytes that are not UTF-8 and for NUL, which binary files have.
    """
    number, rest, mark = 1, b"", "\ufeff"
    for piece in itertools.chain(pieces, [b""]):
        content = rest + piece
        try:
            part, used = codecs.utf_8_decode(content, "strict", not piece)  # not `bytes.decode`: it rejects a rest
        except UnicodeDecodeError as error:
            number += content.count(b"\n", 0, error.start)
            raise ValueError(
                f"{place}, line {number}: expected text in UTF-8, got other bytes ({error.reason}); convert the file, "
                "or copy it anew"
            ) from error
        if "\0" in part:
            number += part.count("\n", 0, part.index("\0"))
            raise ValueError(f"{place}, line {number}: expected text in UTF-8, got binary content; convert the file")
        if piece:
            yield number, part.removeprefix(mark)
            number, rest, mark = number + piece.count(b"\n"), content[used:], ""


def text(stream: IO[bytes], place: str, field: str) -> Iterator[LocatedRecord]:
    """Yield the text of a file; a long text in parts, cut at line ends unless a line is itself too long."""
    for number, part in _decoded(_long_pieces(stream), place):
        if number == 1 and _MARKUP.match(part):
            files.warn_once(
                f"{place} begins like JSON or markup, but is read as plain text, with all its braces and tags; if it "
                "is JSON, rename it to .jsonl or .json, of which only data.text_field is read"
            )
        yield f"{place}, line {number}", {field: part}


def _long_pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(LARGEST_TEXT):
        yield piece + (stream.readline(LARGEST_TEXT) if len(piece) == LARGEST_TEXT else b"")


def json_lines(stream: IO[bytes], place: str, field: str = "") -> Iterator[LocatedRecord]:
    """Yield the JSON object on each line of a file; blank lines are left out."""
    del field
    return _objects(_filled_lines(stream, place), place)


def _filled_lines(stream: IO[bytes], place: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, line) for each line of a file that is not blank."""
    return ((number, line) for number, line in lines(stream, place) if line.strip())


def _objects(numbered: Iterable[tuple[int, str]], place: str) -> Iterator[LocatedRecord]:
    """Yield the JSON object in each (line number, line)."""
    for number, line in numbered:
        try:
            record: Record | ValueError = parse_json(line)
        except ValueError as error:
            record = error
        yield f"{place}, line {number}", record


def json_value(stream: IO[bytes], place: str, expected: type = object) -> Any:
    """Return the content of a JSON file, of the type `expected` as in `parse_json`. Raises ValueError with `place`."""
    return _parsed(whole(stream, place), place, expected)


def _parsed(content: str, place: str, expected: type = object) -> Any:
    with reading(place, _REMEDY):
        return parse_json(content, expected)


def json_records(stream: IO[bytes], place: str, field: str) -> Iterator[LocatedRecord]:
    """Yield the objects of a JSON file, or of each line if the file contains JSON lines."""
    filled = _filled_lines(stream, place)
    first_two = list(itertools.islice(filled, 2))
    filled = itertools.chain(first_two, filled)
    _, first = next(_objects(first_two, place), ("", None))
    if len(first_two) == 2 and isinstance(first, dict):  # JSON lines are often published under this name
        yield from _objects(filled, place)
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
        for number, entry in enumerate(_entries(_parsed("".join(content), place), field, place), 1):
            if not isinstance(entry, dict):
                entry = ValueError(f"expected a JSON object, got {type(entry).__name__}")
            yield f"{place}, entry {number}", entry


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
    content = f"an object with the keys {_quoted(value)}" if isinstance(value, dict) else type(value).__name__
    raise ValueError(
        f'{place}: expected a list of objects, an object with the field "{field}", or an object with one key that '
        f"holds a list of objects, got {content}; set data.text_field, or leave the file out"
    )


def table(
    stream: IO[bytes], place: str, field: str = "", *, delimiter: str, quoted: bool = True, header: bool = True
) -> Iterator[LocatedRecord]:
    """Yield each row of a table that is not blank, as {name of a column: value}.

    delimiter: what separates the columns.
    quoted: whether values may be quoted, as spreadsheets write them; otherwise, each line is a row, and quotes are
        ordinary characters.
    header: whether the first row has the names of the columns; otherwise they are "0", "1", ...

    Raises ValueError for two columns of the same name, and for quotes that are not closed properly: a line break behind
    them may or may not be inside a value, so neither the beginning of the next row nor the number of rows is known.
    """
    del field
    rows = _quoted_rows(stream, place, delimiter) if quoted else _plain_rows(stream, place, delimiter)
    names: list[str] = []
    for where, row in rows:
        if header and not names:
            names = row
            if repeated := [name for name, count in collections.Counter(names).items() if name and count > 1]:
                raise ValueError(
                    f"{where}: expected columns with different names in the header, got {repeated[0]!r} more than "
                    "once; rename one of these columns"
                )
            continue
        names = names or [str(column) for column in range(len(row))]
        if len(row) == len(names):
            yield where, dict(zip(names, row, strict=True))
        else:
            yield where, ValueError(f"expected {len(names)} columns, got {len(row)}")


def _plain_rows(stream: IO[bytes], place: str, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, values) for each line of a table in which quotes have no meaning."""
    for number, line in lines(stream, place):
        if content := line.rstrip("\r\n"):
            yield f"{place}, line {number}", content.split(delimiter)


def _quoted_rows(stream: IO[bytes], place: str, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, values) for each row of a table with quotes."""
    # Without translated line ends, so that those inside of values stay as they are; also a carriage return ends a line.
    pieces = itertools.chain.from_iterable(io.StringIO(line, newline="") for _, line in lines(stream, place))
    # Strict, because otherwise a quote that is never closed would silently take the rest of the file into one value.
    rows = csv.reader(pieces, delimiter=delimiter, strict=True)
    while True:
        first = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"{place}, line {first}: expected values that are quoted as Python's csv module does it, got {error}; "
                "mend the quotes of this line, behind which no row can be read"
            ) from error
        if row is None:
            return
        if row:
            last = rows.line_num
            yield f"{place}, " + (f"line {first}" if first == last else f"lines {first} to {last}"), row


def parquet(stream: IO[bytes], place: str, field: str) -> Iterator[LocatedRecord]:
    """Yield the value in one column of each row of a Parquet file."""
    pyarrow = files.load_pyarrow(place)
    try:
        with files.with_random_access(stream) as file:
            rows = pyarrow.parquet.ParquetFile(file)
            check_field(field, rows.schema_arrow.names, place)
            numbers = itertools.count(1)
            for batch in rows.iter_batches(ROWS_TOGETHER, columns=[field]):
                for value in batch.column(0).to_pylist():
                    yield f"{place}, row {next(numbers)}", {field: value}
    except pyarrow.ArrowException as error:
        raise files.damaged(place, error) from error


def trees(stream: IO[bytes], place: str, field: str) -> Iterator[LocatedRecord]:
    """Yield the documents of a CoNLL-U file under `field`; one of more than `LARGEST_TEXT` characters as several."""
    for document in conllu.documents(lines(stream, place), place, LARGEST_TEXT):
        yield f"{place}, line {document.sentences[0].line}", {field: document}


def require(record: Record | ValueError, where: str) -> Record:
    """Return a record. Raises ValueError, with its location, in place of a record that cannot be read."""
    if isinstance(record, ValueError):
        raise ValueError(f"{where}: {record}; {_REMEDY}") from record
    return record


class NullText(ValueError):
    """The error for a record without a text, which readers yield in place of the text.

    skip: name of the setting that leaves such records out.
    is_missing: whether the record lacks the field of the text; otherwise null or NaN is in it.
    """

    def __init__(self, message: str, skip: str, is_missing: bool):
        super().__init__(message)
        self.skip, self.is_missing = skip, is_missing


def without_nulls(
    items: Iterable[Item | NullText], skip_null: bool, left_out: collections.Counter[str] | None = None
) -> Iterator[Item]:
    """Yield the texts of a file, or its pairs of texts, without those that are null or missing.

    skip_null: whether such texts are left out; otherwise they are an error.
    left_out: if given, counts what is left out as `NULLS`.

    Raises ValueError after the last record if all records lack the field, also with `skip_null`.
    """
    missing, has_field = None, False
    for item in items:
        if not isinstance(item, NullText):
            has_field = True
            yield item
            continue
        has_field |= not item.is_missing
        if not skip_null:
            # If the first record lacks the field, its name is wrong.
            advice = f", or set {item.skip}=True to leave such records out" if has_field else ""
            raise ValueError(f"{item}{advice}")
        if left_out is not None:
            left_out[NULLS] += 1
        missing = missing or item
    if missing and not has_field:
        raise ValueError(f"{missing}; no record of the file has this field")


def field_of(record: Record | ValueError, field: str, where: str, setting: str = "data.text_field") -> str | NullText:
    """Return the text in a field of a record; a `NullText` if the record has no such field, or null in it.

    where: the location of the record.
    setting: name of the setting that chose the field.

    Raises ValueError if the record cannot be read, or the field holds something else.
    """
    value = require(record, where)
    section = setting.rpartition(".")[0]
    skip = f"{section}{'.' * bool(section)}skip_null"
    try:
        check_field(field, value, where, setting)
    except ValueError as error:
        return NullText(str(error), skip, is_missing=True)
    if value[field] is None or value[field] != value[field]:  # NaN, which Python writes into JSON
        return NullText(f'{where}: the field "{field}" is null: add its text', skip, is_missing=False)
    if not isinstance(value[field], str):
        raise ValueError(f'{where}: the field "{field}" must be a string, got {type(value[field]).__name__}')
    return value[field]


def text_of(
    record: Record | ValueError, field: str, where: str, pointers: Sequence[str], trees: annotated.Trees
) -> str | NullText:
    """Return the text of a record, annotated if the record is (`annotated`); else as `field_of`.

    field: the key of the text.
    where: the location of the record.
    pointers: names of the annotations that are wanted; those that the record lacks are left out.
    trees: trees of earlier sentences of the file, to which those of this record are added.
    """
    record = require(record, where)
    if isinstance(record.get(field), conllu.Document):
        return conllu.text_of(record[field], pointers, trees)
    if annotated.is_annotated(record, field):
        return annotated.of_json(record, field, where, pointers, trees)
    return field_of(record, field, where)


def check_field(field: str, names: Iterable[str], where: str, setting: str = "data.text_field") -> None:
    """Raise ValueError if the field that a setting chose is not among `names`, the fields of a record."""
    if field not in names:
        raise ValueError(f'{where}: expected the field "{field}", got only {_quoted(names)}; set {setting}')


def _quoted(names: Iterable[str]) -> str:
    """Return the names of fields, quoted and without line breaks, for messages."""
    return files.listed(json.dumps(name[:40], ensure_ascii=False) for name in names)


READERS: dict[str, Callable[[IO[bytes], str, str], Iterator[LocatedRecord]]] = {
    ".txt": text,
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".json": json_records,
    ".csv": functools.partial(table, delimiter=","),
    ".tsv": functools.partial(table, delimiter="\t"),
    ".parquet": parquet,
    ".conllu": trees,
}

"""Read the records of a custom task's files, and convert them to examples.

The ending of a file's name decides how it is split into records: .csv and .tsv tables with a header, .jsonl, SQuAD's
.json, and CoNLL files with one of the endings `_CONLL`. Errors name columns as the file does, except those about the
content of tags and answers, which call them words, tags and answers.
"""

import hashlib
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ag_jax.data.json_files import check_unicode, without_numpy
from ag_jax.data.records import files as record_files
from ag_jax.data.records.formats import LocatedRecord, Record
from ag_jax.data.tasks import containers, lookalikes, spans, tagging
from ag_jax.data.tasks.task import Choices, Example, Question, TaggedSentence, Task, Texts
from ag_jax.settings import imported

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_TABLES, _CONLL = (".csv", ".tsv"), ("", ".conll", ".conll03", ".txt", ".bio", ".iob", ".iob2")
_ENDINGS = {  # of the files that each kind of task can be read from
    "classification": (*_TABLES, ".jsonl"),
    "multilabel": (*_TABLES, ".jsonl"),
    "regression": (*_TABLES, ".jsonl"),
    "choice": (*_TABLES, ".jsonl"),
    "tagging": (".jsonl", *_CONLL),
    "span": (".jsonl", ".json"),
}
_MISSING = ("", "nan", "na", "n/a", "none", "null")  # how spreadsheets and pandas write that there is no value


def is_conll(file: pathlib.Path) -> bool:
    """Return whether a file is read as a CoNLL file, whose columns have no names."""
    return record_files.kind(file.name)[0] in _CONLL


def read(file: pathlib.Path, kind: str, separator: str | None, reader: str | None, setting: str) -> list[LocatedRecord]:
    """Return (location, record) for each record of a file; in place of a malformed record stands its ValueError.

    separator: a key of `SEPARATORS`; None: by the ending of the file's name.
    reader: import path of a function that returns the records of the file with this path; None: by the ending.
    setting: name of the setting that names the file, for errors.

    Raises ValueError if the file cannot be read or has no record.
    """
    if reader:
        located = _of_reader(file, reader, setting)
    else:
        end = record_files.kind(file.name)[0]
        if end not in _ENDINGS[kind]:
            raise ValueError(
                f"{setting}={file} must end in {', '.join(filter(None, _ENDINGS[kind]))}, also compressed, for a task "
                f"of {kind}, got {end or 'no ending'}: convert or rename the file"
            )
        if separator and end not in _TABLES:
            raise ValueError(f"separator={separator} is for .csv and .tsv, but {setting}={file}: leave it out")
        located = list(_split(file, end, separator))
    if not located:
        raise ValueError(f"{setting}={file}: expected at least one row, below the header of a table, got none")
    if all(isinstance(record, ValueError) for _, record in located):
        place, error = located[0]
        raise ValueError(f"{setting}={file}: all of {len(located)} rows are malformed, the first is {place}: {error}")
    return located


def _split(file: pathlib.Path, end: str, separator: str | None) -> Iterable[LocatedRecord]:
    """Return an iterable of (location, record), in the format that `separator` or the file's ending `end` implies."""
    if end == ".csv" or separator:
        return containers.read("quoted", file, delimiter=SEPARATORS[separator or "comma"])
    return containers.read({".tsv": "tsv", ".jsonl": "jsonl", ".json": "articles"}.get(end, "columns"), file)


def _of_reader(file: pathlib.Path, reader: str, setting: str) -> list[LocatedRecord]:
    """Return (location, record) for each record that the user's function `reader` returns for a file."""
    read_file = imported.function(f"reader={reader}", reader)
    try:
        records = list(read_file(str(file)))
    except Exception as error:  # the function is not ours, and may raise anything
        raise ValueError(
            f"the reader {reader} cannot read {setting}={file}: {type(error).__name__}: {error}; mend the function "
            "or the file"
        ) from error
    located: list[LocatedRecord] = []
    for number, record in enumerate(records, 1):
        if not isinstance(record, Mapping):
            raise ValueError(
                f"the reader {reader} must return a dict for each example, got {type(record).__name__} as number "
                f"{number} of {file}"
            )
        plain = without_numpy(record)
        try:
            check_unicode(json.dumps(plain, ensure_ascii=False, skipkeys=True, default=str), "a text")
            located.append((f"{file}, record {number}", plain))
        except ValueError as error:
            located.append((f"{file}, record {number}", error))
    return located


def check_columns(
    located: Sequence[LocatedRecord], columns: Mapping[str, str | tuple[str, ...]], file: pathlib.Path, task: str
) -> None:
    """Raise ValueError if any of the columns in `columns`, {setting: its column or columns}, occurs in no record.

    columns: names of the needed columns by the setting that names them.
    file: file of the records, for errors.
    task: name of the task, for errors.
    """
    present = list(
        dict.fromkeys(name for _, record in located if not isinstance(record, ValueError) for name in record)
    )
    for setting, names in columns.items():
        for name in (names,) if isinstance(names, str) else names:
            if present and name not in present:
                difference = lookalikes.find(name, present)
                raise ValueError(
                    f"{file} has no column {name!r}, which tasks.{task}.custom.{setting} names: it has "
                    f"{', '.join(map(repr, present))}; set {setting} to one of these"
                    + (f" ({difference} look alike)" if difference else "")
                )


def label_text(value: Any, column: str, expected: str = "the name of a class") -> str:
    """Return a label as a text without surrounding spaces; "" for None and NaN, which stand for a missing label.

    expected: what the label should be, for errors.

    Raises ValueError for a value that is no text, number or boolean.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str | int | float):
        raise ValueError(f"expected {expected} in the column {column!r}, got {value!r}")
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def is_missing(label: str) -> bool:
    """Return whether the text of a label stands for a missing label, such as an empty field or pandas' nan."""
    return label.casefold() in _MISSING


def text(record: Record, column: str) -> str:
    """Return the text in a column of a record.

    Raises ValueError if it is missing, blank or no text.
    """
    value = record.get(column)
    if not isinstance(value, str) or not value.strip():
        got = f"got {value!r}" if column in record else "got none"
        raise ValueError(f"expected a text in the column {column!r}, {got}")
    return value


def number(value: Any, column: str) -> float | None:
    """Return a value of a column as a number, also if it is written as text; None if it is missing.

    Raises ValueError for anything else.
    """
    written = label_text(value, column, "a number")
    if is_missing(written):
        return None
    try:
        result = math.nan if isinstance(value, bool) else float(written)
    except ValueError:
        result = math.nan
    if not math.isfinite(result):
        raise ValueError(f"expected a number in the column {column!r}, got {value!r}")
    return result


def missing(column: str) -> ValueError:
    """Return the ValueError about a record whose label is missing."""
    return ValueError(
        f"the label in the column {column!r} is missing: add it, or delete the row; if the value is the name of a "
        "class, list all classes in labels"
    )


def class_of(record: Record, column: str, task: Task, labelled: bool) -> int | None:
    """Return the index of a record's class in `task.labels`; None if it is missing and `labelled` is False.

    Classes are known by their names only: a number is not taken for an index.
    """
    name = label_text(record.get(column), column)
    if name not in task.labels and is_missing(name) and not labelled:
        return None
    return label_index(name, column, task)


def label_index(name: str, column: str, task: Task) -> int:
    """Return the index of a label in `task.labels`. Raises ValueError for a label that is missing or unknown."""
    if name in task.labels:
        return task.labels.index(name)
    if is_missing(name):
        raise missing(column)
    if difference := lookalikes.find(name, task.labels):
        raise ValueError(
            f"unknown label {name!r} in the column {column!r}: {difference} look alike; write both in one way"
        )
    raise ValueError(
        f"unknown label {name!r} in the column {column!r}: expected one of {', '.join(task.labels)}, the labels of "
        "the training file or those that were given; mend the label, or list all classes in labels"
    )


def number_of(record: Record, column: str, task: Task, labelled: bool) -> float | None:
    """Return the regression label of a record, within `task.span`; None if it is missing and `labelled` is False."""
    result = number(record.get(column), column)
    if result is None and labelled:
        raise missing(column)
    low, high = task.span
    if result is not None and not low <= result <= high:
        raise ValueError(
            f"expected a number from {low:g} to {high:g} in the column {column!r}, the range of the training file or "
            f"the one that was given, got {result:g}; mend it, or set lowest and highest"
        )
    return result


def candidate_of(record: Record, column: str, count: int, labelled: bool) -> int | None:
    """Return the index of the right candidate, given as a number from 0 or a letter from A; None if it is missing."""
    answer = label_text(record.get(column), column, "the number of the right candidate, or its letter,")
    if is_missing(answer):
        if labelled:
            raise missing(column)
        return None
    is_letter = len(answer) == 1 and "A" <= answer.upper() <= "Z"
    index = ord(answer.upper()) - ord("A") if is_letter else int(answer) if answer.isdecimal() else count
    if index >= count:
        raise ValueError(
            f"expected the number of the right candidate, from 0 to {count - 1}, or its letter in the column "
            f"{column!r}, got {answer!r}"
        )
    return index


def candidates(record: Record, columns: tuple[str, ...]) -> list[str]:
    """Return the candidates of a record: the texts of several columns, or the list of texts in a single one."""
    if len(columns) > 1:
        return [text(record, column) for column in columns]
    texts = record.get(columns[0])
    if (
        not isinstance(texts, list)
        or len(texts) < 2
        or not all(isinstance(candidate, str) and candidate.strip() for candidate in texts)
    ):
        raise ValueError(f"expected a list of at least two texts in the column {columns[0]!r}, got {texts!r}")
    return texts


def tags(record: Record, words: str, column: str, task: Task, labelled: bool) -> list[TaggedSentence]:
    """Return a list with the one tagged sentence of a record, whose columns hold the words and as many tags."""
    return tagging.words({"id": record["id"], "words": record.get(words), "tags": record.get(column)}, task, labelled)


def question(record: Record, columns: tuple[str, str, str], task: Task, labelled: bool) -> list[Question]:
    """Return a list with the one question of a record, with its context and answers.

    columns: those of the context, the question, and the answers: a list of objects with `text` and `answer_start`, as
        SQuAD has it, or an object with a list of texts and one of positions.
    """
    context, question_column, column = columns
    answers = record.get(column)
    if isinstance(answers, Mapping):
        pairs = zip(answers["text"], answers["answer_start"], strict=True)
        answers = [{"text": answer, "answer_start": start} for answer, start in pairs]
    renamed = {"id": record["id"], "context": text(record, context), "question": text(record, question_column)}
    return spans.squad(renamed | {"answers": answers, "is_impossible": record.get("is_impossible")}, task, labelled)


def content(example: Example) -> str:
    """Return the text of an example, by whose hash the example is held out for validation or not.

    For a question it is the context.
    """
    if isinstance(example, Texts):
        return "\n".join(filter(None, (example.first, example.second)))
    if isinstance(example, Choices):
        return "\n".join((example.pairs[0][0], *(second for _, second in example.pairs)))
    if isinstance(example, TaggedSentence):
        return " ".join(example.words)
    return example.context if isinstance(example, Question) else example.id


def fingerprint(files: Mapping[str, Sequence[pathlib.Path]]) -> str:
    """Return a hash, in hexadecimal digits, of the content of the files of all splits."""
    digest = hashlib.sha256()
    for split, split_files in files.items():
        for file in split_files:
            with file.open("rb") as stream:
                digest.update(f"{split}\n".encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


def fingerprint_of_records(located: Mapping[str, Sequence[LocatedRecord]]) -> str:
    """Return a hash, in hexadecimal digits, of the records that a custom reader returned for all splits.

    A value that JSON has no form for counts by its type alone, because its text may differ from process to process.
    """
    records = [[split, [record for _, record in split_records]] for split, split_records in located.items()]
    content = json.dumps(records, skipkeys=True, default=lambda value: type(value).__name__)
    return hashlib.sha256(content.encode()).hexdigest()[:16]

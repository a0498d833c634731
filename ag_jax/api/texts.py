"""Texts and records in memory, which become files of a run: `WORKDIR/data/NAME-HASH.jsonl`.

The files are written once, in the order of the data, and read like any other file. So a run that is resumed, several
machines, an export and the command line need nothing else.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.data.records import sources
from ag_jax.distributed import hosts, storage

# A file or another source, as in `data.source`; texts; records; columns, as a dict of lists or a data frame.
Texts = str | os.PathLike | Iterable[str] | Iterable[Mapping[str, Any]] | Mapping[str, Sequence[Any]]
LONGEST_PATH = 4096  # characters
_METRICS = ("metrics.jsonl", "*/metrics.jsonl", "*/*/metrics.jsonl")  # of a run, a comparison, a suite


def source(
    data: Texts | None,
    workdir: epath.PathLike,
    name: str,
    columns: Sequence[str],
    optional: Collection[str] = (),
) -> str | None:
    """Return the path from which a run reads its data: the one that is given, or a file to which data are written.

    data: None stands for data in memory that an earlier call wrote; the result is None if there are none.
    name: what the data are for: train, validation or test.
    columns: the columns to write. Texts without columns are written as the first of them.
    optional: those of `columns` that are left out if the first row does not have them.

    Raises ValueError for data without one of the columns, with the row for a value that is missing, and for data in
    memory that differ from those with which training in `workdir` began.
    """
    if isinstance(data, str) and ("\n" in data or len(data) > LONGEST_PATH):
        raise ValueError(f"{name}: expected a path or several texts, got one text, {data[:40]!r}...: give [text]")
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    folder = storage.directory(workdir) / "data"
    return hosts.from_first(f"the {name} data", lambda: _file(data, folder, name, columns, optional))


def _file(data: Any, folder: epath.Path, name: str, columns: Sequence[str], optional: Collection[str]) -> str | None:
    before = sorted(folder.glob(f"{name}-*.jsonl")) if folder.exists() else []
    if data is None:
        return str(before[0]) if before else None
    path = sources.spool(_records(data, name, columns, optional), folder, name)
    others = [other for other in before if other != path]
    if others and any(any(folder.parent.glob(pattern)) for pattern in _METRICS):
        path.unlink()
        raise ValueError(
            f"{folder.parent} began with other {name} data, those in {others[0]}: give the same data, None to "
            "go on with those, or choose another workdir"
        )
    for other in others:  # of a call that failed before anything was trained
        other.unlink()
    return str(path)


def _records(data: Any, name: str, columns: Sequence[str], optional: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the records of data in memory, with these columns alone."""
    for number, row in enumerate(_rows(data, name)):
        if not isinstance(row, str | Mapping):
            yield row  # an error of `spool`
            continue
        record = {columns[0]: row} if isinstance(row, str) else {str(column): value for column, value in row.items()}
        if not number:
            columns = [column for column in columns if column in record or column not in optional]
        if missing := [column for column in columns if column not in record]:
            raise ValueError(
                f"row {number} of {name}, counted from 0, has no column {missing[0]!r}: it has "
                f"{', '.join(map(repr, record))}"
            )
        yield {column: record[column] for column in columns}


def _rows(data: Any, name: str) -> Iterable[Any]:
    """Return the rows of a data frame, of a dict of lists, or of another iterable."""
    if not isinstance(data, Mapping) and not hasattr(data, "columns"):
        return data
    names = [*map(str, data if isinstance(data, Mapping) else data.columns)]
    if len(set(names)) < len(names):
        raise ValueError(f"{name}: expected columns with different names, got {', '.join(names)}")
    values = {str(column): data[column] for column in (data if isinstance(data, Mapping) else data.columns)}
    for column, of_column in values.items():
        if isinstance(of_column, str) or not hasattr(of_column, "__len__"):
            raise ValueError(f"{name}: expected a list as the column {column!r}, got {type(of_column).__name__}")
    if len(lengths := {len(of_column) for of_column in values.values()}) > 1:
        raise ValueError(f"{name}: expected columns of one length, got {', '.join(map(str, sorted(lengths)))}")
    return (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))

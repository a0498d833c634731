"""Read the labels of a multi-label example: a list in one column, or a column of 0 and 1 for each label."""

import ast
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks import custom_records
from ag_jax.data.tasks.task import Task

# Two texts without a comma between them, as numpy writes an array; Python joins these.
_NO_COMMA = re.compile(r"""['"]\s+['"]""")
_OTHER = re.compile(r"[{(]|(array|set|frozenset)\(")  # how Python writes other collections
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


def columns_of(setting: str) -> tuple[str, ...]:
    """Return the columns that the setting `label` of a multi-label task names, separated by commas."""
    return tuple(name.strip() for name in setting.split(","))


def values(record: Record, columns: Sequence[str]) -> list[Any] | None:
    """Return the labels of a record in their order; None if they are missing.

    columns: one column with all labels of a record, or several columns, each named like a label, with 0 or 1.

    One column has a list, which may be empty, or a text: a list as JSON or Python writes it, or names separated by
    commas. An empty text stands for no label. The labels are missing if the value is None or NaN.

    Raises ValueError for other values, and if only some of several columns have a value.
    """
    if len(columns) > 1:
        flags = {column: _flag(record.get(column), column) for column in columns}
        absent = [column for column, flag in flags.items() if flag is None]
        if len(absent) == len(columns):
            return None
        if absent:
            raise ValueError(f"expected 0 or 1 in the column {absent[0]!r}, got {record.get(absent[0])!r}")
        return [column for column, flag in flags.items() if flag]
    value = record.get(columns[0])
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    found = _listed(value.strip()) if isinstance(value, str) else value
    if not isinstance(found, list):
        raise ValueError(f"expected a list of labels in the column {columns[0]!r}, got {value!r}")
    return found


def names(record: Record, columns: Sequence[str]) -> list[str] | None:
    """Return the names of a record's labels; None if they are missing. For `columns` and errors see `values`."""
    found = values(record, columns)
    return None if found is None else [custom_records.label_text(value, columns[0]) for value in found]


def of_record(record: Record, columns: Sequence[str], task: Task, labelled: bool) -> tuple[int, ...] | None:
    """Return the indices of a record's labels in `task.labels`, ascending; None if missing and `labelled` is False.

    columns: as for `values`.

    Raises ValueError for missing labels of a labelled split, an unknown label, and one that is given twice.
    """
    found, column = names(record, columns), columns[0]
    is_absent = found is None or (len(found) == 1 and found[0] not in task.labels and custom_records.is_missing(*found))
    if found is None or is_absent:
        if labelled:
            raise custom_records.missing(column)
        return None
    for name in found:
        if found.count(name) > 1:
            raise ValueError(f"the label {name!r} is more than once in the column {column!r}: {found}; delete one")
    return tuple(sorted(custom_records.label_index(name, column, task) for name in found))


def _listed(text: str) -> Any:
    """Return the labels in a text; None for what begins like a list, a set or an array and is no list."""
    if not text.startswith("["):
        return None if _OTHER.match(text) else [name.strip() for name in text.split(",")] if text else []
    try:
        return json.loads(text)
    except ValueError:
        pass
    if _NO_COMMA.search(text):
        return None
    try:
        return ast.literal_eval(text)  # pandas writes a list as Python does
    except (ValueError, SyntaxError):
        return None


def _flag(value: Any, column: str) -> bool | None:
    """Return whether a label applies, from the value in its column; None for a missing value."""
    written = custom_records.label_text(value, column, "0 or 1")
    if custom_records.is_missing(written):
        return None
    if written.casefold() not in FLAGS:
        raise ValueError(f"expected 0 or 1 in the column {column!r}, got {value!r}")
    return FLAGS[written.casefold()]

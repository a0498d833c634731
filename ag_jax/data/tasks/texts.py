"""Records of classification and regression."""

import math
from typing import Any

from ag_jax.data.tasks.containers import Record
from ag_jax.data.tasks.task import Task, Texts


def text_of(record: Record, name: str) -> str:
    """A field that must be a text, and not blank."""
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the field {name!r} must be a text, got {value!r}")
    return value


def is_unknown(value: Any) -> bool:
    """Whether a label is one that a benchmark keeps to itself: absent, empty, or -1."""
    return value is None or str(value).strip() in ("", "-1", "-1.0")


def texts(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """One example from the fields id, first, perhaps second, and label."""
    second = text_of(record, "second") if "second" in record else None
    label = record.get("label")
    if labelled or not is_unknown(label):
        label = _number(task, label) if task.kind == "regression" else task.label_index(label)
    else:
        label = None
    return [Texts(record["id"], text_of(record, "first"), second, label)]


def _number(task: Task, value: Any) -> float:
    low, high = task.span
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"expected a number from {low:g} to {high:g} as label, got {value!r}")
    return number

"""Records of classification and regression."""

import ast
import math
import re
from collections.abc import Callable
from typing import Any

from ag_jax.data.tasks.containers import Record
from ag_jax.data.tasks.task import Task, Texts

_BYTES = re.compile(r"""b(['"]).*\1""")
_TOKEN = r"(?:\d+|\(\d+, ?\d+\)(?::\(\d+, ?\d+\))*)"  # of the sentence's own question, or (question, token):...
_INDEX = re.compile(rf"{_TOKEN}(?:/{_TOKEN})+")


def text_of(record: Record, name: str) -> str:
    """A field that must be a text, and not blank."""
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the field {name!r} must be a text, got {value!r}")
    return value


def pair_of(record: Record) -> tuple[str, str]:
    """The two texts of a pair, of which one may be blank: QQP has questions without a word."""
    pair = [record.get(name) for name in ("first", "second")]
    for name, value in zip(("first", "second"), pair, strict=True):
        if not isinstance(value, str):
            raise ValueError(f"the field {name!r} must be a text, got {value!r}")
    if not any(value.strip() for value in pair):
        raise ValueError("both texts of the pair are blank: expected words in one at least")
    return pair[0], pair[1]


def is_unknown(value: Any) -> bool:
    """Whether a label is one that a benchmark keeps to itself: absent, empty, or -1."""
    return value is None or str(value).strip() in ("", "-1", "-1.0")


def texts(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Return one example, with a class, from the fields id, first, perhaps second, and label."""
    return [_example(record, task.label_index, labelled)]


def numbers(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Return one example, with a number in the span of the task, from the same fields as `texts`."""
    return [_example(record, lambda label: _number(task, label), labelled)]


def _example(record: Record, read: Callable[[Any], int | float], labelled: bool) -> Texts:
    first, second = pair_of(record) if "second" in record else (text_of(record, "first"), None)
    label = record.get("label")
    label = read(label) if labelled or not is_unknown(label) else None
    return Texts(record["id"], first, second, label)


def paws(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """A pair of PAWS-QQP. Its script under Python 3 writes b'...' around each sentence, which is taken off.

    Raises ValueError for a row of the published index, which has the numbers of tokens in the place of sentences.
    """
    first, second = (_unwrapped(text) for text in pair_of(record))
    if "qid1" in record or (_INDEX.fullmatch(first) and _INDEX.fullmatch(second)):
        raise ValueError(
            "this is the index of PAWS-QQP, whose sentences are numbers of tokens: make the sentences from the QQP corpus with "
            "qqp_generate_data.py of PAWS (github.com/google-research-datasets/paws), and put its files here"
        )
    return texts({**record, "first": first, "second": second}, task, labelled)


def _unwrapped(text: str) -> str:
    if not _BYTES.fullmatch(text):
        return text
    try:
        return ast.literal_eval(text).decode()
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"expected a sentence, got what looks like Python's bytes and is none: {text!r}") from error


def _number(task: Task, value: Any) -> float:
    low, high = task.span
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"expected a number from {low:g} to {high:g} as label, got {value!r}")
    return number

"""Parsers that convert records of classification and regression tasks to examples."""

import ast
import math
import re
from collections.abc import Callable
from typing import Any

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks.task import Task, Texts

_BYTES = re.compile(r"""b(['"]).*\1""")
# A token number in the sentence's own question, or (question, token) pairs joined by colons.
_TOKEN = r"(?:\d+|\(\d+, ?\d+\)(?::\(\d+, ?\d+\))*)"
_INDEX = re.compile(rf"{_TOKEN}(?:/{_TOKEN})+")


def text_of(record: Record, name: str) -> str:
    """Return a field of a record that must be a text, and not blank.

    Raises ValueError if it is not.
    """
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the field {name!r} must be a text, got {value!r}")
    return value


def pair_of(record: Record) -> tuple[str, str]:
    """Return the texts in the fields `first` and `second` of a record.

    One of them may be blank, because QQP has blank questions. Raises ValueError if both are blank or one is no text.
    """
    pair: list[Any] = [record.get(name) for name in ("first", "second")]
    for name, value in zip(("first", "second"), pair, strict=True):
        if not isinstance(value, str):
            raise ValueError(f"the field {name!r} must be a text, got {value!r}")
    if not any(value.strip() for value in pair):
        raise ValueError("both texts of the pair are blank: expected words in one at least")
    return pair[0], pair[1]


def is_unknown(value: Any) -> bool:
    """Return whether a label is withheld, as benchmarks do for test sets: absent, empty, or -1."""
    return value is None or str(value).strip() in ("", "-1", "-1.0")


def texts(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Convert a classification record (fields id, first, label; optionally second) to an example, in a list of one."""
    return [_example(record, task.label_index, labelled)]


def numbers(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Convert a regression record (fields id, first, label; optionally second) to an example, in a list of one.

    The label must be in the range `task.span` (lowest, highest).
    """
    return [_example(record, lambda label: _number(task, label), labelled)]


def _example(record: Record, to_label: Callable[[Any], int | float], labelled: bool) -> Texts:
    first, second = pair_of(record) if "second" in record else (text_of(record, "first"), None)
    label = label_of(record, to_label, labelled)
    return Texts(record["id"], first, second, label, str(record.get("group", "")))


def label_of(record: Record, to_label: Callable[[Any], int | float], labelled: bool) -> int | float | None:
    """Return the label of a record, converted by `to_label`; None if it is withheld and `labelled` is False."""
    label = record.get("label")
    return to_label(label) if labelled or not is_unknown(label) else None


def multirc(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Return an example for each answer to each question about the passage of a MultiRC record.

    The pair is the passage, and the question followed by the answer; the answers to a question are a group. Ids are
    those of passage, question and answer, as in 3-12-50.
    """
    passage = record.get("passage")
    if not isinstance(passage, dict):  # TFDS: a record for each answer
        ids = record["idx"]
        question = {"question": record.get("question"), "idx": ids["question"]}
        answer = {"text": record.get("answer"), "idx": ids["answer"], "label": record.get("label")}
        return [_answer(ids["paragraph"], text_of(record, "paragraph"), question, answer, task, labelled)]
    text = text_of(passage, "text")
    return [
        _answer(record["idx"], text, question, answer, task, labelled)
        for question in objects(passage, "questions")
        for answer in objects(question, "answers")
    ]


def _answer(passage: Any, text: str, question: Record, answer: Record, task: Task, labelled: bool) -> Texts:
    second = f"{text_of(question, 'question')} {text_of(answer, 'text')}"
    group = f"{passage}-{question['idx']}"
    return Texts(f"{group}-{answer['idx']}", text, second, label_of(answer, task.label_index, labelled), group)


def objects(record: Record, name: str) -> list[Record]:
    """Return a field of a record that must be a list of at least one JSON object.

    Raises ValueError if it is not.
    """
    values = record.get(name)
    if not isinstance(values, list) or not values or not all(isinstance(item, dict) for item in values):
        raise ValueError(f"the field {name!r} must be a list of at least one object, got {values!r}")
    return values


def paws(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Return a list with the one example of a PAWS-QQP record: whether two questions are duplicates.

    Under Python 3 the script of PAWS writes b'...' around each sentence; this is removed.
    Raises ValueError for a row of the published index, which has the positions of tokens in place of sentences.
    """
    first, second = (_unwrapped(text) for text in pair_of(record))
    if "qid1" in record or (_INDEX.fullmatch(first) and _INDEX.fullmatch(second)):
        raise ValueError(
            "this is the index of PAWS-QQP, which has the positions of tokens in place of sentences: make the "
            "sentences from the QQP corpus with qqp_generate_data.py of PAWS "
            "(github.com/google-research-datasets/paws), and put its files here"
        )
    return texts({**record, "first": first, "second": second}, task, labelled)


def _unwrapped(text: str) -> str:
    """Return the text that a Python bytes literal such as b'...' stands for; another text as it is."""
    if not _BYTES.fullmatch(text):
        return text
    try:
        return ast.literal_eval(text).decode()
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"expected a sentence, got a broken Python bytes literal: {text!r}") from error


def _number(task: Task, value: Any) -> float:
    """Return a regression label as a number, which must be in the range `task.span`.

    Raises ValueError if it is not.
    """
    low, high = task.span
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise ValueError(f"expected a number from {low:g} to {high:g} as label, got {value!r}")
    return number

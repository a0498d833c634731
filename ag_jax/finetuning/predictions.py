"""From logits to predictions, metrics and the lines of `predictions.jsonl`.

A prediction is the index of a class or candidate, a number on the task's scale, the tags of a sentence, or a text.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.rows import Features
from ag_jax.data.tasks.task import Choices, Example, Examples, Question, Task, Texts
from ag_jax.evaluation import answers, metrics


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A split: its examples, and what they are for a model."""

    examples: Examples
    features: Features


def predict_rows(
    predict: Callable[[dict[str, np.ndarray]], Any], features: Features, batch_size: int, max_length: int
) -> list[np.ndarray]:
    """Logits of every row of the features, in their order; `predict` gives those of a batch, on the device."""
    found: list[Any] = [None] * len(features)
    waiting: list[tuple[np.ndarray, Any]] = []

    def collect() -> None:
        for rows, logits in waiting:
            logits = np.asarray(logits)
            for place in np.flatnonzero(rows >= 0):
                found[rows[place]] = logits[place]
        waiting.clear()

    for batch in buckets.batches(features, batch_size, max_length=max_length, shuffle=False):
        rows = batch.pop("rows")
        waiting.append((rows, predict(batch)))
        if len(waiting) == 8:  # one batch is made while others are computed
            collect()
    collect()
    return found


def of_rows(task: Task, encoded: Encoded, logits: Sequence[np.ndarray]) -> list[Any]:
    """A prediction for each example."""
    examples, features = encoded.examples, encoded.features
    if task.kind == "span":
        windows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in examples]
        for owner, row, characters in zip(features.owner, logits, features.characters, strict=True):
            windows[owner].append((row, characters))
        chosen = [answers.choose(example.context, of) for example, of in zip(examples, windows, strict=True)]
        return [one.text if task.answerable else one.or_none() for one in chosen]
    if task.kind == "tagging":
        return [_tags(task, example, row, of) for example, row, of in zip(examples, features.rows, logits, strict=True)]
    if task.kind == "regression":
        low, high = task.span
        return [float(low + value * (high - low)) for value in logits]
    return [int(np.argmax(of_example)) for of_example in _trimmed(examples, logits)]


def scores_of(task: Task, encoded: Encoded, logits: Sequence[np.ndarray]) -> list[Any] | None:
    """Logits of each example as plain numbers, for ensembles; None for tags and spans."""
    if task.kind in ("span", "tagging"):
        return None
    return [np.asarray(of, np.float64).round(6).tolist() for of in _trimmed(encoded.examples, logits)]


def measure(task: Task, examples: Examples, predictions: Sequence[Any]) -> dict[str, float] | None:
    """The task's metrics, None if labels are not known."""
    if not len(examples) or any(metrics.is_unknown(example) for example in examples):
        return None
    return metrics.evaluate(task, examples, predictions)


def lines(examples: Examples, predictions: Sequence[Any], scores: Sequence[Any] | None) -> str:
    """`predictions.jsonl`: one line an example."""
    rows = []
    for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        row = {"id": example.id, "prediction": prediction, "label": _label(example)}
        rows.append(row if scores is None else row | {"scores": scores[number]})
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _trimmed(examples: Examples, logits: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Without the scores of candidates that an example does not have."""
    return [
        row[: len(example.pairs)] if isinstance(example, Choices) else row
        for example, row in zip(examples, logits, strict=True)
    ]


def _tags(task: Task, example: Example, row: dict[str, Any], logits_LT: np.ndarray) -> list[str]:
    """A tag for each word; words that were cut have none, which is O."""
    places = np.flatnonzero(row["label_weights"])
    found = [task.labels[index] for index in np.argmax(logits_LT[places], axis=-1)]
    return found + ["O"] * (len(example.words) - len(found))


def _label(example: Example) -> Any:
    if isinstance(example, Texts):
        return example.label
    if isinstance(example, Choices):
        return None if example.right is None else list(example.right)
    if isinstance(example, Question):
        return None if example.answers is None else [text for text, _ in example.answers]
    return None if example.tags is None else list(example.tags)

"""Prediction of a whole split: logits of its rows, metrics, and the lines of `predictions_SPLIT.jsonl`."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.rows import Features
from ag_jax.data.tasks.task import Choices, Example, Question, Referent, Task, Texts
from ag_jax.evaluation import metrics, predictions
from ag_jax.finetuning import kinds
from ag_jax.finetuning.encoded import Encoded
from ag_jax.training.journal import NonFiniteError

IN_FLIGHT = 8  # batches that are computed before their logits are copied from the device


@dataclasses.dataclass(frozen=True)
class Predicted:
    """A model's metrics on a split, and the model's predictions as the text of the predictions file (JSON lines).

    metrics: the metrics of the task; None if labels are not known.
    lines: the content of `predictions_SPLIT.jsonl`.
    """

    metrics: dict[str, float] | None
    lines: str


def logits_of(
    predict: Callable[[dict[str, np.ndarray]], Any], features: Features, batch_size: int, max_length: int
) -> list[np.ndarray]:
    """Return the logits of every row (tokenised sequence) of a split, in order, computed in batches by `predict`.

    predict: batch -> logits of its rows, on the device.
    """
    result: list[Any] = [None] * len(features)
    waiting: list[tuple[np.ndarray, Any]] = []

    def collect() -> None:
        for rows, logits in waiting:
            logits = np.asarray(logits)
            for row in np.flatnonzero(rows >= 0):  # the others fill up a batch
                result[rows[row]] = logits[row]
        waiting.clear()

    for batch in buckets.batches(features, batch_size, max_length=max_length, shuffle=False):
        rows = batch.pop("rows")
        waiting.append((rows, predict(batch)))
        if len(waiting) == IN_FLIGHT:
            collect()
    collect()
    return result


def predicted(task: Task, encoded: Encoded, logits: Sequence[np.ndarray]) -> Predicted:
    """Return a split's predictions, decided from its logits, with metrics if the labels of all examples are known.

    logits: the logits of each row of `encoded.features`.

    Raises NonFiniteError for logits that are not finite.
    """
    if not all(np.isfinite(row).all() for row in logits):
        raise NonFiniteError(f"the model of task {task.name} outputs NaN or infinity: lower its learning rate")
    examples = encoded.examples
    scores = kinds.scores(task, examples, encoded.features, logits)
    decisions = [kinds.decide(task, example, of_example) for example, of_example in zip(examples, scores, strict=True)]
    values = kinds.evaluate(task, examples, decisions, scores) if metrics.are_known(examples) else None
    rows = [
        {
            "id": example.id,
            "prediction": prediction,
            "label": _label(example),
            **_class_name(task, prediction),
            "scores": predictions.to_plain(of_example),
        }
        for example, prediction, of_example in zip(examples, decisions, scores, strict=True)
    ]
    return Predicted(values, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _class_name(task: Task, prediction: Any) -> dict[str, str | list[str]]:
    """Return {"class": name of the predicted class}, {"classes": names of predicted labels}, or {} for other tasks."""
    if task.kind == "multilabel":
        return {"classes": [task.labels[label] for label in prediction]}
    is_class = task.labels and isinstance(prediction, int)
    return {"class": task.labels[prediction]} if is_class else {}


def _label(example: Example) -> Any:
    if isinstance(example, Texts | Referent):
        return example.label
    if isinstance(example, Choices):
        return None if example.right is None else list(example.right)
    if isinstance(example, Question):
        return None if example.answers is None else [text for text, _ in example.answers]
    return None if example.tags is None else list(example.tags)

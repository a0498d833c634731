"""From logits to predictions: one for each example, in the order of the examples.

    logits of rows --scores--> what each example's candidates are worth --decide--> prediction

The scores of several models averaged are those of their ensemble. Shape letters: C classes or candidates, L length, W words.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ag_jax.data.tasks.rows import Features
from ag_jax.data.tasks.task import Example, Examples, Task
from ag_jax.evaluation import answers
from ag_jax.evaluation.answers import Candidates

Prediction = int | float | str | tuple[str, ...]
Scores = np.ndarray | Candidates


def scores(task: Task, examples: Examples, features: Features, logits: Sequence[np.ndarray]) -> list[Scores]:
    """What a model says of each example's candidates.

    logits: of each row of the features, in their order: [C] (classification, choice, ranking), a scalar (regression), [L, C]
    (tagging), [L, 2] (span). Axes of candidates and lengths may be longer than the row, as they are in a batch.
    Returns logits [C] of an example's own candidates; the number on the scale of the task; logits [W, C] of the words that were
    not cut; or the best answers.
    """
    if len(logits) != len(features):
        raise ValueError(f"expected the logits of {len(features)} rows, got {len(logits)}")
    if task.kind == "span":
        windows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in examples]
        for owner, of_row, characters in zip(features.owner, logits, features.characters, strict=True):
            windows[owner].append((of_row, characters))
        return [answers.choose(example.context, own) for example, own in zip(examples, windows, strict=True)]
    found = [np.asarray(of_row, np.float64) for of_row in logits]
    if task.kind == "tagging":
        return [of_row[np.flatnonzero(row["label_weights"])] for row, of_row in zip(features.rows, found, strict=True)]
    if task.kind == "regression":
        low, high = task.span
        return [low + (high - low) * of_row for of_row in found]
    if task.kind == "classification":
        return found
    return [of_row[: len(row["labels"])] for row, of_row in zip(features.rows, found, strict=True)]


def decide(task: Task, example: Example, found: Scores) -> Prediction:
    """The index of the best class or candidate; the number; the tags of all words, O for those that were cut; or the answer's
    text, "" for none.
    """
    if task.kind == "span":
        return found.text if task.answerable else found.or_none()
    if task.kind == "tagging":
        tags = [task.labels[label] for label in np.argmax(found, axis=-1)]
        return (*tags, *["O"] * (len(example.words) - len(tags)))
    return float(found) if task.kind == "regression" else int(np.argmax(found))


def predict(task: Task, examples: Examples, features: Features, logits: Sequence[np.ndarray]) -> list[Prediction]:
    """What a model says of each example: `decide` of its `scores`."""
    found = scores(task, examples, features, logits)
    return [decide(task, example, of_example) for example, of_example in zip(examples, found, strict=True)]


def average(task: Task, of_models: Sequence[Scores]) -> Scores:
    """The scores of an ensemble for one example: the logarithm of the mean of the models' probabilities, over classes,
    candidates or answers; of a regression the mean of the numbers.
    """
    if task.kind == "span":
        return answers.average(of_models)
    stacked = np.stack([np.asarray(one, np.float64) for one in of_models])
    return stacked.mean(0) if task.kind == "regression" else _log_mean(stacked)


def to_plain(found: Scores) -> Any:
    """Scores as JSON holds them, to six decimals."""
    if isinstance(found, Candidates):
        return {"none": round(found.none, 6), "answers": [[text, round(score, 6)] for text, score in found.answers]}
    return np.round(found, 6).tolist()


def from_plain(task: Task, value: Any) -> Scores:
    """The inverse of `to_plain`, but for what was rounded."""
    if task.kind == "span":
        return Candidates(tuple((text, score) for text, score in value["answers"]), value["none"])
    return np.asarray(value, np.float64)


def _log_mean(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.log(np.maximum(np.exp(logs).mean(0), np.finfo(np.float64).tiny))

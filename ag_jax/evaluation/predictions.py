"""From logits to predictions: one for each example, in the order of the examples.

Shape letters: C classes or candidates, L length.
"""

from collections.abc import Sequence

import numpy as np

from ag_jax.data.tasks.rows import Features
from ag_jax.data.tasks.task import Examples, Task
from ag_jax.evaluation import answers

Prediction = int | float | str | tuple[str, ...]


def predict(task: Task, examples: Examples, features: Features, logits: Sequence[np.ndarray]) -> list[Prediction]:
    """What a model says of each example.

    logits: of each row of the features, in their order: [C] (classification, choice, ranking), a scalar (regression), [L, C]
    (tagging), [L, 2] (span). Axes of candidates and lengths may be longer than the row, as they are in a batch.
    Returns the index of the class or candidate; the number on the scale of the task; the tags of all words, with O for words
    that were cut; or the text of the answer, "" for none.
    """
    if len(logits) != len(features):
        raise ValueError(f"expected the logits of {len(features)} rows, got {len(logits)}")
    if task.kind == "span":
        chosen = choose_answers(examples, features, logits)
        return [one.text if task.answerable else one.or_none() for one in chosen]
    if task.kind == "tagging":
        rows = zip(examples, features.rows, logits, strict=True)
        return [_tags(task, len(example.words), row["label_weights"], scores) for example, row, scores in rows]
    if task.kind == "regression":
        low, high = task.span
        return [low + (high - low) * float(score) for score in logits]
    if task.kind == "classification":
        return [int(np.argmax(scores)) for scores in logits]
    return [int(np.argmax(scores[: len(row["labels"])])) for row, scores in zip(features.rows, logits, strict=True)]


def choose_answers(examples: Examples, features: Features, logits: Sequence[np.ndarray]) -> list[answers.Chosen]:
    """The best answer to each question, over all its windows, and how much better none is."""
    windows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in examples]
    for owner, scores, characters in zip(features.owner, logits, features.characters, strict=True):
        windows[owner].append((scores, characters))
    return [answers.choose(example.context, own) for example, own in zip(examples, windows, strict=True)]


def average(logits: Sequence[Sequence[np.ndarray]], task: Task) -> list[np.ndarray]:
    """The logits of an ensemble, from those of each model: for each row the logarithm of the mean of their probabilities.

    Probabilities are over classes or candidates, and over the tokens for the beginning and for the end of an answer; what a
    batch added to a row must have been cut off. Of a regression it is the mean of the numbers.
    """
    rows = (np.stack([np.asarray(one, np.float64) for one in of_row]) for of_row in zip(*logits, strict=True))
    if task.kind == "regression":
        return [row.mean(0) for row in rows]
    axis = 1 if task.kind == "span" else -1
    return [_log_mean(row, axis) for row in rows]


def _log_mean(scores: np.ndarray, axis: int) -> np.ndarray:
    shifted = scores - scores.max(axis=axis, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return np.log(np.maximum(np.exp(logs).mean(0), np.finfo(np.float64).tiny))


def _tags(task: Task, words: int, weights_L: np.ndarray, logits_LC: np.ndarray) -> tuple[str, ...]:
    at = np.flatnonzero(weights_L)
    found = [task.labels[label] for label in np.argmax(np.asarray(logits_LC)[at], axis=-1)]
    return (*found, *["O"] * (words - len(found)))

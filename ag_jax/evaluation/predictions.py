"""Functions for each kind of task that turn a model's logits into one prediction for each example.

A row is one sequence that the model reads. An example is one row, except that a long context of a question is split
into several.

    logits of rows --scores--> scores of each example's candidates --decide--> prediction

The scores of an ensemble are the averaged scores of its models.
Shape letters: C classes or candidates, L length, W words.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ag_jax.data.tasks.rows import Features
from ag_jax.data.tasks.task import Choices, Examples, Question, Referent, TaggedSentence, Task, Texts
from ag_jax.evaluation import answers
from ag_jax.evaluation.answers import Candidates

TaskPrediction = int | float | str | tuple[str, ...] | tuple[int, ...]
Scores = np.ndarray | Candidates
Logits = Sequence[np.ndarray]  # for each row of the features, in order; axes may be padded beyond the row


def class_scores(task: Task, examples: Examples, features: Features, logits: Logits) -> list[Scores]:
    """Return the logits of each example's classes or labels, as arrays (classes,)."""
    del task, examples, features
    return [np.asarray(of_row, np.float64) for of_row in logits]


def number_scores(task: Task, examples: Examples, features: Features, logits: Logits) -> list[Scores]:
    """Return the number predicted for each example, on the scale of the task."""
    del examples, features
    low, high = task.span
    return [low + (high - low) * np.asarray(of_row, np.float64) for of_row in logits]


def candidate_scores(task: Task, examples: Examples, features: Features, logits: Logits) -> list[Scores]:
    """Return the logits of each example's candidates, as arrays (candidates,) without the padding of the batch."""
    del task, examples
    pairs = zip(features.rows, logits, strict=True)
    return [np.asarray(of_row, np.float64)[: len(row["labels"])] for row, of_row in pairs]


def tag_scores(task: Task, examples: Examples, features: Features, logits: Logits) -> list[Scores]:
    """Return for each sentence an array (words, classes): the tag logits at the first token of each word.

    Words that were cut off because the sentence was too long are left out.
    """
    del task, examples
    pairs = zip(features.rows, logits, strict=True)
    return [np.asarray(of_row, np.float64)[np.flatnonzero(row["label_weights"])] for row, of_row in pairs]


def answer_scores(task: Task, examples: Examples, features: Features, logits: Logits) -> list[Scores]:
    """Return for each question the best answers with their scores, chosen over all windows of the question's context.

    logits: an array (tokens, 2) for each window: the logits of each token to start and to end the answer.
    """
    del task
    return [*_spans(examples, features, logits)]


def _spans(examples: Examples, features: Features, logits: Logits) -> list[Candidates]:
    windows: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in examples]
    for owner, of_row, characters in zip(features.owner, logits, features.characters, strict=True):
        windows[owner].append((of_row, characters))
    return [answers.choose(example.context, parts) for example, parts in zip(examples, windows, strict=True)]


def classified_answer_scores(task: Task, examples: Examples, features: Features, logits: Logits) -> list[Scores]:
    """Return for each question the best answers with their scores, and a classifier's score of "no answer".

    The score of "no answer" is that of the best answer plus the logit of "no answer". That logit is the least one of
    the question's windows, because it requires that no window has an answer. So "no answer" scores higher than the best
    answer exactly where its logit is above 0.

    logits: an array (tokens, 3) for each window, as `models.heads.AnswerHead` returns them.
    """
    del task
    spans = _spans(examples, features, [of_row[:, :2] for of_row in logits])
    none: np.ndarray = np.full(len(examples), np.inf)
    np.minimum.at(none, features.owner, [float(of_row[0, 2]) - float(of_row[1, 2]) for of_row in logits])
    return [
        Candidates(candidates.answers, candidates.best_score + float(logit))
        for candidates, logit in zip(spans, none, strict=True)
    ]


def best_index(task: Task, example: Texts | Choices, scores: np.ndarray) -> int:
    """Return the index of the class or candidate with the highest score."""
    del task, example
    return int(np.argmax(scores))


def label_set(task: Task, example: Texts, scores: np.ndarray) -> tuple[int, ...]:
    """Return the ascending indices of the labels whose probability, the sigmoid of the score, is above one half."""
    del task, example
    return tuple(np.flatnonzero(scores > 0).tolist())


def is_first(task: Task, example: Referent, scores: np.ndarray) -> int:
    """Return 1 if no phrase of the example scores higher than the first (the pronoun's referent, then), else 0."""
    del task, example
    return int(np.argmax(scores) == 0)


def number(task: Task, example: Texts, scores: np.ndarray) -> float:
    """Return a predicted number as a float."""
    del task, example
    return float(scores)


def tags(task: Task, example: TaggedSentence, scores: np.ndarray) -> tuple[str, ...]:
    """Return the highest-scoring tag of each word; for truncated words O, or _ where the task has no tag O."""
    best = [task.labels[label] for label in np.argmax(scores, axis=-1)]
    unread = "O" if "O" in task.labels else "_"
    return (*best, *[unread] * (len(example.words) - len(best)))


def answer(task: Task, example: Question, scores: Candidates) -> str:
    """Return the text of the best answer, or "" for "no answer" where the task allows it."""
    del example
    return scores.text if task.answerable else scores.best_or_empty(task.threshold)


def log_mean_probabilities(of_models: Sequence[np.ndarray]) -> np.ndarray:
    """Return, for each class or candidate, the logarithm of the mean of the models' probabilities.

    of_models: the logits of each model, with classes or candidates on the last axis; the result has the shape of one.
    """
    stacked = np.stack([np.asarray(of_model, np.float64) for of_model in of_models])
    shifted = stacked - stacked.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return np.log(np.maximum(np.exp(logs).mean(0), np.finfo(np.float64).tiny))


def logits_of_mean_probabilities(of_models: Sequence[np.ndarray]) -> np.ndarray:
    """Return, for each label of a multi-label task, the logit of the mean of the models' probabilities.

    of_models: the logits of each model.
    """
    stacked = np.stack([np.asarray(of_model, np.float64) for of_model in of_models])
    yes, no = (np.logaddexp.reduce(-np.logaddexp(0, sign * stacked), axis=0) for sign in (-1, 1))
    return yes - no


def mean_of_numbers(of_models: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of the numbers that the models predict."""
    return np.stack([np.asarray(of_model, np.float64) for of_model in of_models]).mean(0)


def to_plain(scores: Scores) -> Any:
    """Convert scores to values that JSON can store, rounded to six decimals."""
    if isinstance(scores, Candidates):
        return {"none": round(scores.none, 6), "answers": [[text, round(score, 6)] for text, score in scores.answers]}
    return np.round(scores, 6).tolist()


def array_from_plain(value: Any) -> np.ndarray:
    """Convert a number or nested lists, made by `to_plain` from an array of scores, back to the array."""
    return np.asarray(value, np.float64)


def answers_from_plain(value: Any) -> Candidates:
    """Convert a dict, made by `to_plain` from the `Candidates` (best answers) of a question, back to `Candidates`."""
    return Candidates(tuple((text, score) for text, score in value["answers"]), value["none"])

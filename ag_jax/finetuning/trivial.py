"""Scores of predictions that need no model: always the best label or labels, the mean, or a random candidate."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ag_jax.data.tasks.task import Task
from ag_jax.finetuning import kinds


def baseline(task: Task, examples: Sequence[Any]) -> dict[str, Any] | None:
    """Return the `metrics` that the trivial prediction has on labelled examples, and the `prediction` itself.

    For classes, the prediction is one label for all examples: the one with the best primary metric, of equal ones the
    most frequent. For sets of labels, it is one set for all examples: the one with the best micro F1. For tagged words
    it is the one most frequent tag, and for numbers the mean. For choices, the primary metric is the mean over the
    candidates, and `prediction` is None. Returns None for questions with answers in a text, and where a custom metric
    cannot score constant predictions.
    """
    labels: list[Any] = []
    if task.kind in ("classification", "referent", "regression"):
        labels = [example.label for example in examples]
    elif task.kind == "tagging":
        labels = [tag for example in examples for tag in example.tags]
    elif task.kind in ("choice", "ranking") and task.metric in ("accuracy", "f1"):  # which are means over examples
        rates = [
            np.mean(kinds.per_example(task, [example] * len(example.pairs), range(len(example.pairs))))
            for example in examples
        ]
        return {"prediction": None, "metrics": {task.metric: float(np.mean(rates))}}
    elif task.kind == "multilabel":
        constant = _best_set([example.label for example in examples])
        try:
            metrics = kinds.evaluate(task, examples, [constant] * len(examples))
        except ValueError:  # a custom metric, as below
            return None
        return {"prediction": task.names_of(constant), "metrics": metrics}
    if not labels:
        return None
    options: Sequence[Any]
    counts = Counter(labels)
    if task.kind == "regression":
        options = [float(np.mean(labels))]
    elif task.kind == "tagging":
        options = [max(task.labels, key=lambda tag: counts[tag])]
    else:
        options = sorted(range(len(task.labels)), key=lambda label: -counts[label])
    scored = []
    for one in options:
        predicted = [(one,) * len(example.tags) if task.kind == "tagging" else one for example in examples]
        try:
            scored.append((one, kinds.evaluate(task, examples, predicted)))
        except ValueError:  # a custom metric, such as a correlation that is not defined for equal predictions
            return None
    one, metrics = max(scored, key=lambda pair: pair[1][task.metric])
    return {"prediction": task.labels[one] if isinstance(one, int) else one, "metrics": metrics}


def _best_set(labels: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the set of labels that has the best micro F1 if it is predicted for all examples, of equal ones a smaller.

    Of the sets of k labels, that of the k most frequent ones is best, with F1 = 2 right / (k examples + all labels).
    """
    counts = Counter(label for of_example in labels for label in of_example)
    every, right = sum(counts.values()), 0
    best, best_f1 = 0, 0.0
    ordered = sorted(counts, key=lambda label: (-counts[label], label))
    for number, label in enumerate(ordered, 1):
        right += counts[label]
        if (f1 := 2 * right / (number * len(labels) + every)) > best_f1:
            best, best_f1 = number, f1
    return tuple(sorted(ordered[:best]))


def named(kind: str, predictions: Collection[Any] = ()) -> str:
    """Return in words what trivial predictions are: "always answering the best single label of the set (good)".

    The set is the one that is scored: on training examples, another label may be the best.

    predictions: those of several data sets, which are named if all are the same.
    """
    if kind in ("choice", "ranking"):
        return "choosing at random"
    what = {
        "regression": "mean",
        "tagging": "most frequent tag of the set",
        "multilabel": "labels with the best micro F1 on the set",
    }.get(kind, "best single label of the set")
    same = [f"{one:.3g}" if kind == "regression" else one for one in predictions if len(predictions) == 1]
    return f"always answering the {what}" + "".join(f" ({one})" for one in same)

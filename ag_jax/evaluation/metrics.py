"""Metrics of tasks from predictions, all from 0 to 1 (correlations from -1), larger is better.

A prediction is the index of a class or candidate, a number on the scale of the task, the tags of a sentence, or a text.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

from ag_jax.data.tasks.task import Choices, Example, Question, Task, Texts, Words
from ag_jax.evaluation import answers, entities


def accuracy(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """The part of predictions that are right."""
    return float(sklearn.metrics.accuracy_score(labels, predictions))


def f1(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """F1 of class 1 of two; 0 where it is neither there nor predicted."""
    return float(sklearn.metrics.f1_score(labels, predictions, pos_label=1, zero_division=0))


def macro_f1(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """The mean of the F1 of every class that is there or predicted."""
    return float(sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0))


def matthews(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Matthews' correlation; 0 where all predictions, or all labels, are one class."""
    if len({*labels}) < 2 or len({*predictions}) < 2:
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Pearson's correlation; 0 where all predictions or all labels are equal, which leaves it undefined."""
    return _correlation(scipy.stats.pearsonr, labels, predictions)


def spearman(labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Spearman's rank correlation; 0 where it is undefined, as above."""
    return _correlation(scipy.stats.spearmanr, labels, predictions)


_SIMPLE: dict[str, Callable[[Sequence, Sequence], float]] = {
    function.__name__: function for function in (accuracy, f1, macro_f1, matthews, pearson, spearman)
}
_LABELS = {Texts: "label", Choices: "right", Words: "tags", Question: "answers"}


def evaluate(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
    """The metrics of `task.metrics`, in their order.

    Raises ValueError if there are not as many predictions as examples, none at all, or examples whose label is not known.
    """
    if len(examples) != len(predictions) or not len(examples):
        raise ValueError(f"expected a prediction for each example, got {len(predictions)} for {len(examples)}")
    unknown = sum(is_unknown(example) for example in examples)
    if unknown:
        raise ValueError(
            f"the labels of {unknown} of {len(examples)} examples of task {task.name} are not known: predict them only"
        )
    scores = _scores(task, examples, predictions)
    return {name: scores[name] for name in task.metrics}


def per_example(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> np.ndarray:
    """How good each prediction is, float64, larger is better: for a paired test over examples.

    Right or not (classification, choice), minus the squared error (regression), F1 of the answer (span, ReCoRD), the part of
    the words whose tag is right (tagging, whose F1 is no mean over sentences).
    """
    return np.asarray([_good(task, *pair) for pair in zip(examples, predictions, strict=True)], np.float64)


def is_unknown(example: Example) -> bool:
    """Whether the label of an example is not known."""
    return getattr(example, _LABELS[type(example)]) is None


def _scores(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
    if task.kind == "tagging":
        gold = [example.tags for example in examples]
        found = entities.entity_scores(gold, predictions)
        return {"entity_f1": found.pop("f1"), **found, "token_f1": entities.token_f1(gold, predictions)}
    if _is_answered(task):
        return _answer_scores([_answers(*pair) for pair in zip(examples, predictions, strict=True)])
    if task.kind in ("choice", "ranking"):
        return {"accuracy": float(np.mean(per_example(task, examples, predictions)))}
    labels = [example.label for example in examples]
    return {name: _SIMPLE[name](labels, predictions) for name in task.metrics}


def _answer_scores(answered: Sequence[tuple[str, Sequence[str]]]) -> dict[str, float]:
    exact, overlap = (np.asarray([score(*pair) for pair in answered]) for score in (answers.exact_match, answers.f1))
    has_answer = np.asarray([bool(wanted) for _, wanted in answered])
    return {
        "f1": float(overlap.mean()),
        "exact_match": float(exact.mean()),
        "has_answer_f1": _mean(overlap[has_answer]),
        "has_answer_exact_match": _mean(exact[has_answer]),
        "no_answer_accuracy": _mean(exact[~has_answer]),
    }


def _good(task: Task, example: Example, prediction: Any) -> float:
    if task.kind == "tagging":
        return float(np.mean([tag == other for tag, other in zip(example.tags, prediction, strict=True)]))
    if task.kind == "regression":
        return -((example.label - prediction) ** 2)
    if _is_answered(task):
        return answers.f1(*_answers(example, prediction))
    return float(prediction in example.right if isinstance(example, Choices) else prediction == example.label)


def _is_answered(task: Task) -> bool:
    """Whether predictions are scored as texts: spans, and the candidates of ReCoRD."""
    return task.kind == "span" or (task.kind == "choice" and "exact_match" in task.metrics)


def _answers(example: Question | Choices, prediction: Any) -> tuple[str, Sequence[str]]:
    """The predicted text, and those that are right."""
    if isinstance(example, Question):
        return prediction, [text for text, _ in example.answers]
    return example.names[prediction], [example.names[right] for right in example.right]


def _correlation(measure: Callable, labels: Sequence[float], predictions: Sequence[float]) -> float:
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(measure(labels, predictions).statistic)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0

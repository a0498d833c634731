"""Metrics of predictions on downstream tasks; larger is better for all of them.

Functions `of_...` return the metrics of an evaluation set, from 0 to 1 (correlations from -1). Functions `rate_...`
return the score of one prediction, for a paired test over examples: from 0 to 1, or minus a squared error. A prediction
is the index of a class or candidate, the indices of labels, a number on the scale of the task, the tags of a sentence,
or a text.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats
import sklearn.metrics

from ag_jax.data.tasks.task import Choices, Example, Question, Referent, TaggedSentence, Task, Texts
from ag_jax.evaluation import answers, classes, entities
from ag_jax.evaluation.answers import Candidates
from ag_jax.settings import imported


def accuracy(labels: Sequence[Any], predictions: Sequence[Any]) -> float:
    """Return the fraction of predictions that are right."""
    return float(sklearn.metrics.accuracy_score(labels, predictions))


def f1(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Return the F1 of class 1 in binary classification; 0 if class 1 is neither labelled nor predicted."""
    return float(sklearn.metrics.f1_score(labels, predictions, pos_label=1, zero_division=0))


def macro_f1(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Return the mean F1 over all classes that are labelled or predicted."""
    return float(sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0))


def matthews(labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Return Matthews' correlation coefficient; 0 if all predictions, or all labels, are the same class."""
    if len({*labels}) < 2 or len({*predictions}) < 2:
        return 0.0
    return float(sklearn.metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 where it is undefined: all predictions or labels equal, or fewer than two.

    Equal predictions say nothing about the labels, so they are worse than a positive correlation and better than a
    negative one. `undefined` tells whether equal labels are the reason.
    """
    return _correlation(scipy.stats.pearsonr, labels, predictions)


def spearman(labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 where undefined: all predictions or labels equal, or fewer than two."""
    return _correlation(scipy.stats.spearmanr, labels, predictions)


def group_exact_match(groups: Sequence[str], labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Return the fraction of groups of which all predictions are right; for MultiRC, of questions (Wang et al. 2019).

    groups: the group of each prediction.
    """
    rows = zip(groups, labels, predictions, strict=True)
    wrong = {group for group, label, prediction in rows if label != prediction}
    return 1 - len(wrong) / len(set(groups))


def gender_parity(groups: Sequence[str], labels: Sequence[int], predictions: Sequence[int]) -> float:
    """Return the fraction of groups with equal predictions; for AX-g, of pairs whose pronouns differ in gender alone.

    Groups of one example, as a subset of the examples may have, are left out; without any other, the result is 0.
    """
    del labels
    by_group: dict[str, list[int]] = {}
    for group, prediction in zip(groups, predictions, strict=True):
        by_group.setdefault(group, []).append(prediction)
    are_equal = [len(set(of_group)) == 1 for of_group in by_group.values() if len(of_group) > 1]
    return float(np.mean(are_equal)) if are_equal else 0.0


_GROUPED = {function.__name__: function for function in (group_exact_match, gender_parity)}
_SIMPLE: dict[str, Callable[[Sequence, Sequence], float]] = {
    function.__name__: function for function in (accuracy, f1, macro_f1, matthews, pearson, spearman)
}
_LABELS = {Texts: "label", Referent: "label", Choices: "right", TaggedSentence: "tags", Question: "answers"}


def is_import_path(name: str) -> bool:
    """Return whether the name of a metric is the import path `module.function` of a custom one."""
    return "." in name


def check_imported(task: Task) -> None:
    """Raise ValueError if a custom metric of a task cannot be imported."""
    for name in filter(is_import_path, task.metrics):
        imported.function(f"tasks.{task.name}.metric={name}", name)


def of_imported(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> dict[str, float]:
    """Return {metric: value} of a task's custom metrics, functions of (labels, predictions) that return a number.

    Labels and predictions are indices of classes, tuples of indices of labels, numbers, or tuples of tags; of a choice
    a label is a tuple with the indices of the right candidates, and of a question it is a tuple with the texts of its
    answers.

    Raises ValueError if a function cannot be imported, fails, or returns no finite number.
    """
    values = {}
    # Tags and sets of labels that were read from a file of predictions are lists.
    predictions = [tuple(one) if isinstance(one, list) else one for one in predictions]
    for name in filter(is_import_path, task.metrics):
        labels = [getattr(example, _LABELS[type(example)]) for example in examples]
        if examples and isinstance(examples[0], Question):
            labels = [tuple(text for text, _ in pairs) for pairs in labels]
        function = imported.function(f"tasks.{task.name}.metric={name}", name)
        try:
            value = float(function(labels, list(predictions)))
        except Exception as error:  # the function is not ours, and may raise anything
            raise ValueError(
                f"the metric {name} of task {task.name} failed: {type(error).__name__}: {error}; it must be a function "
                "of (labels, predictions) that returns a number"
            ) from error
        if not np.isfinite(value):
            raise ValueError(f"the metric {name} of task {task.name} must return a finite number, got {value}")
        values[name] = value
    return values


def check(task: Task, examples: Sequence[Example], predictions: Sequence[Any]) -> None:
    """Raise ValueError unless there are examples, and every one has a prediction and a known label."""
    if len(examples) != len(predictions) or not len(examples):
        raise ValueError(f"expected a prediction for each example, got {len(predictions)} for {len(examples)}")
    unknown = sum(is_unknown(example) for example in examples)
    if unknown:
        raise ValueError(
            f"the labels of {unknown} of {len(examples)} examples of task {task.name} are not known: add them, or "
            "evaluate without these examples"
        )


def are_known(examples: Sequence[Example]) -> bool:
    """Return whether there are examples, and the labels of all are known."""
    return bool(len(examples)) and not any(map(is_unknown, examples))


def undefined(task: Task, examples: Sequence[Example]) -> list[str]:
    """Return the names of the task's metrics that are 0 on these examples for any predictions.

    Such is a correlation with labels that are all equal.
    """
    labels = [getattr(example, _LABELS[type(example)]) for example in examples]
    if task.kind in ("classification", "regression", "referent"):
        zero = {"matthews", "pearson", "spearman"} if len(set(labels)) < 2 else set()
        zero |= {"f1"} if 1 not in labels else set()
    elif task.kind == "multilabel":
        zero = set() if any(labels) else {"micro_f1", "macro_f1"}
    elif task.kind == "tagging":
        zero = (
            set()
            if {*itertools.chain(*labels)} - {"O"}
            else {"entity_f1", "precision", "recall", "strict_f1", "token_f1"}
        )
    elif task.kind in ("span", "span_or_none"):
        zero = set() if any(labels) else {"has_answer_f1", "has_answer_exact_match"}
        zero |= {"no_answer_accuracy"} if all(labels) else set()
    else:
        zero = set()
    return [name for name in task.metrics if name in zero]


def is_unknown(example: Example) -> bool:
    """Return whether the label of an example is not known."""
    return getattr(example, _LABELS[type(example)]) is None


def of_labels(task: Task, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Return {metric: value} of the task's metrics for predicted classes or numbers."""
    labels = [example.label for example in examples]
    values = {name: _SIMPLE[name](labels, predictions) for name in task.metrics if name in _SIMPLE}
    for name in set(task.metrics) & set(_GROUPED):
        values[name] = _GROUPED[name]([example.group for example in examples], labels, predictions)
    return values


def of_label_sets(task: Task, examples: Sequence[Any], predictions: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return {metric: value} of predicted sets of labels: F1 of all labels together, mean F1 of labels, exact match.

    The F1 of a label that is neither labelled nor predicted is 0. Exact match is the fraction of examples of which all
    labels are right.
    """
    labels = [example.label for example in examples]
    each = classes.scores_of_sets(labels, predictions, len(task.labels))
    return {
        "micro_f1": classes.micro_f1(labels, predictions),
        "macro_f1": float(np.mean([of_label["f1"] for of_label in each])),
        "exact_match": float(np.mean([{*one} == {*other} for one, other in zip(labels, predictions, strict=True)])),
    }


def of_choices(task: Task, examples: Sequence[Choices], predictions: Sequence[int]) -> dict[str, float]:
    """Return {metric: value} of chosen candidates: accuracy, or for ReCoRD the F1 and exact match of their texts.

    ReCoRD is the task whose metrics have `exact_match`.
    """
    if _is_read_as_text(task):
        return _answer_scores([_chosen_text(*pair) for pair in zip(examples, predictions, strict=True)])
    return {"accuracy": float(np.mean([rate_choice(task, *pair) for pair in zip(examples, predictions, strict=True)]))}


def of_tags(task: Task, examples: Sequence[TaggedSentence], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return {metric: value} of predicted tags: precision, recall and F1 of entities, and F1 of single tags.

    `strict_f1` is the F1 of entities whose tags are as the scheme of the task writes them.

    Of plain tags: accuracy, macro-F1 over the tags that are labelled or predicted, and F1 of single tags.
    """
    gold: list[Any] = [example.tags for example in examples]
    if task.scheme == "plain":
        labels, predicted = [*itertools.chain(*gold)], [*itertools.chain(*predictions)]
        names = [tag for tag in task.labels if tag in {*labels, *predicted}]
        macro = sklearn.metrics.f1_score(labels, predicted, labels=names, average="macro", zero_division=0)
        values = {"accuracy": accuracy(labels, predicted), "macro_f1": float(macro)}
        return values | {"token_f1": entities.token_f1(gold, predictions)}
    scores = entities.entity_scores(gold, predictions)
    strict = entities.entity_scores(gold, predictions, task.scheme)["f1"]
    scores = {"entity_f1": scores.pop("f1"), **scores, "strict_f1": strict}
    return scores | {"token_f1": entities.token_f1(gold, predictions)}


def of_answers(task: Task, examples: Sequence[Question], predictions: Sequence[str]) -> dict[str, float]:
    """Return {metric: value} of predicted answers: F1 and exact match, as SQuAD's official scripts compute them."""
    del task
    return _answer_scores([_answers(*pair) for pair in zip(examples, predictions, strict=True)])


# Metrics with the threshold of "no answer" that is best for the same examples: from their names to the scores of an
# answer. SQuAD 2.0's official script calls them best_f1 and best_exact.
TUNED: dict[str, Callable[[str, Sequence[str]], float]] = {
    "best_f1": answers.f1,
    "best_exact_match": answers.exact_match,
}


def reads_scores(task: Task) -> bool:
    """Return whether some of the task's metrics are computed from the scores of answers, not from predictions alone."""
    return any(name in TUNED for name in task.metrics)


def tuned_thresholds(
    task: Task, examples: Sequence[Any], scores: Sequence[Candidates]
) -> dict[str, tuple[float, float]]:
    """Return {metric: (best value, the threshold of "no answer" that gives it)} for the task's tuned metrics.

    examples: the questions.
    scores: the best answers of each question. A question gets no answer if the score of "no answer" exceeds that of the
        best answer by more than the threshold.
    """
    margins = [candidates.none - candidates.answers[0][1] if candidates.answers else np.inf for candidates in scores]
    right_texts = [[text for text, _ in example.answers] for example in examples]
    tuned = {}
    for name in task.metrics:
        if score := TUNED.get(name):
            answered = [score(candidates.text, texts) for candidates, texts in zip(scores, right_texts, strict=True)]
            tuned[name] = answers.tuned(answered, [score("", texts) for texts in right_texts], margins)
    return tuned


def rate_class(task: Task, example: Texts | Referent, prediction: int) -> float:
    """Return 1 if the predicted class is right, else 0."""
    del task
    return float(prediction == example.label)


def rate_label_set(task: Task, example: Any, prediction: Sequence[int]) -> float:
    """Return the F1 of the labels of an example, 1 if it has no label and none is predicted.

    Micro F1 cannot be used here, because it is not a mean over examples.
    """
    del task
    if not example.label and not prediction:
        return 1.0
    return classes.micro_f1([example.label], [prediction])


def rate_number(task: Task, example: Any, prediction: float) -> float:
    """Return minus the squared error of a predicted number."""
    del task
    return -((example.label - prediction) ** 2)


def rate_choice(task: Task, example: Choices, prediction: int) -> float:
    """Return 1 if the chosen candidate is right, else 0; for ReCoRD, the F1 of its text."""
    return (
        answers.f1(*_chosen_text(example, prediction)) if _is_read_as_text(task) else float(prediction in example.right)
    )


def rate_tags(task: Task, example: TaggedSentence, prediction: Sequence[str]) -> float:
    """Return the fraction of words whose tag is right.

    Entity F1 cannot be used here, because it is not a mean over sentences.
    """
    del task
    return float(np.mean([tag == other for tag, other in zip(example.tags, prediction, strict=True)]))


def rate_answer(task: Task, example: Question, prediction: str) -> float:
    """Return the F1 of words between a predicted answer and the right answer that matches it best."""
    del task
    return answers.f1(*_answers(example, prediction))


def _answer_scores(pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, float]:
    """Return {metric: value} of SQuAD's metrics for pairs (predicted answer, right answers)."""
    exact, overlap = (np.asarray([score(*pair) for pair in pairs]) for score in (answers.exact_match, answers.f1))
    has_answer: np.ndarray = np.asarray([bool(right) for _, right in pairs])
    return {
        "f1": float(overlap.mean()),
        "exact_match": float(exact.mean()),
        "has_answer_f1": _mean(overlap[has_answer]),
        "has_answer_exact_match": _mean(exact[has_answer]),
        "no_answer_accuracy": _mean(exact[~has_answer]),
    }


def _is_read_as_text(task: Task) -> bool:
    return "exact_match" in task.metrics


def _chosen_text(example: Choices, prediction: int) -> tuple[str, Sequence[str]]:
    """Return (text of the chosen candidate, texts of the right candidates)."""
    return example.names[prediction], [example.names[right] for right in example.right]


def _answers(example: Question, prediction: str) -> tuple[str, Sequence[str]]:
    """Return (the predicted answer, texts of the right answers), the arguments of `answers.f1`."""
    return prediction, [text for text, _ in example.answers]


def _correlation(measure: Callable, labels: Sequence[float], predictions: Sequence[float]) -> float:
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(measure(labels, predictions).statistic)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0

"""The kinds of tasks, such as classification: how examples are tokenised, logits decoded and predictions scored.

`KINDS` has one object for each kind. The functions take a task, and use the object of its kind. The heads of the kinds
are in `models.heads`, and their exported names in `interop.task_heads`, in tables with the same keys.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ag_jax.data.tasks import encoding, windows
from ag_jax.data.tasks.rows import Features, RowSettings
from ag_jax.data.tasks.task import Example, Examples, Task
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.evaluation import answers, metrics, predictions
from ag_jax.evaluation.predictions import Logits, Scores, TaskPrediction
from ag_jax.objectives import supervised
from ag_jax.objectives.supervised import TaskLoss


@dataclasses.dataclass(frozen=True)
class TaskKind:
    """The functions and the loss that implement one kind of task, such as classification.

    encode: (task, examples, tokenizer, shape) -> rows of token ids with labels.
    loss: the loss of the labels, given the logits.
    scores: (task, examples, features, logits) -> scores of each example's candidates, such as classes or answers.
    measure: (task, examples, predictions) -> metrics of the set.
    rate: (task, example, prediction) -> how good the prediction is, larger is better.
    decide: (task, example, scores) -> prediction.
    average: scores of one example by several models -> scores of their ensemble.
    from_plain: scores from JSON, as `predictions.to_plain` wrote them.
    """

    encode: Callable[[Task, Examples, Tokenizer, RowSettings], Features]
    loss: TaskLoss
    scores: Callable[[Task, Examples, Features, Logits], list[Scores]]
    measure: Callable[[Task, Sequence[Any], Sequence[Any]], dict[str, float]]
    rate: Callable[[Task, Any, Any], float]
    decide: Callable[[Task, Any, Any], TaskPrediction] = predictions.best_index
    average: Callable[[Sequence[Any]], Scores] = predictions.log_mean_probabilities
    from_plain: Callable[[Any], Scores] = predictions.array_from_plain


_SPAN = TaskKind(
    encode=windows.encode_questions,
    loss=supervised.SPAN_LOSS,
    scores=predictions.answer_scores,
    decide=predictions.answer,
    average=answers.average,
    from_plain=predictions.answers_from_plain,
    measure=metrics.of_answers,
    rate=metrics.rate_answer,
)
_CHOICE = TaskKind(
    encode=encoding.encode_choices,
    loss=supervised.CHOICE_LOSS,
    scores=predictions.candidate_scores,
    measure=metrics.of_choices,
    rate=metrics.rate_choice,
)
KINDS = {
    "classification": TaskKind(
        encode=encoding.encode_classes,
        loss=supervised.CLASS_LOSS,
        scores=predictions.class_scores,
        measure=metrics.of_labels,
        rate=metrics.rate_class,
    ),
    "multilabel": TaskKind(
        encode=encoding.encode_label_sets,
        loss=supervised.LABEL_SET_LOSS,
        scores=predictions.class_scores,
        decide=predictions.label_set,
        average=predictions.logits_of_mean_probabilities,
        measure=metrics.of_label_sets,
        rate=metrics.rate_label_set,
    ),
    "regression": TaskKind(
        encode=encoding.encode_numbers,
        loss=supervised.NUMBER_LOSS,
        scores=predictions.number_scores,
        decide=predictions.number,
        average=predictions.mean_of_numbers,
        measure=metrics.of_labels,
        rate=metrics.rate_number,
    ),
    "choice": _CHOICE,
    "ranking": _CHOICE,
    "tagging": TaskKind(
        encode=encoding.encode_words,
        loss=supervised.TAG_LOSS,
        scores=predictions.tag_scores,
        decide=predictions.tags,
        measure=metrics.of_tags,
        rate=metrics.rate_tags,
    ),
    "span": _SPAN,
    "span_or_none": dataclasses.replace(
        _SPAN,
        loss=supervised.SPAN_OR_NONE_LOSS,
        scores=predictions.classified_answer_scores,
        average=answers.average_classified,
    ),
    "referent": TaskKind(
        encode=encoding.encode_referents,
        loss=supervised.CHOICE_LOSS,
        scores=predictions.candidate_scores,
        decide=predictions.is_first,
        measure=metrics.of_labels,
        rate=metrics.rate_class,
    ),
}


def encode(
    task: Task,
    examples: Examples,
    tokenizer: Tokenizer,
    max_length: int,
    token_types: int,
    *,
    training: bool = False,
    stride: int = 128,
) -> Features:
    """Tokenise examples into rows of token ids with labels, in the order of the examples.

    max_length: the most tokens of a row.
    token_types: the number of token types of the model.
    training: leave out windows without a target, see `RowSettings`.
    stride: tokens from one window of a context to the next, half a window at most.

    Raises ValueError if max_length leaves no room for text.
    """
    shape = RowSettings(tokenizer.specials, max_length, token_types, training, stride)
    return KINDS[task.kind].encode(task, examples, tokenizer, shape)


def scores(task: Task, examples: Examples, features: Features, logits: Logits) -> list[Scores]:
    """Return the scores of each example's classes, labels, choices, tags or answers; in regression, each number.

    logits: the logits of each row of the features, in their order: `C` (classification, multilabel, choice, ranking,
        referent), a scalar (regression), `LC` (tagging), `L2` (span), `L3` (span_or_none).
    """
    return KINDS[task.kind].scores(task, examples, features, logits)


def decide(task: Task, example: Example, scores: Scores) -> TaskPrediction:
    """Return an example's prediction, decided from its scores.

    It is the index of a class or choice, the indices of labels, a number, tags or a text.
    """
    return KINDS[task.kind].decide(task, example, scores)


def predict(task: Task, examples: Examples, features: Features, logits: Logits) -> list[TaskPrediction]:
    """Return the prediction for each example, decided from the logits of its rows."""
    example_scores = scores(task, examples, features, logits)
    return [decide(task, example, of_example) for example, of_example in zip(examples, example_scores, strict=True)]


def average(task: Task, of_models: Sequence[Scores]) -> Scores:
    """Return the scores of an ensemble for one example, averaged over the scores of its models."""
    return KINDS[task.kind].average(of_models)


def from_plain(task: Task, value: Any) -> Scores:
    """Convert one example's scores from their JSON values to what `scores` returns for it.

    value: the scores in JSON, rounded to six decimals.
    """
    return KINDS[task.kind].from_plain(value)


def evaluate(
    task: Task, examples: Sequence[Example], predicted: Sequence[Any], scores: Sequence[Any] | None = None
) -> dict[str, float]:
    """Return the value of each metric for the predictions `predicted`: {name: value}, in the order of `task.metrics`.

    scores: the scores of each example, from which the predictions were decided; only tasks for which
        `metrics.reads_scores` need them.

    Raises ValueError if there are not as many predictions as examples, none at all, or examples whose label is not
    known.
    """
    metrics.check(task, examples, predicted)
    values = KINDS[task.kind].measure(task, examples, predicted) | metrics.of_imported(task, examples, predicted)
    if scores is not None and metrics.reads_scores(task):
        tuned = metrics.tuned_thresholds(task, examples, scores)
        values |= {name: score for name, (score, _) in tuned.items()}
    return {name: values[name] for name in task.metrics}


def per_example(task: Task, examples: Sequence[Example], predicted: Sequence[Any]) -> np.ndarray:
    """Return a float64 score for each prediction, larger is better, for a paired test over examples."""
    rate = KINDS[task.kind].rate
    return np.asarray([rate(task, *pair) for pair in zip(examples, predicted, strict=True)], np.float64)

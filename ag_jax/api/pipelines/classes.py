"""The pipeline `classify`, which predicts the class or the labels of a text, or the number of a regression."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ag_jax.api.pipelines.arguments import BATCH_SIZE, check_batch_size, check_top_k, pairs_of
from ag_jax.api.pipelines.guesses import Guess, most_probable, one_or_best, sigmoid, softmax
from ag_jax.api.pipelines.pipeline import Pipeline, TaskModel, task_model
from ag_jax.data.tasks.task import Texts
from ag_jax.interop.finetuned import FineTuned

Pair = tuple[str, str]


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Classify(Pipeline):
    """Function that predicts the class of a text, its labels, or a number, as the model was trained to.

        classify("It rains.")                         # a text -> a Guess; of a multi-label task a list of Guesses
        classify("It rains.", "The street is wet.")   # a pair of texts, also as a tuple
        classify(["It rains.", ("It rains.", "It is dry.")], batch_size=64)  # a list of these -> a list
        classify("It rains.", top_k=None)             # a list with all classes, the most probable first
        classify("It rains.", threshold=0.2)          # multi-label: the labels with a probability above 0.2
        classify.logits(["It rains.", "It is dry."])  # an array [texts, classes]

    labels: the names of the classes or labels, in the order of the logits; empty for regression.
    """

    name: ClassVar[str] = "classify"

    _model: TaskModel

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes or labels, in the order of the logits; empty for regression."""
        return self._model.task.labels

    @property
    def _has_label_sets(self) -> bool:
        return self._model.task.kind == "multilabel"

    def __call__(
        self,
        texts: str | Pair | Sequence[str | Pair],
        second: str | Sequence[str] | None = None,
        *,
        top_k: int | None = 1,
        threshold: float | None = None,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the class of a text as a `Guess` (a list of them unless `top_k` is 1), or the number of a regression.

        A model of a multi-label task gives a list with a `Guess` for each label whose probability is above the
        threshold, the most probable first. The list may be empty.

        texts: a text, a pair of texts as a tuple, or a list of these, for which a list is returned.
        second: the second text of a pair whose first text is `texts`; for a list of first texts, as many second texts.
        top_k: 1 returns the most probable class; a larger number returns a list of at most so many classes with their
            probabilities, and None a list of all classes, the most probable first. A multi-label task has a threshold
            unless `top_k` is a larger number, or None for all labels.
        threshold: probability that a label of a multi-label task must exceed; None is 0.5.
        batch_size: the most texts that are computed together.

        Raises ValueError for other arguments, for `top_k` of a regression, for a threshold of another task than a
        multi-label one or beside `top_k`, and for a pair of texts if the model was fine-tuned on single texts, or the
        other way round.
        """
        top_k = check_top_k(top_k)
        is_regression = self._model.task.kind == "regression"
        if is_regression and top_k != 1:
            raise ValueError(f"{self.directory} predicts a number, so there are no classes for top_k: leave it out")
        if threshold is not None:
            self._check_threshold(threshold, top_k)
        scores, single = self._scores(texts, second, batch_size)
        if is_regression:
            results: list[Any] = [float(number) for number in scores]
        elif self._has_label_sets:
            results = [self._label_set(logits_C, top_k, threshold) for logits_C in scores]
        else:
            results = [one_or_best(self.labels, logits_C, top_k) for logits_C in scores]
        return results[0] if single else results

    def logits(
        self,
        texts: str | Pair | Sequence[str | Pair],
        second: str | Sequence[str] | None = None,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> np.ndarray:
        """Return the logits in the order of `labels`: float32 [classes], or [texts, classes] of a list.

        texts, second, batch_size: as in a call.

        Raises ValueError for a regression, which has no classes, and for the wrong number of texts, as in a call.
        """
        if self._model.task.kind == "regression":
            raise ValueError(f"{self.directory} predicts a number and has no classes: call it to get the number")
        scores, single = self._scores(texts, second, batch_size)
        logits_BC = np.asarray(scores, np.float32).reshape(len(scores), len(self.labels))
        return logits_BC[0] if single else logits_BC

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities of logits, float64: their softmax, or of a multi-label task the sigmoid of each."""
        return sigmoid(logits) if self._has_label_sets else softmax(logits)

    def _scores(self, texts: Any, second: Any, batch_size: int) -> tuple[list[Any], bool]:
        pairs, single = pairs_of(texts, second)
        self._check_number(pairs)
        examples = [Texts(str(number), *pair, None) for number, pair in enumerate(pairs)]
        return self._model.scores(examples, check_batch_size(batch_size)), single

    def _label_set(self, logits_C: np.ndarray, top_k: int | None, threshold: float | None) -> list[Guess]:
        """Return the labels of a text, the most probable first: those above the threshold, or as `top_k` says."""
        guesses = most_probable(self.labels, sigmoid(logits_C), None if top_k == 1 else top_k)
        least = 0.5 if threshold is None else threshold
        return [guess for guess in guesses if top_k != 1 or guess.score > least]

    def _check_threshold(self, threshold: float, top_k: int | None) -> None:
        """Raise ValueError for a threshold that is no probability, beside `top_k`, or of a task with one label."""
        if not self._has_label_sets:
            raise ValueError(
                f"{self.directory} has a head for {self._model.task.kind}, and a threshold is for multilabel: leave it "
                "out"
            )
        if top_k != 1:
            raise ValueError(f"expected threshold or top_k, got threshold={threshold} and top_k={top_k}: leave one out")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be a probability from 0 to 1, got {threshold}")

    def _check_number(self, pairs: Sequence[tuple[str, str | None]]) -> None:
        """Raise ValueError for a pair if the model was trained on single texts, or for a single text if on pairs."""
        trained = self._model.tuned.head.texts
        for number, (_, second) in enumerate(pairs, 1):
            if trained and trained != (1 if second is None else 2):
                expected, other = ("a single text", "a pair of texts")[:: 1 if trained == 1 else -1]
                raise ValueError(
                    f"{self.directory}: every example in training was {expected}, but item {number} of {len(pairs)} is "
                    f"{other}: give {expected}"
                )


def classify(tuned: FineTuned, directory: str) -> Classify:
    """Return a model for classification, multi-label classification or regression as a function of texts or pairs."""
    model = task_model(tuned, ("classification", "multilabel", "regression"), directory)
    return Classify(directory, model.about, model)

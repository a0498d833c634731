"""The base class of all pipelines, and what pipelines of fine-tuned models share."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from ag_jax.data.tasks import catalogue
from ag_jax.data.tasks.task import Example, Examples, Task
from ag_jax.finetuning import kinds, predicting
from ag_jax.interop import opening
from ag_jax.interop.finetuned import FineTuned

SHOWN_LABELS = 6  # in the description of a pipeline
# Kinds of tasks whose names are not plain words.
_IN_WORDS = {
    "multilabel": "multi-label classification",
    "choice": "multiple choice",
    "span": "question answering",
    "span_or_none": "question answering",
}


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Pipeline:
    """A model that is called like a function.

    directory: directory of the model.
    about: what the model is, for people.
    """

    name: ClassVar[str] = ""  # of the property of a `Model`

    directory: str
    about: str

    def __repr__(self) -> str:
        return f"<{self.name} of {self.directory}: {self.about}>"


@dataclasses.dataclass(frozen=True)
class TaskModel:
    """A fine-tuned model as a function from examples of its task to their scores.

    tuned: the model with its head and tokenizer.
    task: the task, with the labels of the model.
    length: the most tokens of a row.
    apply: batch -> logits, compiled.
    """

    tuned: FineTuned
    task: Task
    length: int
    apply: Callable[[dict[str, np.ndarray]], Any]

    @property
    def about(self) -> str:
        """The task, the labels and the size of the model, for people."""
        head, config = self.tuned.head, self.tuned.config
        labels = ", ".join(head.labels[:SHOWN_LABELS])
        if len(head.labels) > SHOWN_LABELS:
            labels += f", ... ({len(head.labels)} in all)"
        noun = {"classification": "classes", "tagging": "tags"}.get(head.kind, "labels")
        kind = _IN_WORDS.get(head.kind, head.kind)
        parts = [f"{kind}, task {head.task}" if head.task else kind]
        parts += [f"{noun} {labels}"] if labels else []
        parts += [f"numbers from {head.low:g} to {head.high:g}"] if head.kind == "regression" else []
        return "; ".join([*parts, f"{config.layers} layers of width {config.width}", f"rows of {self.length} tokens"])

    def scores(self, examples: Sequence[Example], batch_size: int) -> list[Any]:
        """Return the model's scores of each example: logits, the number of a regression, or the best answers.

        Logits are those of classes, candidates or words. `kinds.scores` computes the scores.
        """
        data, tokenizer = Examples(tuple(examples), "a pipeline"), self.tuned.tokenizer
        features = kinds.encode(self.task, data, tokenizer, self.length, self.tuned.config.token_types)
        # A power of two, so that calls with other numbers of texts compile few programs.
        rows = min(batch_size, 2 ** max(len(features) - 1, 0).bit_length())
        logits = predicting.logits_of(self.apply, features, rows, self.length)
        return kinds.scores(self.task, data, features, logits)


def task_model(tuned: FineTuned, accepted: Sequence[str], directory: str) -> TaskModel:
    """Return a fine-tuned model as a function from examples of its task to their scores.

    accepted: the kinds of head that are accepted.

    Raises ValueError for a head of another kind.
    """
    opening.check_head(tuned, accepted, directory)
    head = tuned.head
    of_catalogue = catalogue.TASKS.get(head.task)
    settings: dict[str, Any] = {"labels": head.labels, "span": (head.low, head.high), "answerable": head.answerable}
    settings["pair_limit"] = of_catalogue.pair_limit if of_catalogue else 0  # so that texts are cut as in training
    task = Task(head.task, head.kind, "", "none", ("none",), (), **settings)
    # The parameters are an argument, because a program that holds them as constants takes twice as long to compile;
    # they are put on the device once, and not for each batch.
    compiled = jax.jit(lambda params, batch: tuned.model.apply({"params": params}, batch, deterministic=True))
    apply = functools.partial(compiled, jax.device_put(tuned.params))
    return TaskModel(tuned, task, min(head.max_length, tuned.config.max_length), apply)

"""The pipeline `choose`, which chooses the candidate that continues or answers a text."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ag_jax.api.pipelines.arguments import BATCH_SIZE, check_batch_size, check_top_k, items_of, one_or_many
from ag_jax.api.pipelines.guesses import one_or_best
from ag_jax.api.pipelines.pipeline import Pipeline, TaskModel, task_model
from ag_jax.data.tasks.task import Choices
from ag_jax.interop.finetuned import FineTuned


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Choose(Pipeline):
    """Function that predicts which of several candidates continues or answers a text.

        choose("He opened the door and", ["went in.", "is a door."])              # -> a Guess
        choose("He opened the door and", ["went in.", "is a door."], top_k=None)  # all candidates, the best first
        choose(texts, candidates_of_texts)                                        # two lists -> a list
        choose.logits("He opened the door and", ["went in.", "is a door."])       # an array [candidates]

    For models of RACE and DREAM, a candidate is the question followed by an answer.
    """

    name: ClassVar[str] = "choose"

    _model: TaskModel

    def __call__(
        self,
        text: str | Sequence[str],
        candidates: Sequence[str] | Sequence[Sequence[str]],
        *,
        top_k: int | None = 1,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the most probable candidate of a text as a `Guess`; a list of `Guess`es unless `top_k` is 1.

        text: a text, or a list of texts, for which a list is returned.
        candidates: two or more texts; for a list of texts, such a list for each text.
        top_k: 1 returns the most probable candidate; a larger number returns a list of at most so many candidates with
            their probabilities, and None a list of all, the most probable first.
        batch_size: the most texts, each with its candidates, that are computed together.

        Raises ValueError for other arguments.
        """
        top_k = check_top_k(top_k)
        lists, scores, single = self._scores(text, candidates, batch_size)
        results = [one_or_best(of_text, logits_C, top_k) for of_text, logits_C in zip(lists, scores, strict=True)]
        return results[0] if single else results

    def logits(
        self,
        text: str | Sequence[str],
        candidates: Sequence[str] | Sequence[Sequence[str]],
        *,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the logits of a text's candidates, float32 [candidates]; for a list of texts, a list of arrays.

        text, candidates, batch_size: as in a call; the order of the candidates is kept.
        """
        _, scores, single = self._scores(text, candidates, batch_size)
        logits = [np.asarray(logits_C, np.float32) for logits_C in scores]
        return logits[0] if single else logits

    def _scores(self, text: Any, candidates: Any, batch_size: int) -> tuple[list[list[str]], list[Any], bool]:
        """Return (candidates of each text, their logits for each text, whether a single text was given)."""
        texts, single = one_or_many(text)
        lists = []
        for argument in [candidates] if single else items_of(candidates, "a list of candidates for each text"):
            of_text, is_text = one_or_many(argument, "candidate")
            if is_text or len(of_text) < 2:
                raise ValueError(f"expected a list of at least two candidates for each text, got {argument!r}")
            lists.append(of_text)
        examples = [
            Choices(str(number), tuple((first, second) for second in of_text), None)
            for number, (first, of_text) in enumerate(zip(texts, lists, strict=True))
        ]
        return lists, self._model.scores(examples, check_batch_size(batch_size)), single


def choose(tuned: FineTuned, directory: str) -> Choose:
    """Return a model for multiple choice as a function of a text and its candidates."""
    model = task_model(tuned, ("choice", "ranking"), directory)
    return Choose(directory, model.about, model)

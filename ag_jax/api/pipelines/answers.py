"""The pipeline `answer`, which finds the part of a context that answers a question."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ag_jax.api.pipelines.arguments import BATCH_SIZE, check_batch_size, check_top_k, one_or_many
from ag_jax.api.pipelines.guesses import Guess, best_guesses
from ag_jax.api.pipelines.pipeline import Pipeline, TaskModel, task_model
from ag_jax.data.tasks.task import Question, Task
from ag_jax.finetuning import kinds
from ag_jax.interop.finetuned import FineTuned


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Answer(Pipeline):
    """Function that returns the part of a context that answers a question.

    answer("Where does the king live?", context)                   # -> a text; "" for no answer
    answer("Where does the king live?", context, top_k=3)          # the best three answers as Guesses
    answer(["Where does the king live?", "Since when?"], context)  # a list of questions -> a list
    answer(questions, contexts, batch_size=64)                     # a context for each question
    """

    name: ClassVar[str] = "answer"

    _model: TaskModel

    def __call__(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top_k: int | None = 1,
        refuses: bool | None = None,
        threshold: float = 0.0,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the part of the context that answers the question, or ""; a list of `Guess`es unless `top_k` is 1.

        question: a question, or a list of questions, for which a list is returned.
        context: the text to find the answer in; for a list of questions one context for all, or as many contexts.
        top_k: 1 returns the best answer as a text; a larger number returns a list of at most so many different answers
            as `Guess`es, and None a list of all that were considered, the most probable first. Probabilities are those
            among the 20 best parts of the context and "" (no answer), if the model may predict it.
        refuses: whether the answer is "" where the model predicts that there is none; None: only if the model was
            trained by this program to do so (SQuAD 2.0).
        threshold: how far the score of "no answer" must be above that of the best answer for the answer to be "". The
            report of a suite with squad2 has the thresholds that are best on the development set.
        batch_size: the most windows of contexts that are computed together.

        Raises ValueError for other arguments, for an empty context, and for a threshold of a model that always answers.
        """
        top_k, model = check_top_k(top_k), self._with(refuses, threshold)
        questions, is_single = one_or_many(question, "question")
        contexts, is_shared = one_or_many(context, "context")
        if is_shared:
            contexts = contexts * len(questions)
        for number, text in enumerate(contexts, 1):
            if not text.strip():  # otherwise "" would be the answer, as if the model had read a text
                raise ValueError(f"context {number} of {len(contexts)} is empty: give a text to find the answer in")
        pairs = enumerate(zip(questions, contexts, strict=True))
        examples = [Question(str(number), *pair, None) for number, pair in pairs]
        scores = model.scores(examples, check_batch_size(batch_size))
        if top_k == 1:
            results: list[Any] = [kinds.decide(model.task, *pair) for pair in zip(examples, scores, strict=True)]
        else:
            results = [_ranked(model.task, candidates, top_k) for candidates in scores]
        return results[0] if is_single else results

    def _with(self, refuses: bool | None, threshold: float) -> TaskModel:
        """Return the model with a task that says whether there may be no answer, and when that is so."""
        task = self._model.task
        # Whether there may be no answer decides whether <s>, which stands for it, may be chosen; no logits change.
        task = dataclasses.replace(
            task, answerable=task.answerable if refuses is None else not refuses, threshold=threshold
        )
        if threshold and task.answerable:
            raise ValueError(
                f"threshold={threshold:g} decides when there is no answer, but this model always gives one: set "
                "refuses=True"
            )
        return dataclasses.replace(self._model, task=task)


def _ranked(task: Task, candidates: Any, top_k: int | None) -> list[Guess]:
    """Return the most probable answers to a question, each text once, with the probability of its best occurrence.

    candidates: the best answers with their scores, and "no answer", from whose score the threshold is subtracted, so
        that the first guess is the answer that is returned without `top_k`.
    """
    texts, scores = [text for text, _ in candidates.answers], [score for _, score in candidates.answers]
    if not task.answerable:  # last, because an answer with an equal score is preferred
        texts, scores = [*texts, ""], [*scores, candidates.none - task.threshold]
    best_of_texts: dict[str, Guess] = {}
    for guess in best_guesses(texts, np.asarray(scores), None) if texts else []:
        best_of_texts.setdefault(guess.text, guess)
    return [*best_of_texts.values()][:top_k]


def answer(tuned: FineTuned, directory: str) -> Answer:
    """Return a model that finds answers as a function of question and context."""
    model = task_model(tuned, ("span", "span_or_none"), directory)
    may_refuse = "always answers" if tuned.head.answerable else '"" for no answer'
    return Answer(directory, f"{model.about}; {may_refuse}", model)

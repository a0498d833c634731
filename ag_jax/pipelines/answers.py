"""The pipeline `answer`, which finds the part of a context that answers a question."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from etils import epath

from ag_jax.data.tasks.task import Question
from ag_jax.finetuning import best, kinds
from ag_jax.interop import opening
from ag_jax.pipelines.arguments import BATCH_SIZE, check_batch_size, check_top_k, one_or_many
from ag_jax.pipelines.guesses import Guess, best_guesses
from ag_jax.pipelines.pipeline import BatchedPipeline, TaskModel, task_model


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Answer(BatchedPipeline):
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
        batch_size: int | None = None,
    ) -> Any:
        """Return the part of the context that answers the question, or ""; a list of `Guess`es unless `top_k` is 1.

        question: a question, or a list of questions, for which a list is returned.
        context: the text to find the answer in; for a list of questions one context for all, or as many contexts.
        top_k: 1 returns the best answer as a text; a larger number returns a list of at most so many different answers
            as `Guess`es, and None a list of all that were considered, the most probable first. Probabilities are those
            among the 20 best parts of the context and "" (no answer), if the model may predict it.
        batch_size: the most windows of contexts that are computed together; by default the pipeline's.

        Raises ValueError for other arguments, and for an empty context.
        """
        top_k = check_top_k(top_k)
        questions, is_single = one_or_many(question, "question")
        contexts, is_shared = one_or_many(context, "context")
        if is_shared:
            contexts = contexts * len(questions)
        for number, text in enumerate(contexts, 1):
            if not text.strip():  # otherwise "" would be the answer, as if the model had read a text
                raise ValueError(f"context {number} of {len(contexts)} is empty: give a text to find the answer in")
        pairs = enumerate(zip(questions, contexts, strict=True))
        examples = [Question(str(number), *pair, None) for number, pair in pairs]
        scores = self._model.scores(examples, self._batch_size(batch_size))
        if top_k == 1:
            results: list[Any] = [kinds.decide(self._model.task, *pair) for pair in zip(examples, scores, strict=True)]
        else:
            results = [self._ranked(candidates, top_k) for candidates in scores]
        return results[0] if is_single else results

    def _ranked(self, candidates: Any, top_k: int | None) -> list[Guess]:
        """Return the most probable answers to a question, each text once, with the probability of its best occurrence.

        candidates: the best answers with their scores, and "no answer", from whose score the threshold is
            subtracted, so that the first guess is the answer that is returned without `top_k`.
        """
        task, texts = self._model.task, [text for text, _ in candidates.answers]
        scores = [score for _, score in candidates.answers]
        if not task.answerable:  # last, because an answer with an equal score is preferred
            texts, scores = [*texts, ""], [*scores, candidates.none - task.threshold]
        best_of_texts: dict[str, Guess] = {}
        for guess in best_guesses(texts, np.asarray(scores), None) if texts else []:
            best_of_texts.setdefault(guess.text, guess)
        return [*best_of_texts.values()][:top_k]


def answer(
    directory: epath.PathLike, refuses: bool | None = None, threshold: float = 0.0, *, batch_size: int = BATCH_SIZE
) -> Answer:
    """Open a model fine-tuned to find answers, as a function of question and context; `refuses=True` allows "".

    directory: of a trial with saved weights, of a suite or one of its tasks, of which the best trial is opened, or of
        a Hugging Face model `...ForQuestionAnswering`.
    refuses: whether the answer is "" where the model predicts that there is none; None: only if the model was trained
        by this program to do so (SQuAD 2.0).
    threshold: how far the score of "no answer" must be above that of the best answer for the answer to be "". The
        report of a suite with squad2 has the thresholds that are best on the development set.
    batch_size: the most windows of contexts that are computed together.

    Raises ValueError for a nonzero threshold with a model that always answers, and ValueError or FileNotFoundError if
    there is no such model.

        answer = pipelines.answer("runs/squad/squad2")
        answer("Where does the king live?", context)
    """
    size = check_batch_size(batch_size)
    tuned = opening.open_finetuned(best.resolve(directory), ("span", "span_or_none"))
    if refuses is not None:
        # The head's `answerable` decides whether <s>, which stands for "no answer", may be chosen; no logits change.
        tuned = dataclasses.replace(tuned, head=dataclasses.replace(tuned.head, answerable=not refuses))
    if threshold and tuned.head.answerable:
        raise ValueError(
            f"threshold={threshold:g} decides when there is no answer, but this model always gives one: set "
            "refuses=True"
        )
    model = task_model(tuned, threshold)
    always = "always answers" if tuned.head.answerable else f'"" for no answer, threshold {threshold:g}'
    return Answer(str(directory), f"{model.about}; {always}", size, model)

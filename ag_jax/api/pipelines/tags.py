"""The pipeline `tag`, which predicts a tag for each word of a text."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ag_jax.api.pipelines.arguments import BATCH_SIZE, check_batch_size, check_top_k, items_of, one_or_many
from ag_jax.api.pipelines.guesses import best_guesses
from ag_jax.api.pipelines.pipeline import Pipeline, TaskModel, task_model
from ag_jax.data.tasks import schemes
from ag_jax.data.tasks.task import TaggedSentence
from ag_jax.finetuning import kinds
from ag_jax.interop.finetuned import FineTuned


@dataclasses.dataclass(frozen=True, repr=False, eq=False, match_args=False)
class Tag(Pipeline):
    """Function that predicts a tag for each word of a text, as a list of (word, tag).

        tag("Ana flew from Lisbon to Oslo")                        # a text, split at white space
        tag(["Ana flew.", ["He", "stayed", "."]], batch_size=64)   # a list of texts and lists of words -> a list
        tag("Ana flew from Lisbon to Oslo", top_k=None)            # all tags of each word with their probabilities
        tag("Ana flew from New York", entities=True)               # [("Ana", "PER", 0, 0), ("New York", "LOC", 3, 4)]
        tag.logits("Ana flew from Lisbon to Oslo")                 # an array [words, tags]

    labels: the names of the tags, in the order of the logits.
    """

    name: ClassVar[str] = "tag"

    _model: TaskModel

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the tags, in the order of the logits."""
        return self._model.task.labels

    def __call__(
        self,
        texts: str | Sequence[str | Sequence[str]],
        *,
        top_k: int | None = 1,
        entities: bool = False,
        batch_size: int = BATCH_SIZE,
    ) -> Any:
        """Return the tags of a text as a list of (word, tag), or of (word, list of `Guess`es) unless `top_k` is 1.

        With `entities`, the list has (text, type, number of the first word, number of the last word) of each entity.

        texts: a text, which is split at white space, or a list of texts, for which a list is returned. A text given as
            a list of words must be an item of a list, because a list of strings is a list of texts.
        top_k: 1 returns the most probable tag of each word; a larger number returns (word, guesses), where guesses is a
            list of at most so many tags with their probabilities, and None a list of all tags, the most probable first.
        entities: return the entities that the tags mark, in any scheme of `ag_jax.data.tasks.schemes`. Numbers of words
            count from 0, and a space is put between the words of an entity.
        batch_size: the most texts that are computed together.

        Words beyond the length of training get the tag O, or _ if the model has no tag O; their list of guesses is
        empty. Raises ValueError for other arguments, for a text without words, and for entities where tags mark none.
        """
        top_k = check_top_k(top_k)
        if entities and (top_k != 1 or schemes.recognised([self.labels]) == "plain"):
            raise ValueError(
                "entities=True needs top_k=1 and a model whose tags mark entities, such as B-PER, got "
                f"top_k={top_k} and the tags {', '.join(self.labels)}: leave out entities"
            )
        examples, scores, single = self._scores(texts, batch_size)
        results: list[list[tuple[Any, ...]]] = []
        for example, logits_WC in zip(examples, scores, strict=True):
            tags: Any = kinds.decide(self._model.task, example, logits_WC)
            if top_k != 1:
                tags = [best_guesses(self.labels, logits_C, top_k) for logits_C in logits_WC]
                tags += [[] for _ in range(len(example.words) - len(tags))]
            if entities:
                found = schemes.entities(tags)
                results.append([(" ".join(example.words[of[1] : of[2] + 1]), *of) for of in found])
            else:
                results.append([*zip(example.words, tags, strict=True)])
        return results[0] if single else results

    def logits(self, texts: str | Sequence[str | Sequence[str]], *, batch_size: int = BATCH_SIZE) -> Any:
        """Return the logits of the tags of each word, float32 [words, tags]; for a list of texts, a list of arrays.

        texts, batch_size: as in a call.

        The tags are in the order of `labels`. Words beyond the length of training have no row.
        """
        _, scores, single = self._scores(texts, batch_size)
        logits = [np.asarray(logits_WC, np.float32) for logits_WC in scores]
        return logits[0] if single else logits

    def _scores(self, texts: Any, batch_size: int) -> tuple[list[TaggedSentence], list[Any], bool]:
        """Return (words of each text, logits of their tags for each text, whether a single text was given)."""
        single = isinstance(texts, str)
        items = [texts] if single else items_of(texts, "a text (str), or a list of texts and lists of words")
        examples = []
        for number, text in enumerate(items, 1):
            words = one_or_many(text.split() if isinstance(text, str) else text, "word")[0]
            if not words:
                raise ValueError(f"there is no word to tag in text {number} of {len(items)}")
            examples.append(TaggedSentence(str(number), tuple(words), None))
        return examples, self._model.scores(examples, check_batch_size(batch_size)), single


def tag(tuned: FineTuned, directory: str) -> Tag:
    """Return a model for tagging as a function of texts or lists of words."""
    model = task_model(tuned, ("tagging",), directory)
    return Tag(directory, model.about, model)

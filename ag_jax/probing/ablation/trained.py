"""Models with a trained output head, whose loss on masked words or on a task's labels can be measured."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from etils import epath

from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import storage
from ag_jax.finetuning import best, development
from ag_jax.finetuning.kinds import KINDS
from ag_jax.interop import finetuned, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.opening import WordModel
from ag_jax.models.config import EncoderConfig
from ag_jax.models.one_line import one_line
from ag_jax.objectives.base import PrimaryMetric
from ag_jax.objectives.masked_lm import MLM
from ag_jax.objectives.supervised import TASK
from ag_jax.pretraining import corpus
from ag_jax.probing import models
from ag_jax.probing.ablation import batches, losses
from ag_jax.probing.ablation.batches import GIVEN, TextBatches
from ag_jax.probing.ablation.losses import RowLosses


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model with a trained output head, and the function that computes its loss.

    description: where the model comes from, for people.
    metric: what the loss is.
    row_losses: computes the loss of each row of a batch.
    params: the parameters, also those of the head.
    config: of the encoder.
    tokenizer: the tokenizer.
    length: number of tokens of the longest row.
    head: settings of a task's head, on which the loss depends; empty for masked words.
    own_texts: function of a number, or None for all, that returns so many of the model's own texts: rows of the
        held-out text of a run, rounded up to whole batches, or development examples of a trial; None if it has none.
    """

    description: str
    metric: PrimaryMetric
    row_losses: RowLosses
    params: Any
    config: EncoderConfig
    tokenizer: Tokenizer
    length: int
    head: dict[str, Any]
    own_texts: Callable[[int | None], TextBatches] | None

    __repr__ = one_line

    @property
    def predicts_words(self) -> bool:
        """Whether the loss is over masked words, so that it can be measured on any text."""
        return self.metric is MLM

    def digest(self) -> str:
        """Return the SHA-256 of the weights and settings that an ablation's losses depend on, not of its texts."""
        encoder = models.digest(self.config, self.params, self.tokenizer)
        return hashlib.sha256(json.dumps([self.metric.metric, self.head, encoder]).encode()).hexdigest()

    def texts(
        self,
        given: Sequence[str] | None,
        most: int | None = None,
        *,
        length: int | None = None,
        called: str = GIVEN,
    ) -> TextBatches:
        """Return batches of the texts to measure the loss on: the given texts, or else the model's own.

        most: number of texts to take; None takes all.
        length: number of tokens of the longest row of given texts; the model's own by default.
        called: see `batches.of_texts`.

        Raises ValueError if the model has no texts of its own, or no loss on other texts.
        """
        if most is not None and most < 1:
            raise ValueError(f"most must be at least 1, got most={most}")
        if given is None:
            if self.own_texts is None:
                raise ValueError(
                    f"{self.description} was imported from Hugging Face, and has no held-out text: give texts, such as "
                    "the lines of a file"
                )
            return self.own_texts(most)
        if not self.predicts_words:
            raise ValueError(
                f"{self.description} is fine-tuned, so its loss is that of its task on its development examples: leave "
                "texts out"
            )
        shortest = min(self.length, length or self.length)
        return batches.of_texts(given, self.tokenizer, shortest, self.config.token_types, most, called=called)


def open_trained(directory: epath.PathLike, step: int | None = None) -> TrainedModel:
    """Open the model of a run (at `step`, by default the newest), trial or Hugging Face directory, with its loss.

    Of a directory with several models, the best one is opened, as by `ag-jax inspect`.

    Raises ValueError for a model without a trained head, such as an embedder of sentences; FileNotFoundError if there
    is no model.
    """
    place = storage.directory(directory)
    if (choice := best.find(place)) is not None:
        place = choice.directory
    if finetuned.locate(place) is not None:
        if step is not None:
            raise ValueError(f"step={step} chooses a checkpoint of a run, but {place} is fine-tuned: leave step out")
        tuned = finetuned.load(place)

        def examples(most: int | None) -> TextBatches:
            return batches.of_examples(tuned, *development.read(place, most))

        return of_task(tuned, examples, str(place))
    return of_words(opening.open_masked_lm(str(place), step), str(place))


def of_words(opened: WordModel, description: str = "the model") -> TrainedModel:
    """Return the `TrainedModel` of an opened model that predicts masked words."""
    run = opened.run
    # A run that was imported and not trained since has no text of its own, though its config names a source.
    if run is None or (run.origin.model_type and not (run.workdir / corpus.SUMMARY).exists()):
        own_texts = None
    else:
        own_texts = functools.partial(batches.of_run, run)
    return TrainedModel(
        description=description if run is None else f"step {run.step} of {run.workdir}",
        metric=MLM,
        row_losses=losses.of_masked_words(opened.model),
        params=opened.params,
        config=opened.model.config,
        tokenizer=opened.tokenizer,
        length=opened.length,
        head={},
        own_texts=own_texts,
    )


def of_task(
    tuned: FineTuned,
    own_texts: Callable[[int | None], TextBatches] | None = None,
    description: str = "the model",
) -> TrainedModel:
    """Return a fine-tuned model with the loss of its task.

    own_texts: see `TrainedModel`.
    """
    return TrainedModel(
        description=description,
        metric=TASK,
        row_losses=losses.of_task(tuned.model, KINDS[tuned.head.kind].loss),
        params=tuned.params,
        config=tuned.config,
        tokenizer=tuned.tokenizer,
        length=min(tuned.head.max_length, tuned.config.max_length),
        head=dataclasses.asdict(tuned.head),
        own_texts=own_texts,
    )

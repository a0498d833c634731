"""Masked language modelling, with next-sentence prediction where the data has sentence pairs."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.masked_lm import Predictions as Said
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.losses import Array, Headline, Outcome, Params, cross_entropy, sown, wanted
from ag_jax.objectives.predictions import Categorical, Counts, Predictions, Words
from ag_jax.objectives.sentences import Sentences
from ag_jax.objectives.word_loss import word_loss

MLM = Headline("mlm_loss", "MLM loss", "nats per masked token", margin=0.3)


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """-log P(word) averaged over the masked positions of the batch, plus the same for `is the next segment random`.

    Terms: `mlm`, weighted by the masked positions; `nsp`, weighted by the examples (Devlin et al. 2019, section 3.1).

    sentences: what is predicted of the first positions besides, for those who compare predictions.
    """

    model: PretrainingModel
    sentences: Sentences = Sentences()

    headline: ClassVar[Headline] = MLM

    @property
    def says(self) -> tuple[str, ...]:
        """The masked words, the next sentence if there is one, and what is asked of first positions."""
        return ("task", *self.sentences.says, *(("nsp",) if self.model.next_sentence else ()))

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Masked positions, and examples that are not padding."""
        weights = {"mlm": batch["masked_weights"].sum()}
        if self.model.next_sentence:
            weights["nsp"] = (batch["sequences"] > 0).any(-1).sum().astype(jnp.float32)
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Both terms count once."""
        terms = ("mlm", "nsp") if self.model.next_sentence else ("mlm",)
        return {term: jnp.ones_like(step, jnp.float32) for term in terms}

    def __call__(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Outcome:
        """Totals of the terms; accuracy of both predictions; number of tokens that are not padding."""
        del step
        said, collections = self._apply(params, batch, rngs, ports)
        weights = self.normalizers(batch)
        loss, correct = word_loss(
            self._masked(said.hidden_BMD),
            said.embedding_VD,
            said.bias_V,
            batch["masked_labels"],
            batch["masked_weights"],
        )
        totals = {"mlm": loss}
        metrics = {"mlm_loss": (loss, weights["mlm"]), "mlm_accuracy": (correct, weights["mlm"])}
        if self.model.next_sentence:
            examples_B = (batch["sequences"] > 0).any(-1).astype(jnp.float32)
            loss, correct = cross_entropy(said.next_B2, batch["next_labels"], examples_B)
            totals["nsp"] = loss
            metrics |= {"nsp_loss": (loss, weights["nsp"]), "nsp_accuracy": (correct, weights["nsp"])}
        predictions = self._compared(said, collections, batch)
        return Outcome(totals, metrics, predictions, batch, sown(collections, "statistics"))

    def predict(
        self, params: Params, shown: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Predictions:
        """The masked words, the next sentence, and what is predicted of first positions."""
        del step
        return self._compared(*self._apply(params, shown, rngs, ports), shown)

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """Masked positions, examples and texts count once each."""
        counts = {"task": Counts(batch["masked_weights"])} | self.sentences.counts(batch)
        if self.model.next_sentence:
            counts["nsp"] = Counts((batch["sequences"] > 0).any(-1).astype(jnp.float32))
        return counts

    def _apply(self, params: Params, batch: Batch, rngs: dict[str, Array] | None, ports: Ports) -> tuple[Said, Params]:
        if self.sentences.of == "head":  # it is asked at the first positions, too, before the masked ones
            places_BT, _ = self.sentences.places(batch)
            asked = jnp.concatenate([places_BT.astype(jnp.int32), batch["masked_positions"]], axis=1)
            batch = batch | {"masked_positions": asked}
        return self.model.apply(
            {"params": params}, batch, ports=ports, deterministic=rngs is None, rngs=rngs, mutable=wanted(ports)
        )

    def _masked(self, asked_BMD: Array) -> Array:
        """Of what the word head was asked at, the masked positions."""
        return asked_BMD[:, self.sentences.texts :] if self.sentences.of == "head" else asked_BMD

    def _compared(self, said: Said, collections: Params, batch: Batch) -> Predictions:
        of = {"task": Words(self._masked(said.hidden_BMD), said.embedding_VD, said.bias_V)}
        if self.sentences.of == "head":
            first_BTD = said.hidden_BMD[:, : self.sentences.texts]
            of["sentence"] = Words(first_BTD, said.embedding_VD, said.bias_V)
        elif self.sentences.of != "none":
            of["sentence"] = self.sentences.hidden(said.encoded_BLD, batch)
        if self.model.next_sentence:
            of["nsp"] = Categorical(said.next_B2)
        return Predictions(of, sown(collections, "attack"))

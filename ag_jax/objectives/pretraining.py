"""Masked language modelling, with next-sentence prediction where the data has sentence pairs."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.pretraining import PretrainingModel
from ag_jax.objectives.losses import Array, Headline, Outcome, Params, cross_entropy, sown_statistics
from ag_jax.objectives.word_loss import word_loss

MLM = Headline("mlm_loss", "MLM loss", "nats per masked token", margin=0.3)


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """-log P(word) averaged over the masked positions of the batch, plus the same for `is the next segment random`.

    Terms: `mlm`, weighted by the masked positions; `nsp`, weighted by the examples (Devlin et al. 2019, section 3.1).
    """

    model: PretrainingModel

    headline: ClassVar[Headline] = MLM

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
        wanted = ["statistics"] if ports.guides is not None else []
        predictions, sown = self.model.apply(
            {"params": params}, batch, ports=ports, deterministic=rngs is None, rngs=rngs, mutable=wanted
        )
        weights = self.normalizers(batch)
        loss, correct = word_loss(
            predictions.hidden_BMD,
            predictions.embedding_VD,
            predictions.bias_V,
            batch["masked_labels"],
            batch["masked_weights"],
        )
        totals = {"mlm": loss}
        metrics = {"mlm_loss": (loss, weights["mlm"]), "mlm_accuracy": (correct, weights["mlm"])}
        if self.model.next_sentence:
            examples_B = (batch["sequences"] > 0).any(-1).astype(jnp.float32)
            loss, correct = cross_entropy(predictions.next_B2, batch["next_labels"], examples_B)
            totals["nsp"] = loss
            metrics |= {"nsp_loss": (loss, weights["nsp"]), "nsp_accuracy": (correct, weights["nsp"])}
        return Outcome(totals, metrics, sown_statistics(sown))

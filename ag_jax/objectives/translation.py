"""Translation: predict each token of the target text from the tokens before it and from the source text.

Shape letters: B batch, T target length, V vocabulary.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.objectives.base import Objective, Outputs, PrimaryMetric, Rngs, Terms, apply_model
from ag_jax.objectives.config import TranslationConfig
from ag_jax.objectives.predictions import PredictionWeights, WordDistributions
from ag_jax.objectives.word_loss import word_loss

NLL = PrimaryMetric("nll", "translation", "NLL", "nats per target token", margin=0.3)


@dataclasses.dataclass(frozen=True)
class Translation(Objective):
    """The objective of translation: cross entropy with smoothed labels, averaged over the target tokens.

    The term is `translation`, weighted by the target tokens, of which the end of each text is one. The metric `nll` is
    the cross entropy without smoothing, so it can be compared between models with and without (Vaswani et al. 2017,
    section 5.4).
    """

    model: TranslationModel
    config: TranslationConfig = TranslationConfig()

    primary_metric: ClassVar[PrimaryMetric] = NLL
    prediction_names: ClassVar[tuple[str, ...]] = ("task",)

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {"translation": divisor of the loss}, the number of target tokens."""
        return {"translation": batch["target_weights"].sum()}

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {"translation": 1}, the factor of the loss term at every step."""
        return {"translation": jnp.ones_like(step, jnp.float32)}

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {"task": weights} by which a clean and an attacked pass are compared: 1 for each target token."""
        return {"task": PredictionWeights(batch["target_weights"])}

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the model without losses: predict every target token from the source and the tokens before it."""
        del step
        words, sown = apply_model(self.model, params, batch, rngs, ports)
        return Outputs({"task": WordDistributions(words.hidden_BTD, words.embedding_VD, words.bias_V)}, batch, **sown)

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return {"translation": batch sum of the loss} and {metric: (sum, weight)}.

        The metrics are the loss `translation_loss`, the cross entropy `nll`, and the share of right words `accuracy`.
        """
        words, tokens = outputs.predictions["task"], self.normalizers(batch)["translation"]
        loss, correct, nll, _ = word_loss(
            words.hidden_BMD,
            words.embedding_VD,
            words.bias_V,
            batch["target_labels"],
            batch["target_weights"],
            1,
            self.config.smoothing(words.bias_V.shape[0]),
        )
        metrics = {"nll": (nll, tokens), "accuracy": (correct, tokens), "translation_loss": (loss, tokens)}
        return Terms({"translation": loss}, metrics)

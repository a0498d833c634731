"""Masked language modelling, with next-sentence prediction where the data has sentence pairs."""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives import plateau
from ag_jax.objectives.base import Objective, Outputs, PrimaryMetric, Rngs, Terms, apply_model
from ag_jax.objectives.losses import cross_entropy
from ag_jax.objectives.predictions import Categorical, PredictionWeights, ScoredWords, WordDistributions, WordLabels
from ag_jax.objectives.sentences import Sentences
from ag_jax.objectives.word_loss import word_loss

MLM = PrimaryMetric("mlm_loss", "mlm", "MLM loss", "nats per masked token", margin=0.3)


@dataclasses.dataclass(frozen=True)
class Pretraining(Objective):
    """The objective of BERT: predict the masked words and, in sentence pairs, whether the second segment is random.

    -log P(word) averaged over masked positions, plus -log P(random or not) averaged over examples.

    Terms: `mlm`, weighted by the masked positions; `nsp`, weighted by the examples (Devlin et al. 2019, section 3.1).

    sentences: predictions at the first positions of texts, which have no loss but can be compared between passes.
    group_rows: see `word_loss`.
    """

    model: PretrainingModel
    sentences: Sentences = Sentences()
    group_rows: int = 1

    primary_metric: ClassVar[PrimaryMetric] = MLM

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """Names of the outputs in which a clean and an attacked pass are compared: `task` and, if enabled, others.

        `task` is for the masked words, `sentence`, made at the first position of each text, for the whole text, and
        `nsp` for the next sentence.
        """
        return ("task", *self.sentences.prediction_names, *(("nsp",) if self.model.next_sentence else ()))

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {loss term: divisor}: the number of masked positions for `mlm`, of examples for `nsp`."""
        weights = {"mlm": batch["masked_weights"].sum()}
        if self.model.next_sentence:
            weights["nsp"] = _examples(batch).sum()
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {loss term: factor}: 1 for `mlm`, and 1 for `nsp` if there is next-sentence prediction."""
        terms = ("mlm", "nsp") if self.model.next_sentence else ("mlm",)
        return {term: jnp.ones_like(step, jnp.float32) for term in terms}

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {prediction name: weights of its examples or tokens} for comparing a clean and an attacked pass.

        The weight is 1 for each masked word (`task`), text (`sentence`) and pair of sentences (`nsp`), 0 for padding.
        """
        weights = {"task": PredictionWeights(batch["masked_weights"])} | self.sentences.prediction_weights(batch)
        if self.model.next_sentence:
            weights["nsp"] = PredictionWeights(_examples(batch))
        return weights

    def word_labels(self, batch: Batch) -> WordLabels:
        """Return the labels and weights of the masked words, with the name of their loss term."""
        return WordLabels("mlm", batch["masked_labels"], batch["masked_weights"], self.group_rows)

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the model without losses: predict the masked words, and the next sentence if the data has pairs.

        A prediction at the first position of each text, `sentence`, is added if `sentences` asks for one.
        """
        del step
        with_head, texts, inputs = self.sentences.of == "head", self.sentences.texts, batch
        if with_head:  # the word head is applied at the first positions, too, before the masked ones
            first_BT, _ = self.sentences.first_positions(batch)
            positions = jnp.concatenate([first_BT.astype(jnp.int32), batch["masked_positions"]], axis=1)
            inputs = batch | {"masked_positions": positions}
        heads, sown = apply_model(self.model, params, inputs, rngs, ports)
        masked_BMD = heads.hidden_BMD[:, texts:] if with_head else heads.hidden_BMD
        predictions: dict[str, Any] = {"task": WordDistributions(masked_BMD, heads.embedding_VD, heads.bias_V)}
        if with_head:
            predictions["sentence"] = WordDistributions(heads.hidden_BMD[:, :texts], heads.embedding_VD, heads.bias_V)
        elif self.sentences.of != "none":
            predictions["sentence"] = self.sentences.hidden(heads.encoded_BLD, batch)
        if self.model.next_sentence:
            predictions["nsp"] = Categorical(heads.next_B2)
        return Outputs(predictions, batch, encoded_BLD=heads.encoded_BLD if rngs is None else None, **sown)

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return {loss term: batch sum} and {metric: (sum, weight)} of the masked words and the next sentence.

        The metrics are loss and accuracy of the masked words and, if the model predicts it, of the next sentence; in an
        evaluation, they are also those of `plateau`.
        """
        weights, words = self.normalizers(batch), outputs.predictions["task"]
        measures = plateau.collapse(outputs.encoded_BLD, batch)
        if isinstance(words, ScoredWords):
            loss, correct = words.loss, words.correct
        else:
            labels_BM, weights_BM = batch["masked_labels"], batch["masked_weights"]
            loss, correct, _, predicted_BM = word_loss(
                words.hidden_BMD,
                words.embedding_VD,
                words.bias_V,
                labels_BM,
                weights_BM,
                self.group_rows,
                with_words=outputs.encoded_BLD is not None,
            )
            measures |= plateau.repetition(predicted_BM, batch, words.bias_V.shape[0])
        losses = {"mlm": loss}
        metrics = {"mlm_loss": (loss, weights["mlm"]), "mlm_accuracy": (correct, weights["mlm"])}
        if self.model.next_sentence:
            loss, correct = cross_entropy(outputs.predictions["nsp"].logits, batch["next_labels"], _examples(batch))
            losses["nsp"] = loss
            metrics |= {"nsp_loss": (loss, weights["nsp"]), "nsp_accuracy": (correct, weights["nsp"])}
        return Terms(losses, metrics | measures)


def _examples(batch: Batch) -> Array:
    """Return the weight of each row, `B`: 1 for an example, 0 for a row without tokens, which fills the batch up."""
    return (batch["segment_ids"] > 0).any(-1).astype(jnp.float32)

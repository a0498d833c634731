"""Replaced-token detection: predict for each token whether it was replaced.

Shape letters: B batch, L length, M masked positions of a row.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.objectives import plateau
from ag_jax.objectives.base import Objective, Outputs, PrimaryMetric, Rngs, Terms, WeightedSum, apply_model
from ag_jax.objectives.predictions import PredictionWeights, WordDistributions, YesNo
from ag_jax.objectives.sentences import Sentences
from ag_jax.objectives.word_loss import word_loss
from ag_jax.objectives.word_samples import sample_words

RTD = PrimaryMetric("rtd_loss", "rtd", "replaced-token loss", "nats per token", margin=0.02)


def detection_loss(logits_BL: Array, replaced_BL: Array, judged_BL: Array) -> tuple[Array, dict[str, WeightedSum]]:
    """Return the replaced-token detection loss, summed over tokens marked in `judged_BL`, and {metric: (sum, weight)}.

    The loss of a token is -log sigmoid(logit) if it was replaced, else -log sigmoid(-logit), that is,
    L = -[y log p + (1 - y) log(1 - p)] (Clark et al. 2020, section 2). Zero if and only if every judged token has the
    probability 1 of what it is. `replaced_BL` and `judged_BL` are booleans.
    """
    replaced_BL, weights_BL = replaced_BL & judged_BL, judged_BL.astype(jnp.float32)
    loss = (weights_BL * jax.nn.softplus(jnp.where(replaced_BL, -logits_BL, logits_BL))).sum()
    alarm_BL = (logits_BL > 0) & judged_BL

    def count(tokens_BL: Array) -> Array:
        return tokens_BL.sum().astype(jnp.float32)

    tokens, replaced, detected = count(judged_BL), count(replaced_BL), count(alarm_BL & replaced_BL)
    return loss, {
        "rtd_loss": (loss, tokens),
        "rtd_accuracy": (count((alarm_BL == replaced_BL) & judged_BL), tokens),
        "replaced_share": (replaced, tokens),
        "replaced_found": (detected, replaced),
        "alarms_right": (detected, count(alarm_BL)),
    }


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Objective):
    """The objective of ELECTRA: predict for every token whether it was replaced; train the generator if there is one.

    -log P(replaced or not) averaged over the tokens of the batch, plus the loss of the generator.

    A token counts as replaced if it differs from the original; one that was replaced by itself does not. Terms: `rtd`,
    times `weight`, by the judged tokens, which depend on the batch alone; `mlm`, by the masked positions. Without a
    generator in the model the tokens of the batch hold the replacements; with one they hold masks, and a sample stands
    at every masked position of what the encoder sees. Guidance and other ports are the encoder's.

    Microbatches change nothing in the unigram variant. With a generator, loss and gradient of given samples stay exact,
    too (without dropout), but parts draw other samples than the whole, as they draw other dropout masks. An evaluation
    always draws the same ones, for a given batch size.

    weight: the coefficient of `rtd`.
    ignored: ids that are not judged.
    sentences: predictions at the first positions of texts, which have no loss but can be compared between passes.
    group_rows: of the generator's loss, see `word_loss`.
    """

    model: ReplacedTokensModel
    weight: float = 1.0
    ignored: tuple[int, ...] = ()
    sentences: Sentences = Sentences()
    group_rows: int = 1

    primary_metric: ClassVar[PrimaryMetric] = RTD

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """Names of the predictions by which clean and attacked passes are compared: `task` and, if enabled, `sentence`.

        `task` is whether each token was replaced; `sentence` is the output at each text's first position.
        """
        return ("task", *self.sentences.prediction_names)

    def judged(self, batch: Batch) -> Array:
        """Return booleans `BL`: whether each token counts in the detection loss.

        Judged are all tokens but padding and those whose original id is `ignored`.
        """
        original_BL = batch["original"]
        ignored = jnp.asarray(self.ignored, original_BL.dtype)
        return (batch["segment_ids"] > 0) & ~jnp.isin(original_BL, ignored)

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {loss term: divisor}: the number of classified tokens for `rtd`, of masked positions for `mlm`.

        The classified tokens are those that `judged` marks. There is no `mlm` without a generator.
        """
        weights = {"rtd": self.judged(batch).sum().astype(jnp.float32)}
        if self.model.generator_config is not None:
            weights["mlm"] = batch["masked_weights"].sum()
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {loss term: factor}: `weight` for the detection loss `rtd`; 1 for `mlm` if there is a generator."""
        coefficients = {"rtd": jnp.full_like(step, self.weight, jnp.float32)}
        if self.model.generator_config is not None:
            coefficients["mlm"] = jnp.ones_like(step, jnp.float32)
        return coefficients

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {prediction name: weights of its examples or tokens} for comparing a clean and an attacked pass.

        The weight is 1 for each token of the detection loss (`task`) and each text (`sentence`), and 0 for all else.
        """
        judged_BL = self.judged(batch).astype(jnp.float32)
        return {"task": PredictionWeights(judged_BL)} | self.sentences.prediction_weights(batch)

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Predict which tokens are replaced; a generator, if there is one, first fills the masks with its samples.

        The generator's own prediction, `generator`, is for its loss. It is made before the encoder runs and is not
        attacked, so it is not among the `prediction_names`.
        """
        if self.model.generator_config is None:
            return self.predict(params, batch, rngs, step, ports)
        words, encoder_batch = self.generate(params, batch, rngs)
        outputs = self.predict(params, encoder_batch, rngs, step, ports)
        return dataclasses.replace(outputs, predictions=outputs.predictions | {"generator": words})

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return {loss term: batch sum} and {metric: (sum, weight)} of detection and, if there is one, the generator.

        Recall is `replaced_found`, precision `alarms_right`; `replaced_share` is the share of replaced tokens. With a
        generator there are its loss and accuracy, too. An evaluation adds the metrics of `plateau`: the collapse of the
        encoder that detects, and the repetition of the generator.
        """
        replaced_BL = outputs.encoder_batch["tokens"] != batch["original"]
        detection, metrics = detection_loss(outputs.predictions["task"].logits, replaced_BL, self.judged(batch))
        metrics |= plateau.collapse(outputs.encoded_BLD, batch)
        if self.model.generator_config is None:
            return Terms({"rtd": detection}, metrics)
        words, weights_BM = outputs.predictions["generator"], batch["masked_weights"]
        loss, correct, _, predicted_BM = word_loss(
            words.hidden_BMD,
            words.embedding_VD,
            words.bias_V,
            batch["masked_labels"],
            weights_BM,
            self.group_rows,
            with_words=outputs.encoded_BLD is not None,
        )
        metrics |= {"mlm_loss": (loss, weights_BM.sum()), "mlm_accuracy": (correct, weights_BM.sum())}
        metrics |= plateau.repetition(predicted_BM, batch, words.bias_V.shape[0])
        return Terms({"mlm": loss, "rtd": detection}, metrics)

    def predict(self, params: Params, encoder_batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Predict which tokens are replaced, in a batch whose tokens hold the replacements already."""
        del step
        detection, sown = apply_model(self.model, params, encoder_batch, rngs, ports, method="detect")
        predictions: dict[str, Any] = {"task": YesNo(detection.replaced_BL)}
        if self.sentences.of == "head":
            positions_BT, _ = self.sentences.first_positions(encoder_batch)
            predictions["sentence"] = YesNo(jnp.take_along_axis(detection.replaced_BL, positions_BT, axis=1))
        elif self.sentences.of != "none":
            predictions["sentence"] = self.sentences.hidden(detection.encoded_BLD, encoder_batch)
        return Outputs(predictions, encoder_batch, encoded_BLD=detection.encoded_BLD if rngs is None else None, **sown)

    def generate(self, params: Params, batch: Batch, rngs: Rngs) -> tuple[WordDistributions, Batch]:
        """Return the generator's word distributions at the masked positions, and the batch with sampled words there."""
        key = jax.random.key(0) if rngs is None else rngs.get("samples", rngs["dropout"])
        model_rngs = None if rngs is None else {"dropout": jax.random.fold_in(key, 1)}
        heads: Any = self.model.apply(
            {"params": params}, batch, deterministic=rngs is None, rngs=model_rngs, method="generate"
        )
        words = WordDistributions(heads.hidden_BMD, heads.embedding_VD, heads.bias_V)
        samples_BM = sample_words(words, jax.random.fold_in(key, 2))
        return words, batch | {"tokens": with_samples(batch, samples_BM)}


def with_samples(batch: Batch, samples_BM: Array) -> Array:
    """Return a batch's tokens before masking, `BL`, with those at masked positions replaced by the sampled tokens.

    Slots for masked positions that have weight 0 change nothing.
    """
    length = batch["original"].shape[1]
    # Unused slots are set to a position behind the row, which `mode="drop"` ignores.
    position_BM = jnp.where(batch["masked_weights"] > 0, batch["masked_positions"], length)

    def of_row(tokens_L: Array, position_M: Array, samples_M: Array) -> Array:
        return tokens_L.at[position_M].set(samples_M, mode="drop")

    return jax.vmap(of_row)(batch["original"], position_BM, samples_BM.astype(batch["original"].dtype))

"""Adversarial self-attention: a loss for predictions that change when attention is masked.

Shape letters: N layers, B batch, L length.
"""

import dataclasses
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments
from ag_jax.attention.adversary import ADVERSARY, Adversary, initial_offset
from ag_jax.attention.attack import Attack, MaskCounts, MaskPolicy
from ag_jax.models import encoder
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.objectives import consistency
from ag_jax.objectives.adversarial import delay
from ag_jax.objectives.adversarial.config import AsaConfig
from ag_jax.objectives.base import AttackedPass, Objective, Outputs, Rngs, Terms, WeightedSum
from ag_jax.objectives.config import DivergenceConfig
from ag_jax.objectives.consistency import SecondPass
from ag_jax.objectives.predictions import Prediction, PredictionWeights


class Attacker(Protocol):
    """A function (all parameters, batch as the encoder reads it, step) -> the attack on attention at this step."""

    def __call__(self, params: Params, encoder_batch: Batch, step: Array) -> Attack: ...


@dataclasses.dataclass(frozen=True)
class LearntMasks:
    """Attack on attention by an adversary, whose parameters are `params["adversary"]`."""

    config: AsaConfig
    encoder: EncoderConfig

    def __call__(self, params: Params, encoder_batch: Batch, step: Array) -> Adversary:
        """Return the adversary with the parameters `params["adversary"]`, whatever the batch and the step."""
        del encoder_batch, step
        config, shape = self.config, self.encoder
        return Adversary(
            **params[ADVERSARY],
            policy=MaskPolicy(config.strength),
            heads=shape.heads if config.heads == "own" else 1,
            offset=initial_offset(config.keep_init, shape.width, shape.initializer_range),
        )

    def init(self, key: Array) -> dict[str, Any]:
        """Return the adversary's initial parameters, boxed with the names of their axes.

        They are two linear layers for each layer of the encoder, initialised as the encoder's linear layers are.
        """
        layers, width = self.encoder.layers, self.encoder.width
        kernel_init = nn.with_logical_partitioning(
            nn.initializers.normal(self.encoder.initializer_range), ("layers", "embed", "heads")
        )
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros, ("layers", "heads"))
        return {
            name: {
                "kernel": kernel_init(layer_key, (layers, width, width)),
                "bias": bias_init(layer_key, (layers, width)),
            }
            for name, layer_key in zip(("query", "key"), jax.random.split(key), strict=True)
        }


def _text_count(segments_BL: Array) -> Array:
    """Return the number of texts in a batch, given its segment ids."""
    return segments.is_first(segments_BL).sum().astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Penalty:
    """Loss term coefficient * L_c that keeps the adversary from masking everything: L_c falls as it masks more.

    L_c grows with the number of unmasked units (query-key pairs). The adversary learns by the reversed gradient, so it
    maximises this term.

    coefficient: tau^power, from `AsaConfig`.
    count: L_c is the number of kept units, summed over layers, a mean over texts (`units`); or their share of all
        units, summed over layers, a mean over rows (`fraction`).
    """

    coefficient: float
    count: str

    def weight(self, segments_BL: Array) -> Array:
        """Return the number of texts or rows by which the penalty's sum over the batch, `total`, is divided.

        It is the number of texts with `count=units`, the number of rows that are not empty with `count=fraction`.
        """
        if self.count == "units":
            return _text_count(segments_BL)
        return (segments_BL > 0).any(-1).sum().astype(jnp.float32)

    def total(self, counts_NB: MaskCounts) -> Array:
        """Return the penalty on masking, L_c of Wu et al. 2022, summed over the layers and the rows of the batch.

        It is the number of unmasked units of each layer and row with `count=units`, or the unmasked fraction of its
        units with `count=fraction`.

        The gradient of L_c is reversed, and reaches only the adversary.
        """
        if self.count == "units":
            return counts_NB.kept_B.sum()
        return (counts_NB.kept_B / jnp.maximum(counts_NB.all_B, 1.0)).sum()


@dataclasses.dataclass(frozen=True)
class AttackedAttention(SecondPass):
    """An inner objective, plus the divergence of clean and attacked predictions and an adversary's penalty on masking.

    L_inner + D[p(y|x), p(y|x, attack)] + tau^power * L_c, from Wu et al. 2022, equations 9 and 10. L_inner is the loss
    of the inner objective, and L_c measures how many units stay unmasked (`Penalty`). The inner objective sees the
    clean pass; a second pass of its model runs with the attack. Model and adversary are trained by one gradient, which
    is reversed where it reaches the adversary: the model lowers D, the adversary raises D and L_c, so the adversary
    masks where masking disturbs most. The term of L_c is `penalty`. An evaluation is the inner objective's, and so is a
    training step before `delay_steps`.

    attacker: makes the attack of a step.
    divergence: settings of D.
    penalty: None for attacks without parameters.
    shared_dropout: whether the attacked pass has the clean pass's dropout masks.
    delay_steps: steps before the attack begins.
    """

    attacker: Attacker
    divergence: DivergenceConfig
    penalty: Penalty | None = None
    shared_dropout: bool = False
    delay_steps: int = 0

    def distance(self, clean: Prediction, other: Prediction, weights: PredictionWeights) -> Array:
        """Return the divergence of clean and attacked predictions, as a weighted sum over examples or tokens."""
        return consistency.divergence(clean, other, weights, self.divergence)

    @property
    def word_divergence(self) -> DivergenceConfig:
        """Settings of the divergence D between the predictions of the clean and the attacked pass."""
        return self.divergence

    def total_weight(self, weights: PredictionWeights) -> Array:
        """Return the sum of all weights, by which `distance` is divided to get a mean."""
        return consistency.total_weight(weights, self.divergence)

    def coefficient_at(self, step: Array) -> Array:
        """Return the coefficient of the attack's terms: 0 before the step `delay_steps`, 1 from it on."""
        return jnp.asarray(step >= self.delay_steps, jnp.float32)

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {loss term: divisor} of the wrapped objective, the divergence and, if any, the penalty on masking."""
        weights = super().normalizers(batch)
        if self.penalty is not None:
            weights["penalty"] = self.penalty.weight(encoder.rows(batch)["segment_ids"])
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {loss term: factor} of the wrapped objective, the divergence and, if any, the penalty on masking."""
        coefficients = super().coefficients(step)
        if self.penalty is not None:
            coefficients["penalty"] = self.coefficient_at(step) * self.penalty.coefficient
        return coefficients

    def value_and_grad(
        self, params: Params, batch: Batch, rngs: Rngs, step: Array, factors: dict[str, Array]
    ) -> tuple[tuple[Array, dict[str, WeightedSum]], Params]:
        """Return ((loss, metrics), gradient); before the step `delay_steps`, those of the wrapped objective."""
        return delay.plain_then_attacked(
            self.delay_steps,
            step,
            super().value_and_grad,
            self.inner.value_and_grad,
            *(params, batch, rngs, step, factors),
        )

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Return the outputs of a clean pass; in training, they contain those of an attacked pass in `second_passes`.

        The outputs of the attacked pass have the masked share of units as metrics, overall and by layer.
        """
        outputs = self.inner.forward(params, batch, rngs, step, ports)
        if rngs is None:
            return outputs
        if not self.shared_dropout:
            rngs = consistency.independent_rngs(rngs)
        # The attack is made from what the clean pass read, so that both passes differ in nothing but the masks. It
        # reads the parameters without stop_gradient: the adversary learns by the reversed gradient inside `Adversary`.
        attack = self.attacker(params, outputs.encoder_batch, step)
        attacked = self.predict(params, outputs.encoder_batch, rngs, step, dataclasses.replace(ports, attack=attack))
        metrics = mask_metrics(attacked.mask_counts, step >= self.delay_steps)
        return self.with_second_pass(outputs, dataclasses.replace(attacked, metrics=metrics))

    def attacked_pass(self, params: Params, batch: Batch, rngs: dict[str, Array], step: Array) -> AttackedPass:
        """Return the inputs of the clean pass and of the pass whose attention is masked."""
        encoder_batch = self.inner.forward(params, batch, rngs, step).encoder_batch
        return AttackedPass(encoder_batch, Ports(), Ports(attack=self.attacker(params, encoder_batch, step)))

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return summed loss terms, and metrics, of the inner objective, the divergence and the penalty on masking.

        The metric `kept_units` is the number of unmasked units (query-key pairs) of a text.
        """
        losses, metrics = super().terms(outputs, batch)
        attacked = outputs.second_passes.get(self.term)
        if attacked is not None and self.penalty is not None:
            units = attacked.mask_counts.kept_B.sum()
            losses["penalty"] = self.penalty.total(attacked.mask_counts)
            metrics["kept_units"] = (units, _text_count(encoder.rows(batch)["segment_ids"]))
        return Terms(losses, metrics)


def mask_metrics(counts_NB: MaskCounts, has_begun: Array) -> dict[str, WeightedSum]:
    """Return the share of units (query-key pairs) that are masked: `masked` over all layers, `masked/layers` by layer.

    has_begun: whether the attack has begun; the share is 0 until then.
    """
    all_N = counts_NB.all_B.sum(1)
    masked_N = jnp.where(has_begun, all_N - counts_NB.kept_B.sum(1), 0.0)
    return {"masked": (masked_N.sum(), all_N.sum()), "masked/layers": (masked_N, all_N)}


def adversarial_self_attention(inner: Objective, attacker: LearntMasks) -> AttackedAttention:
    """Return the objective `inner` under the attack of an adversary that is trained with the model."""
    config = attacker.config
    return AttackedAttention(
        inner=inner,
        attacker=attacker,
        divergence=config.divergence,
        term="asa",
        penalty=Penalty(config.penalty, config.count),
        shared_dropout=config.dropout == "shared",
        delay_steps=config.delay_steps,
    )

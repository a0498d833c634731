"""R-Drop: a loss for predictions that change with dropout alone, without any attack."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.objectives import consistency
from ag_jax.objectives.adversarial.config import RDropConfig
from ag_jax.objectives.base import Objective, Outputs, Rngs
from ag_jax.objectives.config import DivergenceConfig
from ag_jax.objectives.consistency import SecondPass
from ag_jax.objectives.predictions import Prediction, PredictionWeights


@dataclasses.dataclass(frozen=True)
class RDrop(SecondPass):
    """The inner objective's loss + weight * D, the divergence of two passes that differ only in their dropout.

    L_inner + weight * D[p(y|x), p'(y|x)], where p and p' are predictions with independently drawn dropout masks. These
    are the terms of Wu et al. 2022, equation 9, for a mask that keeps everything, so the comparison with adversarial
    self-attention or fixed masks shows what the masks add to a second pass. The dropout of the second pass is that of
    their attacked pass. An evaluation is the inner objective's.

    R-Drop as published (Wu et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", equations 2 to 4) differs in
    two ways: its task loss is the sum over both passes, here it is that of the first pass alone, as for the attacks;
    and the weight of D, which is 1/2 [KL(p || p') + KL(p' || p)] there and in the default here, was tuned for each of
    its tasks.

    weight: coefficient of D.
    divergence: settings of D.
    """

    weight: float
    divergence: DivergenceConfig

    def distance(self, clean: Prediction, other: Prediction, weights: PredictionWeights) -> Array:
        """Return the divergence of the predictions of both passes, as a weighted sum over examples or tokens."""
        return consistency.divergence(clean, other, weights, self.divergence)

    @property
    def word_divergence(self) -> DivergenceConfig:
        """Settings of the divergence D between the predictions of the two passes."""
        return self.divergence

    def total_weight(self, weights: PredictionWeights) -> Array:
        """Return the sum of all weights, by which `distance` is divided to get a mean."""
        return consistency.total_weight(weights, self.divergence)

    def coefficient_at(self, step: Array) -> Array:
        """Return the coefficient of the divergence D in the loss: `weight` at every step."""
        return jnp.full_like(step, self.weight, jnp.float32)

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Return the outputs of a pass; in training, a pass with other dropout masks has its own in `second_passes`."""
        outputs = self.inner.forward(params, batch, rngs, step, ports)
        if rngs is None:
            return outputs
        other = self.predict(params, outputs.encoder_batch, consistency.independent_rngs(rngs), step, ports)
        return self.with_second_pass(outputs, other)


def r_drop(inner: Objective, config: RDropConfig) -> RDrop:
    """Return the objective `inner` with the divergence of a second pass that differs only in its dropout."""
    return RDrop(inner=inner, term="r_drop", weight=config.weight, divergence=config.divergence)

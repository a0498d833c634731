"""A loss for predictions that change under small perturbations of embeddings: the common part of SMART and SiFT.

Shape letters: B batch, L length, E width of the embeddings.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.objectives.adversarial import perturbation
from ag_jax.objectives.adversarial.perturbation import Perturbation
from ag_jax.objectives.base import AttackedPass, Outputs, Rngs
from ag_jax.objectives.config import DivergenceConfig, StopGradient
from ag_jax.objectives.consistency import SecondPass, divergence
from ag_jax.objectives.predictions import Prediction, PredictionWeights, Values

_NOISE, _PASS = 0x5317, 0x5A00  # purposes of random keys: the initial perturbation, and the perturbed passes


def symmetric_kl(clean: Prediction, other: Any, weights: PredictionWeights, stop_gradient: StopGradient) -> Array:
    """Return the sum of w [KL(clean || other) + KL(other || clean)] over examples or tokens, each with weight w.

    For numbers and vectors, it is the sum of w times the squared error.

    stop_gradient: which predictions get no gradient, as in `DivergenceConfig`: `none`, `clean` or `targets`. The
        squared error, w (clean - other)^2, has no targets: with `targets` its gradient goes to both passes.
    """
    if isinstance(clean, Values):
        stop_gradient = "none" if stop_gradient == "targets" else stop_gradient
        return divergence(clean, other, weights, DivergenceConfig(stop_gradient=stop_gradient))
    return 2 * divergence(clean, other, weights, DivergenceConfig(stop_gradient=stop_gradient))


@dataclasses.dataclass(frozen=True)
class Smooth(SecondPass):
    """The inner objective's loss + coefficient * R, the `symmetric_kl` of the clean and the worst perturbed prediction.

    The added term is coefficient * max_delta R[p(y|x), p(y|x + delta)]. The inner objective sees the clean pass. The
    maximum is approximated by `steps` steps of gradient ascent from a random perturbation; then one more pass is
    compared with the clean one. An evaluation is the inner objective's.

    perturbation: how embeddings are perturbed, and a step of ascent.
    coefficient: the coefficient of R.
    steps: number of steps of ascent.
    stop_gradient: in R (`DivergenceConfig`).
    shared_dropout: whether perturbed passes have the clean pass's dropout masks.
    """

    perturbation: Perturbation
    coefficient: float
    steps: int
    stop_gradient: StopGradient
    shared_dropout: bool

    def distance(self, clean: Prediction, other: Prediction, weights: PredictionWeights) -> Array:
        """Return the regularizer R: `symmetric_kl` of the clean and the perturbed prediction, a weighted sum."""
        return symmetric_kl(clean, other, weights, self.stop_gradient)

    def coefficient_at(self, step: Array) -> Array:
        """Return the coefficient of the regularizer R, which is the same at every step."""
        return jnp.full_like(step, self.coefficient, jnp.float32)

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run a clean pass and, in training, one with the worst perturbation that gradient ascent finds.

        The outputs of the perturbed pass have the metric `delta_norm`, the mean length of a text's perturbation.
        """
        if rngs is None:
            return self.inner.forward(params, batch, None, step, ports)
        outputs = self.inner.forward(params, batch, rngs, step, self.perturbation.clean(ports))
        delta_BLE = self._worst(params, outputs, self.prediction_weights(batch), rngs, step, ports)
        ports = self.perturbation.perturbed(ports, delta_BLE)
        other = self.predict(params, outputs.encoder_batch, self._rngs(rngs, self.steps), step, ports)
        metrics = {"delta_norm": perturbation.length_metric(delta_BLE, perturbation.encoder_segments(batch))}
        return self.with_second_pass(outputs, dataclasses.replace(other, metrics=metrics))

    def attacked_pass(self, params: Params, batch: Batch, rngs: dict[str, Array], step: Array) -> AttackedPass:
        """Return the inputs of the clean pass and of the pass with the worst perturbation of a training step."""
        clean = self.perturbation.clean(Ports())
        outputs = self.inner.forward(params, batch, rngs, step, clean)
        delta_BLE = self._worst(params, outputs, self.prediction_weights(batch), rngs, step, Ports())
        return AttackedPass(outputs.encoder_batch, clean, self.perturbation.perturbed(Ports(), delta_BLE))

    def _worst(
        self,
        params: Params,
        outputs: Outputs,
        weights: dict[str, PredictionWeights],
        rngs: dict[str, Array],
        step: Array,
        ports: Ports,
    ) -> Array:
        """Return the perturbation `BLE` after all steps of gradient ascent; no gradient flows through it."""
        # Parameters and clean predictions are fixed, so a step costs a forward pass and half a backward one: the
        # gradient with regard to the perturbation alone.
        params, clean = jax.lax.stop_gradient((params, outputs.predictions))
        segments_BL = perturbation.encoder_segments(outputs.encoder_batch)

        def objective(delta_BLE: Array, rngs: dict[str, Array]) -> Array:
            perturbed = self.perturbation.perturbed(ports, delta_BLE)
            other = self.predict(params, outputs.encoder_batch, rngs, step, perturbed).predictions
            total: Any = sum(
                self.perturbation.objective(clean[name], other[name], weights[name]) for name in self.prediction_names
            )
            return total

        delta_BLE = self.perturbation.init(jax.random.fold_in(rngs["dropout"], _NOISE), segments_BL)
        for number in range(self.steps):
            slope_BLE = jax.grad(objective)(delta_BLE, self._rngs(rngs, number))
            slope_BLE = perturbation.on_texts(slope_BLE, segments_BL)
            delta_BLE = self.perturbation.update(delta_BLE, slope_BLE, segments_BL)
            delta_BLE = perturbation.on_texts(delta_BLE, segments_BL)
        return jax.lax.stop_gradient(delta_BLE)

    def _rngs(self, rngs: dict[str, Array], number: int) -> dict[str, Array]:
        if self.shared_dropout:
            return rngs
        return rngs | {"dropout": jax.random.fold_in(rngs["dropout"], _PASS + number)}

"""SiFT, scale-invariant fine-tuning: perturbations of normalised embeddings.

Shape letters: B batch, L length, E width of the embeddings.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial import perturbation
from ag_jax.objectives.adversarial.config import SiftConfig
from ag_jax.objectives.adversarial.smoothness import Smooth
from ag_jax.objectives.base import Objective
from ag_jax.objectives.config import DivergenceConfig
from ag_jax.objectives.consistency import divergence
from ag_jax.objectives.predictions import Prediction, PredictionWeights

_VARIANCE = 1e-7  # added to variances and squared lengths, as in the released code
_EPSILON = 1e-6  # added to the largest component of a gradient, as in the released code


@flax.struct.dataclass
class Normalized:
    """Callable that normalises each token's summed embeddings and adds the perturbation `delta_BLE`, unless it is None.

    Of embeddings e, it returns x = (e - mean) / sqrt(variance + 1e-7); with `unit`, x = e / sqrt(||e||^2 + 1e-7). With
    a perturbation, the result is stop_gradient(x) + delta, so that embeddings learn from the clean pass alone.
    """

    delta_BLE: Array | None
    unit: bool = flax.struct.field(pytree_node=False)

    def __call__(self, summed_BLE: Array) -> Array:
        """Return the normalised embeddings x, plus `delta_BLE` if there is one, float32."""
        x_BLE = summed_BLE.astype(jnp.float32)
        if self.unit:
            x_BLE = x_BLE * jax.lax.rsqrt(jnp.square(x_BLE).sum(-1, keepdims=True) + _VARIANCE)
        else:
            x_BLE = x_BLE - x_BLE.mean(-1, keepdims=True)
            x_BLE = x_BLE * jax.lax.rsqrt(jnp.square(x_BLE).mean(-1, keepdims=True) + _VARIANCE)
        return x_BLE if self.delta_BLE is None else jax.lax.stop_gradient(x_BLE) + self.delta_BLE


@dataclasses.dataclass(frozen=True)
class SiftPerturbation:
    """Perturbation delta of normalised embeddings (He et al. 2021, section 5).

    delta_0   = cut(N(0, noise^2), to twice the deviation)
    delta_1   = delta_0 + step_size * g / (max |g| + 1e-6), of each token; g as it is while it is finite, else no step

    with g the gradient of KL(p || q), q the perturbed prediction, or of squares for numbers, summed over the batch: of
    the regularizer, with fixed targets.
    """

    config: SiftConfig
    width: int

    def clean(self, ports: Ports) -> Ports:
        """Return `ports`, the optional inputs of the encoder, set to normalise the embeddings and to add nothing."""
        return dataclasses.replace(ports, on_embeddings=self._normalized(None))

    def perturbed(self, ports: Ports, delta_BLE: Array) -> Ports:
        """Return `ports`, the optional inputs of the encoder, set to normalise the embeddings and add `delta_BLE`."""
        return dataclasses.replace(ports, on_embeddings=self._normalized(delta_BLE))

    def _normalized(self, delta_BLE: Array | None) -> Normalized:
        return Normalized(delta_BLE, unit=self.config.normalize == "unit")

    def init(self, key: Array, segments_BL: Array) -> Array:
        """Return the initial perturbation delta_0, `BLE`: normal noise, clipped at twice its standard deviation."""
        most = 2 * self.config.noise
        return jnp.clip(perturbation.normal(key, segments_BL, self.width, self.config.noise), -most, most)

    def objective(self, clean: Prediction, other: Prediction, weights: PredictionWeights) -> Array:
        """Return KL(p || q) for the clean prediction p and the perturbed one q.

        This is the part of the regularizer that depends on the perturbation when targets are fixed.
        """
        return divergence(clean, other, weights, DivergenceConfig(form="one_way", stop_gradient="clean"))

    def update(self, delta_BLE: Array, slope_BLE: Array, segments_BL: Array) -> Array:
        """Return delta_1, the perturbation after the step of ascent; delta_0 if the gradient is not finite."""
        del segments_BL
        largest_BL1 = jnp.abs(slope_BLE).max(-1, keepdims=True)
        moved_BLE = delta_BLE + self.config.step_size * slope_BLE / (largest_BL1 + _EPSILON)
        return jnp.where(jnp.isfinite(slope_BLE).all(), moved_BLE, delta_BLE)


def sift(inner: Objective, config: SiftConfig, width: int) -> Smooth:
    """Return the objective `inner` with SiFT's regularizer, where no gradient flows through p in any KL(p || q).

    KL stands for the cross entropies of the released code: those are larger by the entropies of fixed targets, with the
    same gradient. Training sees normalised embeddings, everything else the model as it is: LayerNorm of what is
    normalised is the same, but for the epsilon of the model's own, which is small beside 1 but may be felt beside the
    variance of embeddings. A generator of replaced tokens is no part of it.
    """
    return Smooth(
        inner=inner,
        perturbation=SiftPerturbation(config, width),
        term="sift",
        coefficient=config.weight,
        steps=1,
        stop_gradient="targets",
        shared_dropout=config.dropout == "shared",
    )

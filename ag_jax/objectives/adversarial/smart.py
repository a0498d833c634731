"""SMART: a loss for predictions that change under small perturbations of word embeddings.

Shape letters: B batch, L length, E width of the embeddings.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial import perturbation
from ag_jax.objectives.adversarial.config import SmartConfig
from ag_jax.objectives.adversarial.smoothness import Smooth, symmetric_kl
from ag_jax.objectives.base import Objective
from ag_jax.objectives.predictions import Categorical, Prediction, PredictionWeights, YesNo

_EPSILON = 1e-6  # added to denominators by the released code
_TINY = 1e-30  # the least denominator, for gradients of 0


@dataclasses.dataclass(frozen=True)
class SmartPerturbation:
    """Noise on word embeddings, found by gradient ascent (Jiang et al. 2020, algorithm 1, lines 4 to 7).

    noise_0     from N(0, noise^2)
    noise_t+1 = clip(noise_t + step_size * g / max |g|, -epsilon, epsilon)

    with g the gradient of KL both ways, or of squares for numbers. The maximum is taken over the text, or over each
    token (`normalize`). Division by it makes the step independent of the loss's scale.
    """

    config: SmartConfig
    width: int

    def clean(self, ports: Ports) -> Ports:
        """Return `ports`, the optional inputs of the encoder, unchanged."""
        return ports

    def perturbed(self, ports: Ports, delta_BLE: Array) -> Ports:
        """Return `ports`, the optional inputs of the encoder, with the noise for the word embeddings added."""
        return dataclasses.replace(ports, embedding_delta=perturbation.plus(ports.embedding_delta, delta_BLE))

    def init(self, key: Array, segments_BL: Array) -> Array:
        """Return the initial noise, `BLE`, of standard deviation `config.noise`.

        Components may exceed `epsilon`, the bound after each step.
        """
        return perturbation.normal(key, segments_BL, self.width, self.config.noise)

    def objective(self, clean: Prediction, other: Prediction, weights: PredictionWeights) -> Array:
        """Return the value that the noise maximises: the regularizer `symmetric_kl`, with `clean` fixed."""
        return symmetric_kl(clean, other, weights, "clean")

    def update(self, delta_BLE: Array, slope_BLE: Array, segments_BL: Array) -> Array:
        """Return the noise after one step of ascent, with each component clipped to [-epsilon, epsilon]."""
        if self.config.normalize == "text":
            largest_BL1 = perturbation.largest(slope_BLE, segments_BL)
        else:
            largest_BL1 = jnp.abs(slope_BLE).max(-1, keepdims=True)
        moved_BLE = delta_BLE + self.config.length_of_step * slope_BLE / jnp.maximum(largest_BL1, _TINY)
        return jnp.clip(moved_BLE, -self.config.epsilon, self.config.epsilon)


@dataclasses.dataclass(frozen=True)
class MtDnnPerturbation(SmartPerturbation):
    """Noise on word embeddings as in mt-dnn, the program of SMART's authors.

    noise_t+1 = n / (max |n| + 1e-6) of each token, with n = noise_t + step_size * g: there is no bound epsilon, and the
    largest component of any token's noise is about 1.
    """

    def objective(self, clean: Any, other: Prediction, weights: PredictionWeights) -> Array:
        """Return the value that the noise maximises: `stable_kl` for class and binary logits, else `symmetric_kl`.

        As in SMART, `symmetric_kl` compares numbers (by squares) and words of a vocabulary; mt-dnn compares no words.
        """
        if isinstance(other, YesNo):
            clean, other = (
                Categorical(jnp.stack([answer.logits, jnp.zeros_like(answer.logits)], axis=-1))
                for answer in (clean, other)
            )
        if not isinstance(other, Categorical):
            return super().objective(clean, other, weights)
        return stable_kl(clean.logits, other.logits, weights.elements)

    def update(self, delta_BLE: Array, slope_BLE: Array, segments_BL: Array) -> Array:
        """Return the noise after one step of ascent, with each token's noise divided by its largest absolute value."""
        del segments_BL
        moved_BLE = delta_BLE + self.config.length_of_step * slope_BLE
        return moved_BLE / (jnp.abs(moved_BLE).max(-1, keepdims=True) + _EPSILON)


def stable_kl(clean: Array, other: Array, weights: Array) -> Array:
    """Return mt-dnn's `stable_kl`: the weighted sum of 2 q (logit(q) - logit(p)), p from `clean` and q from `other`.

    Here p = softmax(clean), q = softmax(other), and logit(x) = log(x / (1 - x)). No gradient flows through
    logit(q) and logit(p).

    logit(p), computed as -log(1 / (p + e) - 1 + e) with e = 1e-6, stands where KL has log(p). The sum is 0 for equal
    predictions, but is no divergence: for q = (0.6, 0.4) and p = (0.9, 0.1) it is negative. With two classes its
    gradient is twice that of KL(q || p), because logit(q) - logit(p) is the derivative of KL(q || p) with regard to q.
    """

    def logit(probabilities: Array) -> Array:
        return jax.lax.stop_gradient(-jnp.log(1 / (probabilities + _EPSILON) - 1 + _EPSILON))

    p, q = jax.nn.softmax(clean), jax.nn.softmax(other)
    return (2 * weights * (q * (logit(q) - logit(p))).sum(-1)).sum()


def smart(inner: Objective, config: SmartConfig, width: int) -> Smooth:
    """Return the objective `inner` with SMART's regularizer; the proximal term (momentum teacher) is not implemented.

    `config.mtdnn_compat` selects the authors' program, in which the targets of both KLs are fixed; in the paper
    gradients flow everywhere.
    """
    return Smooth(
        inner=inner,
        perturbation=(MtDnnPerturbation if config.mtdnn_compat else SmartPerturbation)(config, width),
        term="smart",
        coefficient=config.alpha,
        steps=config.steps,
        stop_gradient="targets" if config.mtdnn_compat else "none",
        shared_dropout=config.dropout == "shared",
    )

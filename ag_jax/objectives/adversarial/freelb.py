"""FreeLB: adversarial training on perturbed word embeddings, whose passes also give the gradient of the parameters.

Shape letters: B batch, L length, E width of the embeddings.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import dropout, segments
from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.objectives.adversarial import delay, perturbation
from ag_jax.objectives.adversarial.config import FreeLBConfig
from ag_jax.objectives.base import AttackedPass, Rngs, WeightedSum, Wrapper, loss_factors

_INITIAL, _PASS = 0xF1EE, 0xF100  # purposes of random keys: the initial perturbation, and the later passes
_SMALLEST = 1e-12  # the gradient of a text is divided by at least this; that of a row without tokens is 0


@dataclasses.dataclass(frozen=True)
class FreeLB(Wrapper):
    """Mean of the inner objective's loss over passes t = 0, 1, ..., with perturbation delta_t of the word embeddings.

    From Zhu et al. 2020, algorithm 1. There are `config.passes` passes, with one step of gradient ascent between
    consecutive passes:

    delta_0     uniform in [-1, 1] * init_magnitude / sqrt(n E), for a text of n tokens
    delta_t+1 = delta_t + step_size * g_t / ||g_t||, shortened to the length max_norm

    with g_t the gradient of the loss with regard to delta_t.

    Only `value_and_grad` differs from the inner objective, so an evaluation is the inner objective's, and FreeLB must
    be the outermost of all objectives. The loss includes all terms of the objectives inside, such as guidance. The
    gradient is that of the whole batch for any number of microbatches, but each microbatch draws its own delta_0. With
    `dropout=independent` a generator of replaced tokens still draws the same samples in every pass.

    width: of the embeddings.
    """

    config: FreeLBConfig
    width: int

    def value_and_grad(
        self, params: Params, batch: Batch, rngs: Rngs, step: Array, factors: dict[str, Array]
    ) -> tuple[tuple[Array, dict[str, WeightedSum]], Params]:
        """Return ((loss, metrics), parameter gradient), averaged over passes with different perturbations.

        Before the step `begin_step`, they are those of the wrapped objective. The metric `delta_norm` is the mean
        length of a text's perturbation in the last pass.
        """
        arguments = params, batch, rngs, step, factors
        return delay.plain_then_attacked(
            self.config.begin_step, step, self._attacked, self.inner.value_and_grad, *arguments
        )

    def _attacked(
        self, params: Params, batch: Batch, rngs: Rngs, step: Array, factors: dict[str, Array]
    ) -> tuple[tuple[Array, dict[str, WeightedSum]], Params]:
        """Return ((loss, metrics), parameter gradient) of the perturbed passes, with the metric `delta_norm`."""
        ((mean, metrics), gradient), delta_BLE = self._passes(params, batch, rngs, step, factors)
        metrics["delta_norm"] = perturbation.length_metric(delta_BLE, perturbation.encoder_segments(batch))
        return (mean, metrics), gradient

    def attacked_pass(self, params: Params, batch: Batch, rngs: dict[str, Array], step: Array) -> AttackedPass:
        """Return the inputs of an unperturbed pass, and of the last of the perturbed passes of a training step."""
        encoder_batch = self.inner.forward(params, batch, rngs, step).encoder_batch
        _, delta_BLE = self._passes(params, batch, rngs, step, loss_factors(self, batch, step))
        return AttackedPass(encoder_batch, Ports(), Ports(embedding_delta=delta_BLE))

    def _passes(
        self, params: Params, batch: Batch, rngs: Rngs, step: Array, factors: dict[str, Array]
    ) -> tuple[tuple[tuple[Array, dict[str, WeightedSum]], Params], Array]:
        """Return the means over passes ((loss, metrics), parameter gradient), and the perturbation of the last pass."""

        def loss(params: Params, delta_BLE: Array, rngs: Rngs) -> tuple[Array, dict[str, WeightedSum]]:
            return self.inner.loss(params, batch, rngs, step, factors, Ports(embedding_delta=delta_BLE))

        # One backward pass gives both gradients: of the parameters, which are averaged, and of the perturbation, which
        # then moves along it. So P passes cost P of plain training; with a backward pass for each gradient they would
        # cost 2 P - 1.
        run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        segments_BL = perturbation.encoder_segments(batch)
        delta_BLE = self.init(jax.random.fold_in(rngs["dropout"], _INITIAL), segments_BL)

        def one_pass(carry: Any, number: Array) -> tuple[Any, None]:
            """Update the perturbation, run a pass with it, and add its loss, metrics and gradient to the sums."""
            sums, delta_BLE, slope_BLE = carry
            # The step comes before a pass, because nothing uses the last pass's gradient by the perturbation. The
            # first pass has no step: even with a slope of zero, `max_norm` could shorten the initial perturbation.
            moved_BLE = self.update(delta_BLE, slope_BLE, segments_BL)
            delta_BLE = jnp.where(number == 0, delta_BLE, moved_BLE)
            outcome, (gradient, slope_BLE) = run(params, delta_BLE, self._rngs(rngs, number))
            return (jax.tree.map(jnp.add, sums, (outcome, gradient)), delta_BLE, slope_BLE), None

        # A loop, so that passes are compiled once and the memory of one pass is free before the next.
        shapes = jax.eval_shape(run, params, delta_BLE, rngs)
        outcome, (gradient, slope_BLE) = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        begin = (outcome, gradient), delta_BLE, slope_BLE
        (sums, delta_BLE, _), _ = jax.lax.scan(one_pass, begin, jnp.arange(self.config.passes))
        # Metrics are (total, weight) pairs, of which both are summed and both are divided.
        return jax.tree.map(lambda leaf: leaf / self.config.passes, sums), delta_BLE

    def init(self, key: Array, segments_BL: Array) -> Array:
        """Return the initial perturbation delta_0, `BLE`; its norm on each text is at most `init_magnitude`."""
        uniform_BLE = 2 * dropout.uniform(key, (*segments_BL.shape, self.width)) - 1
        components_BL = jnp.maximum(segments.sizes(segments_BL) * self.width, 1).astype(jnp.float32)
        scale_BL = self.config.init_magnitude / jnp.sqrt(components_BL)
        return perturbation.on_texts(uniform_BLE * scale_BL[:, :, None], segments_BL)

    def update(self, delta_BLE: Array, slope_BLE: Array, segments_BL: Array) -> Array:
        """Return the perturbation after one step along each text's gradient, scaled down where `max_norm` is exceeded.

        `max_norm` bounds the norm of a text's perturbation; if it is not set, nothing is scaled.
        """
        slope_BLE = perturbation.on_texts(slope_BLE, segments_BL)
        length_BL1 = jnp.maximum(perturbation.norms(slope_BLE, segments_BL), _SMALLEST)
        moved_BLE = delta_BLE + self.config.step_size * slope_BLE / length_BL1
        if not self.config.max_norm:
            return moved_BLE
        moved_BL1 = perturbation.norms(moved_BLE, segments_BL)
        is_outside_BL1 = moved_BL1 > self.config.max_norm
        return moved_BLE * jnp.where(
            is_outside_BL1, self.config.max_norm / jnp.where(is_outside_BL1, moved_BL1, 1.0), 1.0
        )

    def _rngs(self, rngs: Rngs, number: Array) -> Rngs:
        if self.config.dropout == "shared":
            return rngs
        later = jax.random.fold_in(rngs["dropout"], _PASS + number)
        # `samples` keeps the key of the first pass, so that a generator draws the same tokens in all passes.
        return {"samples": rngs["dropout"]} | rngs | {"dropout": jnp.where(number == 0, rngs["dropout"], later)}

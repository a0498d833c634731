"""FreeLB: adversarial training for free, as the passes that find a perturbation are those that are learnt from.

Shape letters: B batch, L length, E width of the embeddings.
"""

import dataclasses

import jax
import jax.numpy as jnp

from ag_jax.attention import dropout, sequences
from ag_jax.models.encoder import Batch, Ports
from ag_jax.objectives.adversarial import perturbation
from ag_jax.objectives.adversarial.config import FreeLBConfig
from ag_jax.objectives.given_gradient import with_gradient
from ag_jax.objectives.losses import Array, Headline, Objective, Outcome, Params, loss_factors
from ag_jax.objectives.predictions import Counts, Predictions

_INITIAL, _PASS = 0xF1EE, 0xF100  # what random numbers are for: the first perturbation, and the later passes
_SMALLEST = 1e-12  # a text whose gradient is shorter has none: only what fills a batch up


@dataclasses.dataclass(frozen=True)
class FreeLB:
    """Mean over the passes t = 0, 1, ... of L_inner(words + delta_t) (Zhu et al. 2020, algorithm 1).

    There are `config.passes` of them, K or K + 1, with one step of ascent between consecutive passes:

    delta_0     uniform in [-1, 1] * init_magnitude / sqrt(n E), for a text of n tokens
    delta_t+1 = delta_t + step_size * g_t / ||g_t||, cut to the length max_norm;  g_t the gradient with regard to delta_t

    One backward pass gives both g_t and the gradient of the parameters, so P passes cost P of them and not 2 P - 1. For
    that the gradient is made here, and handed on with the totals (`given_gradient`). It is that of the whole loss, of
    all terms that `ports.factors` weighs, and exact for any number of microbatches, but that each draws its own delta_0.
    Without factors they are those of this batch; a sum of several terms that is weighed otherwise then has a gradient
    that is scaled, and not made anew.

    Totals and metrics are means over the passes. What is predicted, shown and sown is of the last one, and has no
    gradient. An evaluation is the inner objective's. With `dropout=independent` a generator still draws the same samples
    in every pass.

    width: of the embeddings.
    """

    inner: Objective
    config: FreeLBConfig
    width: int

    @property
    def headline(self) -> Headline:
        """That of the inner objective."""
        return self.inner.headline

    @property
    def says(self) -> tuple[str, ...]:
        """What the inner objective says."""
        return self.inner.says

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Those of the inner objective."""
        return self.inner.normalizers(batch)

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Those of the inner objective."""
        return self.inner.coefficients(step)

    def __call__(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Outcome:
        """The inner outcome of the passes; `delta_norm`, the mean length of a text's last perturbation."""
        if rngs is None:
            return self.inner(params, batch, None, step, ports)
        factors = ports.factors or loss_factors(self.normalizers(batch), self.coefficients(step))
        sequences_BL, begun = perturbation.rows(batch), step >= self.config.begin_step
        delta_BLE = jnp.where(begun, self.first(jax.random.fold_in(rngs["dropout"], _INITIAL), sequences_BL), 0.0)
        slope_BLE, sums = jnp.zeros_like(delta_BLE), None
        for number in range(self.config.passes):
            if number:
                delta_BLE = jnp.where(begun, self.ascend(delta_BLE, slope_BLE, sequences_BL), delta_BLE)
            of_pass = ports.replace(
                factors=factors, embedding_delta=perturbation.plus(ports.embedding_delta, delta_BLE)
            )
            gradient, slope_BLE, outcome = self._pass(params, batch, self._rngs(rngs, number), step, of_pass)
            adds = (outcome.totals, outcome.metrics, gradient)
            sums = adds if sums is None else jax.tree.map(jnp.add, sums, adds)
        totals, metrics, gradient = jax.tree.map(lambda leaf: leaf / self.config.passes, sums)
        metrics["delta_norm"] = perturbation.length_metric(delta_BLE, sequences_BL)
        return outcome.replace(totals=with_gradient(totals, factors, params, gradient), metrics=metrics)

    def first(self, key: Array, sequences_BL: Array) -> Array:
        """delta_0, `BLE`: never longer than `init_magnitude`."""
        drawn_BLE = 2 * dropout.uniform(key, (*sequences_BL.shape, self.width)) - 1
        components_BL = jnp.maximum(sequences.sizes(sequences_BL) * self.width, 1).astype(jnp.float32)
        scale_BL = self.config.init_magnitude / jnp.sqrt(components_BL)
        return perturbation.on_texts(drawn_BLE * scale_BL[:, :, None], sequences_BL)

    def ascend(self, delta_BLE: Array, slope_BLE: Array, sequences_BL: Array) -> Array:
        """A step along the gradient of each text, and back to the ball if there is one."""
        slope_BLE = perturbation.on_texts(slope_BLE, sequences_BL)
        length_BL1 = jnp.maximum(perturbation.norms(slope_BLE, sequences_BL), _SMALLEST)
        moved_BLE = delta_BLE + self.config.step_size * slope_BLE / length_BL1
        if not self.config.max_norm:
            return moved_BLE
        moved_BL1 = perturbation.norms(moved_BLE, sequences_BL)
        is_outside_BL1 = moved_BL1 > self.config.max_norm
        return moved_BLE * jnp.where(
            is_outside_BL1, self.config.max_norm / jnp.where(is_outside_BL1, moved_BL1, 1.0), 1.0
        )

    def _pass(
        self, params: Params, batch: Batch, rngs: dict[str, Array], step: Array, ports: Ports
    ) -> tuple[Params, Array, Outcome]:
        """Of one pass: the gradient of the loss with regard to the parameters and to the perturbation, and the outcome."""

        def loss(params: Params, delta_BLE: Array) -> tuple[Array, Outcome]:
            outcome = self.inner(params, batch, rngs, step, ports.replace(embedding_delta=delta_BLE))
            return sum(ports.factors[term] * total for term, total in outcome.totals.items()), outcome

        # Parameters stand still, or the train step would differentiate this gradient once more.
        still = jax.lax.stop_gradient(params)
        (gradient, slope_BLE), outcome = jax.grad(loss, argnums=(0, 1), has_aux=True)(still, ports.embedding_delta)
        return gradient, slope_BLE, outcome

    def _rngs(self, rngs: dict[str, Array], number: int) -> dict[str, Array]:
        if self.config.dropout == "shared" or not number:
            return rngs
        return {"samples": rngs["dropout"]} | rngs | {"dropout": jax.random.fold_in(rngs["dropout"], _PASS + number)}

    def predict(
        self, params: Params, shown: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Predictions:
        """What the inner objective predicts, without a perturbation."""
        return self.inner.predict(params, shown, rngs, step, ports)

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """Those of the inner objective."""
        return self.inner.counts(batch)

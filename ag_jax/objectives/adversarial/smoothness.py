"""A model that says the same of embeddings that are nearly the same: what SMART and SiFT have in common.

Shape letters: B batch, L length, E width of the embeddings.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from ag_jax.models.encoder import Batch, Ports
from ag_jax.objectives.adversarial import perturbation
from ag_jax.objectives.consistency import DivergenceConfig, divergence, weight
from ag_jax.objectives.losses import Array, Headline, Objective, Outcome, Params
from ag_jax.objectives.predictions import Counts, Numbers, Prediction, Predictions

_NOISE, _PASS = 0x5317, 0x5A00  # what random numbers are for: the first perturbation, and the perturbed passes


def apart(clean: Prediction, other: Prediction, counts: Counts, stop_gradient: str) -> Array:
    """Sum of w [KL(p || q) + KL(q || p)], or of w (a - b)^2 for numbers, with gradients as `DivergenceConfig.stop_gradient` says.

    Squares have no targets: their gradient then goes to both passes.
    """
    if isinstance(clean, Numbers):
        stop_gradient = "none" if stop_gradient == "targets" else stop_gradient
        return divergence(clean, other, counts, DivergenceConfig(stop_gradient=stop_gradient))
    return 2 * divergence(clean, other, counts, DivergenceConfig(stop_gradient=stop_gradient))


class Neighbours(Protocol):
    """Where perturbed embeddings lie, and how the worst of them are looked for."""

    def clean(self, ports: Ports) -> Ports:
        """The ports of the clean pass."""

    def perturbed(self, ports: Ports, delta_BLE: Array) -> Ports:
        """The ports of a pass with a perturbation."""

    def first(self, key: Array, sequences_BL: Array) -> Array:
        """The perturbation to begin with, `BLE`, 0 on padding."""

    def sought(self, clean: Prediction, other: Prediction, counts: Counts) -> Array:
        """What the perturbation is to make large, summed over examples so that none depends on another; `clean` is fixed."""

    def ascend(self, delta_BLE: Array, slope_BLE: Array, sequences_BL: Array) -> Array:
        """The perturbation after one step along a gradient, which is 0 on padding."""


@dataclasses.dataclass(frozen=True)
class Smooth:
    """L_inner + coefficient * max_delta R[p(y|x), p(y|x + delta)], with R of `apart`.

    The inner objective sees the clean pass. A perturbation moves `steps` times along a gradient that is taken with regard
    to it alone, parameters and clean predictions fixed, at the price of a forward pass and half a backward one; then one
    more pass is compared with the clean one. Terms, named after `term`: of what the task is about, and as `term_nsp` of
    the next sentence. Means are over what the inner loss is a mean over. An evaluation is the inner objective's.

    stop_gradient: in R (`DivergenceConfig`); shared_dropout: perturbed passes drop what the clean one does.
    """

    inner: Objective
    neighbours: Neighbours
    term: str
    coefficient: float
    steps: int
    stop_gradient: str
    shared_dropout: bool

    @property
    def headline(self) -> Headline:
        """That of the inner objective."""
        return self.inner.headline

    @property
    def says(self) -> tuple[str, ...]:
        """What the inner objective says."""
        return self.inner.says

    def _term(self, said: str) -> str:
        return self.term if said == "task" else f"{self.term}_{said}"

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Those of the inner objective, and what predictions count."""
        counts = self.counts(batch)
        return self.inner.normalizers(batch) | {
            self._term(said): weight(counts[said], DivergenceConfig()) for said in self.says
        }

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Those of the inner objective, and one for every prediction."""
        own = jnp.full_like(step, self.coefficient, jnp.float32)
        return self.inner.coefficients(step) | {self._term(said): own for said in self.says}

    def __call__(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Outcome:
        """The inner outcome with the terms of the perturbed pass; `delta_norm`, the mean length of a text's perturbation."""
        if rngs is None:
            return self.inner(params, batch, None, step, ports)
        outcome = self.inner(params, batch, rngs, step, self.neighbours.clean(ports))
        counts, sequences_BL = self.counts(batch), perturbation.rows(batch)
        delta_BLE = self._worst(params, outcome, counts, rngs, step, ports)
        perturbed = self.neighbours.perturbed(ports, delta_BLE)
        other = self.inner.predict(params, outcome.shown, self._rngs(rngs, self.steps), step, perturbed)
        totals, metrics = dict(outcome.totals), dict(outcome.metrics)
        for said in self.says:
            total = apart(outcome.predictions.said[said], other.said[said], counts[said], self.stop_gradient)
            totals[self._term(said)] = total
            metrics[f"{self._term(said)}_loss"] = (total, weight(counts[said], DivergenceConfig()))
        metrics["delta_norm"] = perturbation.length_metric(delta_BLE, sequences_BL)
        return outcome.replace(totals=totals, metrics=metrics)

    def _worst(
        self,
        params: Params,
        outcome: Outcome,
        counts: dict[str, Counts],
        rngs: dict[str, Array],
        step: Array,
        ports: Ports,
    ) -> Array:
        """The perturbation `BLE` after all its steps, without gradient."""
        params, clean = jax.lax.stop_gradient((params, outcome.predictions.said))
        sequences_BL = perturbation.rows(outcome.shown)

        def sought(delta_BLE: Array, rngs: dict[str, Array]) -> Array:
            other = self.inner.predict(params, outcome.shown, rngs, step, self.neighbours.perturbed(ports, delta_BLE))
            return sum(self.neighbours.sought(clean[said], other.said[said], counts[said]) for said in self.says)

        delta_BLE = self.neighbours.first(jax.random.fold_in(rngs["dropout"], _NOISE), sequences_BL)
        for number in range(self.steps):
            slope_BLE = perturbation.on_texts(jax.grad(sought)(delta_BLE, self._rngs(rngs, number)), sequences_BL)
            delta_BLE = perturbation.on_texts(self.neighbours.ascend(delta_BLE, slope_BLE, sequences_BL), sequences_BL)
        return jax.lax.stop_gradient(delta_BLE)

    def _rngs(self, rngs: dict[str, Array], number: int) -> dict[str, Array]:
        if self.shared_dropout:
            return rngs
        return rngs | {"dropout": jax.random.fold_in(rngs["dropout"], _PASS + number)}

    def predict(
        self, params: Params, shown: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Predictions:
        """What the inner objective predicts, without a perturbation."""
        return self.inner.predict(params, shown, rngs, step, ports)

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """Those of the inner objective."""
        return self.inner.counts(batch)

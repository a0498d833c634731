"""Any objective, with its encoder's attention guided."""

import dataclasses

import jax.numpy as jnp

from ag_jax.attention import guidance, patterns, sequences
from ag_jax.models import encoder
from ag_jax.models.encoder import Batch, Ports
from ag_jax.objectives.losses import Array, Headline, Objective, Outcome, Params, Schedule
from ag_jax.objectives.predictions import Counts, Predictions


@dataclasses.dataclass(frozen=True)
class Guided:
    """L = L_inner + alpha(step) * L_AG (Deshpande & Narasimhan 2020, equation 4).

    With `mode=bias` there is no extra term: alpha(step) * P is added to the guided heads' scores instead. Either way the
    attention mass on every pattern's target is reported for each layer, as `mass/PATTERN`.

    assignment: patterns with their number of heads (`guidance.assign_heads`); heads: of a layer.
    """

    inner: Objective
    config: guidance.GuidanceConfig
    assignment: tuple[tuple[str, int], ...]
    heads: int
    special: patterns.SpecialTokens
    alpha: Schedule

    @property
    def headline(self) -> Headline:
        """That of the inner objective."""
        return self.inner.headline

    @property
    def says(self) -> tuple[str, ...]:
        """What the inner objective says."""
        return self.inner.says

    def guides(self, batch: Batch) -> guidance.Guides:
        """Targets for the rows of the batch, from the tokens as they were before masking."""
        rows = encoder.rows(batch)
        targets = tuple(
            patterns.find_target(name, rows["original"], rows["sequences"], self.special) for name, _ in self.assignment
        )
        counts = tuple(count for _, count in self.assignment)
        return guidance.Guides(targets, counts, self.config.probabilities == "after_dropout")

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Those of the inner objective, and the number of texts."""
        weights = self.inner.normalizers(batch)
        if self.config.mode == "loss":
            weights["ag"] = sequences.firsts(encoder.rows(batch)["sequences"]).sum().astype(jnp.float32)
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Those of the inner objective, and alpha(step)."""
        coefficients = self.inner.coefficients(step)
        if self.config.mode == "loss":
            coefficients["ag"] = self.alpha(step)
        return coefficients

    def __call__(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Outcome:
        """The inner outcome with the term `ag`, before alpha, and the masses."""
        guides, sequences_BL = self.guides(batch), encoder.rows(batch)["sequences"]
        ports = self._biased(ports.replace(guides=guides), guides, sequences_BL, step)
        outcome = self.inner(params, batch, rngs, step, ports)
        total, masses = guidance.guidance_loss(outcome.statistics, guides, sequences_BL, self.config)
        metrics = outcome.metrics | {
            f"mass/{name}": mass for (name, _), mass in zip(self.assignment, masses, strict=True)
        }
        totals = outcome.totals
        if self.config.mode == "loss":
            totals = totals | {"ag": total}
            metrics["ag_loss"] = (total, self.normalizers(batch)["ag"])
        return outcome.replace(totals=totals, metrics=metrics)

    def predict(
        self, params: Params, shown: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Predictions:
        """What the inner objective predicts, with the bias of `mode=bias`."""
        if self.config.mode == "bias":
            ports = self._biased(ports, self.guides(shown), encoder.rows(shown)["sequences"], step)
        return self.inner.predict(params, shown, rngs, step, ports)

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """Those of the inner objective."""
        return self.inner.counts(batch)

    def _biased(self, ports: Ports, guides: guidance.Guides, sequences_BL: Array, step: Array) -> Ports:
        """With `mode=bias`, the ports with alpha(step) * P."""
        if self.config.mode != "bias":
            return ports
        bias_BHQK = guidance.bias(guides, sequences_BL, self.heads, self.alpha(step))
        if ports.attention_bias is not None:
            bias_BHQK = bias_BHQK + ports.attention_bias
        return ports.replace(attention_bias=bias_BHQK)

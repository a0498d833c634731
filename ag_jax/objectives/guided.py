"""Any objective, with its encoder's attention guided."""

import dataclasses

import jax.numpy as jnp
from jax import Array

from ag_jax.attention import guidance, patterns, segments
from ag_jax.models import encoder
from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.objectives.base import LossTerm, Outputs, Rngs, Wrapper


@dataclasses.dataclass(frozen=True)
class Guided(Wrapper):
    """An objective with the attention guidance loss L_AG added: L = L_inner + alpha(step) * L_AG.

    Deshpande & Narasimhan 2020, equation 4; L_inner is the loss of the wrapped objective.

    With `mode=bias` there is no extra term: alpha(step) * P is added to the guided heads' scores instead. Either way
    the attention mass on every pattern's target is reported for each layer, as `mass/PATTERN`.

    assignment: patterns with their number of heads (`guidance.assign_heads`).
    heads: number of heads of a layer.
    special: token ids that patterns look for.
    alpha: the coefficient at a step.
    """

    config: guidance.GuidanceConfig
    assignment: tuple[tuple[str, int], ...]
    heads: int
    special: patterns.PatternTokens
    alpha: guidance.Schedule

    def guides(self, batch: Batch) -> guidance.Guides:
        """Return the attention targets of the guided heads, found in the batch's tokens before masking."""
        rows = encoder.rows(batch)
        targets = tuple(
            patterns.find_target(name, rows["original"], rows["segment_ids"], self.special)
            for name, _ in self.assignment
        )
        counts = tuple(count for _, count in self.assignment)
        return guidance.Guides(targets, counts, self.config.probabilities == "after_dropout")

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return the divisors of the wrapped objective's loss terms; for the guidance loss `ag`, the number of texts.

        There is no term `ag` with `mode=bias`.
        """
        weights = self.inner.normalizers(batch)
        if self.config.mode == "loss":
            weights["ag"] = segments.is_first(encoder.rows(batch)["segment_ids"]).sum().astype(jnp.float32)
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return the factors of the wrapped objective's loss terms; for the guidance loss `ag`, alpha(step).

        There is no term `ag` with `mode=bias`.
        """
        coefficients = self.inner.coefficients(step)
        if self.config.mode == "loss":
            coefficients["ag"] = self.alpha(step)
        return coefficients

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Return the outputs of the inner objective's model, run with guidance, with the statistics of guided heads."""
        ports = self._biased(dataclasses.replace(ports, guides=self.guides(batch)), batch, step)
        return self.inner.forward(params, batch, rngs, step, ports)

    def terms(self, outputs: Outputs, batch: Batch) -> tuple[dict[str, Array], dict[str, LossTerm]]:
        """Return loss terms, summed over the batch, and metrics: of the inner objective, and of guidance.

        Guidance adds the attention mass on every pattern's target to the metrics. With `mode=loss` it also adds the
        guidance loss: the loss term `ag` and the metric `ag_loss`.
        """
        totals, metrics = self.inner.terms(outputs, batch)
        # The guides are found once more, as in `forward`: they depend on the batch alone, so the compiler finds them
        # only once.
        segments_BL = encoder.rows(batch)["segment_ids"]
        total, masses = guidance.guidance_loss(outputs.statistics, self.guides(batch), segments_BL, self.config)
        metrics |= {f"mass/{name}": mass for (name, _), mass in zip(self.assignment, masses, strict=True)}
        if self.config.mode == "loss":
            totals["ag"] = total
            metrics["ag_loss"] = (total, self.normalizers(batch)["ag"])
        return totals, metrics

    def predict(self, params: Params, encoder_batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the model again (for an attack) on what the encoder read in the first pass; return the outputs.

        encoder_batch: `Outputs.encoder_batch` of the first pass.

        No statistics of the guided heads are collected. With `mode=bias`, the attention scores are biased as in
        `forward`.
        """
        return self.inner.predict(params, encoder_batch, rngs, step, self._biased(ports, encoder_batch, step))

    def _biased(self, ports: Ports, batch: Batch, step: Array) -> Ports:
        """Return the encoder's extra inputs `ports`, with alpha(step) * P as attention bias if `guidance.mode=bias`.

        P is the target attention of the guided heads. A bias that `ports` have already is added.
        """
        if self.config.mode != "bias":
            return ports
        segments_BL = encoder.rows(batch)["segment_ids"]
        bias_BHQK = guidance.bias(self.guides(batch), segments_BL, self.heads, self.alpha(step))
        if ports.attention_bias is not None:
            bias_BHQK = bias_BHQK + ports.attention_bias
        return dataclasses.replace(ports, attention_bias=bias_BHQK)

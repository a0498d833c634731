"""The wrapper that adds attention guidance to any objective."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import guidance, patterns, segments
from ag_jax.attention.config import GuidanceConfig
from ag_jax.attention.visibility import Band, band_of
from ag_jax.models import encoder
from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.objectives.base import Outputs, Rngs, Terms, WeightedSum, Wrapper


@dataclasses.dataclass(frozen=True)
class Guided(Wrapper):
    """An objective with the attention guidance loss L_AG added: L = L_inner + alpha(step) * L_AG.

    Deshpande & Narasimhan 2020, equation 4; L_inner is the loss of the wrapped objective.

    A translation model has three kinds of attention, each of which can be guided: of the encoder, of the decoder to
    its own text, and of the decoder to the source. L_AG is the sum over all of them.

    With `mode=bias` there is no extra term: alpha(step) * P is added to the guided heads' scores instead. Either way
    the attention mass on every pattern's target is reported for each layer, as `mass/PATTERN`, for the decoder as
    `mass/decoder/PATTERN` and `mass/cross/PATTERN`.

    assignment: patterns with their number of heads in the encoder (`guidance.assign_heads`).
    heads: number of heads of a layer.
    special: token ids that patterns look for.
    alpha: the coefficient at a step.
    decoder_assignment: patterns with their number of heads in a decoder's self-attention.
    cross_assignment: patterns with their number of heads in a decoder's attention to the source.
    layer_groups: the guided layers of the encoder (`guidance.guided_layers`); None for all layers of an encoder without
        windows.
    layers: number of layers of the encoder; needed with `layer_groups`.
    columns: names of the columns of pointers in the batch, `data.pointers`.
    """

    config: GuidanceConfig
    assignment: tuple[tuple[str, int], ...]
    heads: int
    special: patterns.PatternTokens
    alpha: guidance.Schedule
    decoder_assignment: tuple[tuple[str, int], ...] = ()
    cross_assignment: tuple[tuple[str, int], ...] = ()
    layer_groups: tuple[guidance.LayerGroup, ...] | None = None
    layers: int | None = None
    columns: tuple[str, ...] = ()

    def guides(self, batch: Batch) -> guidance.Guides:
        """Return the attention targets of the encoder's guided heads, found in the batch's tokens before masking.

        With `mode=bias`, they are found in the tokens that the model reads.
        """
        rows = encoder.rows(batch)
        # The bias of `mode=bias` may depend only on what the model reads, which is not annotated.
        tokens_BL = rows["tokens" if self.config.mode == "bias" else "original"]
        has_pointers = self.columns and self.config.mode != "bias"
        pointers = dict(zip(self.columns, _columns(batch), strict=True)) if has_pointers else {}
        inputs = patterns.PatternInputs(
            tokens_BL, _chosen(batch, tokens_BL), rows["segment_ids"], self.special, pointers
        )
        find = functools.partial(patterns.find_target, inputs=inputs)
        guides = self._guides(self.assignment, find)
        if self.layer_groups is None:
            return guides
        for group in self.layer_groups:
            self._check_columns(guides, group.band)
        kinds = tuple(not group.band.is_everything for group in self.layer_groups)
        return dataclasses.replace(guides, kinds=kinds)

    def _check_columns(self, guides: guidance.Guides, band: Band) -> None:
        """Raise ValueError if most queries of a windowed layer do not see the tokens that a pattern looks for."""
        columns = [
            name
            for (name, _), target in zip(self.assignment, guides.targets, strict=True)
            if isinstance(target, patterns.Columns)
        ]
        is_ignored = self.config.absent == "ignore" or self.config.loss == "cross_entropy"
        if columns and not band.is_everything and not is_ignored:
            raise ValueError(
                f"the pattern {columns[0]} looks for tokens that are outside the window of most queries in layers with "
                "model.window: leave these queries out of the loss by guidance.absent=ignore, or guide other layers, "
                "such as guidance.layers=global"
            )

    def decoder_guides(self, batch: Batch) -> guidance.Guides:
        """Return the attention targets of guided heads in a decoder's self-attention, found in the tokens it reads.

        Tokens that it reads one position later than it predicts them, as it does in training.
        """
        tokens_BL = batch["target_tokens"]
        inputs = patterns.PatternInputs(
            tokens_BL, jnp.zeros(tokens_BL.shape, bool), batch["target_segment_ids"], self.special
        )
        find = functools.partial(patterns.find_target, inputs=inputs)
        return self._guides(self.decoder_assignment, find)

    def cross_guides(self, batch: Batch) -> guidance.Guides:
        """Return the attention targets of guided heads in a decoder's cross-attention, found in the source tokens."""
        tokens_BL, pointers = batch["tokens"], {}
        if "alignment" in batch:
            pointers["alignment"] = batch["alignment"].astype(jnp.int32)
        sources = patterns.PatternInputs(
            tokens_BL, jnp.zeros(tokens_BL.shape, bool), batch["segment_ids"], self.special, pointers
        )
        find = functools.partial(patterns.find_source_target, sources=sources, segments_BQ=batch["target_segment_ids"])
        return self._guides(self.cross_assignment, find)

    def _guides(
        self, assignment: tuple[tuple[str, int], ...], find: Callable[[str], patterns.Target]
    ) -> guidance.Guides:
        targets = tuple(find(name) for name, _ in assignment)
        counts = tuple(count for _, count in assignment)
        return guidance.Guides(targets, counts, self.config.probabilities == "after_dropout", self.config.loss)

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {loss term: divisor}: the wrapped objective's, and the number of texts for the guidance loss `ag`.

        There is no term `ag` with `mode=bias`.
        """
        weights = self.inner.normalizers(batch)
        if self.config.mode == "loss":
            weights["ag"] = segments.is_first(encoder.rows(batch)["segment_ids"]).sum().astype(jnp.float32)
        return weights

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {loss term: factor}: the wrapped objective's, and alpha(step) for the guidance loss `ag`.

        There is no term `ag` with `mode=bias`.
        """
        coefficients = self.inner.coefficients(step)
        if self.config.mode == "loss":
            coefficients["ag"] = self.alpha(step)
        return coefficients

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the inner objective's model with guidance; return its outputs, with statistics of the guided heads."""
        if self.assignment:
            ports = self._biased(dataclasses.replace(ports, guides=self.guides(batch)), batch, step)
        if self.decoder_assignment:
            ports = dataclasses.replace(ports, decoder_guides=self.decoder_guides(batch))
        if self.cross_assignment:
            ports = dataclasses.replace(ports, cross_guides=self.cross_guides(batch))
        return self.inner.forward(params, batch, rngs, step, ports)

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return {loss term: batch sum} and {metric: (sum, weight)} of the inner objective and of the guidance.

        Guidance adds the attention mass on every pattern's target to the metrics. With `mode=loss` it also adds the
        guidance loss: the loss term `ag` and the metric `ag_loss`.
        """
        losses, metrics = self.inner.terms(outputs, batch)
        # The guides are found once more, as in `forward`: they depend on the batch alone, so the compiler finds them
        # only once.
        total = jnp.float32(0)
        if self.assignment:
            segments_BL = encoder.rows(batch)["segment_ids"]
            total += self._encoder_loss(metrics, outputs.statistics, self.guides(batch), segments_BL)
        if self.decoder_assignment:
            total += self._add_masses(
                metrics,
                "decoder/",
                self.decoder_assignment,
                outputs.decoder_statistics,
                self.decoder_guides(batch),
                batch["target_segment_ids"],
                self.config,
                band=band_of(causal=True, window=None),
            )
        if self.cross_assignment:
            total += self._add_masses(
                metrics,
                "cross/",
                self.cross_assignment,
                outputs.cross_statistics,
                self.cross_guides(batch),
                batch["target_segment_ids"],
                self.config,
                key_segments_BK=batch["segment_ids"],
            )
        if self.config.mode == "loss":
            losses["ag"] = total
            metrics["ag_loss"] = (total, self.normalizers(batch)["ag"])
        return Terms(losses, metrics)

    def _encoder_loss(
        self,
        metrics: dict[str, WeightedSum],
        statistics: guidance.AttentionStatistics,
        guides: guidance.Guides,
        segments_BL: Array,
    ) -> Array:
        """Return the guidance loss of the encoder, and add each pattern's attention mass by layer to `metrics`.

        The mass on a pattern's target has the weight 0 in layers that are not guided.
        """
        if self.layer_groups is None:
            return self._add_masses(metrics, "", self.assignment, statistics, guides, segments_BL, self.config)
        total = jnp.float32(0)
        for group in self.layer_groups:
            rows, masses = jnp.asarray(group.rows), dict[str, WeightedSum]()
            group_statistics = jax.tree.map(lambda leaf, rows=rows: leaf[rows], statistics)
            total += self._add_masses(
                masses, "", self.assignment, group_statistics, guides, segments_BL, self.config, band=group.band
            )
            for name, mass in masses.items():
                before = metrics.get(name, (jnp.zeros(self.layers), jnp.zeros(self.layers)))
                layers = jnp.asarray(group.layers)
                metrics[name] = (before[0].at[layers].set(mass[0]), before[1].at[layers].set(mass[1]))
        return total

    @staticmethod
    def _add_masses(
        metrics: dict[str, WeightedSum], prefix: str, assignment: tuple[tuple[str, int], ...], *arguments, **options
    ) -> Array:
        """Return the guidance loss of self- or cross-attention, and add each pattern's attention mass to `metrics`.

        prefix: put before the names of patterns in the names of metrics.
        arguments, options: those of `guidance.guidance_loss`.
        """
        total, masses = guidance.guidance_loss(*arguments, **options)
        metrics |= {f"mass/{prefix}{name}": mass for (name, _), mass in zip(assignment, masses, strict=True)}
        return total

    def predict(self, params: Params, encoder_batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the model a second time (for an attack) on what the encoder read in the first pass; return the outputs.

        encoder_batch: `Outputs.encoder_batch` of the first pass.

        No statistics of the guided heads are collected. With `mode=bias`, the attention scores are biased as in
        `forward`.
        """
        return self.inner.predict(params, encoder_batch, rngs, step, self._biased(ports, encoder_batch, step))

    def _biased(self, ports: Ports, batch: Batch, step: Array) -> Ports:
        """Return the encoder inputs `ports`, with alpha(step) * target as attention bias if `guidance.mode=bias`.

        The target is the target attention of the guided heads. A bias that `ports` have already is added.
        """
        if self.config.mode != "bias":
            return ports
        segments_BL = encoder.rows(batch)["segment_ids"]
        bias_BHQK = guidance.bias(self.guides(batch), segments_BL, self.heads, self.alpha(step))
        if ports.attention_bias is not None:
            bias_BHQK = bias_BHQK + ports.attention_bias
        return dataclasses.replace(ports, attention_bias=bias_BHQK)


def _columns(batch: Batch) -> Array:
    """Return the positions to which tokens point, `CBL` (column of pointers, batch, length), -1 for none.

    The batch has offsets, of which the least number of their type stands for none.
    """
    offset_CBL = batch["pointers"].swapaxes(0, 1)
    position_11L = jnp.arange(offset_CBL.shape[-1], dtype=jnp.int32)[None, None, :]
    return jnp.where(offset_CBL == jnp.iinfo(offset_CBL.dtype).min, -1, position_11L + offset_CBL)


def _chosen(batch: Batch, tokens_BL: Array) -> Array:
    """Return which tokens were chosen for masking, `BL`, also if masking left them as they were."""
    if "masked_positions" not in batch:
        return jnp.zeros(tokens_BL.shape, bool)
    # A comparison instead of a scatter, which is slow on a TPU.
    positions_BM = jnp.where(batch["masked_weights"] > 0, batch["masked_positions"], -1)
    return (positions_BM[:, :, None] == jnp.arange(tokens_BL.shape[1])[None, None, :]).any(1)

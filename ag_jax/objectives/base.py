"""The interface of training objectives, and the base class of objectives that wrap another one.

Losses are sums; nothing here or in the objectives divides. A mean of microbatch means weighs a row by how few others
share its microbatch. So every loss term is a total, its weight depends on the batch alone, and a train step divides by
the weight of the whole batch: by the factors of `loss_factors`, which it computes once and gives to every microbatch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention.attack import MaskCounts
from ag_jax.attention.guidance import AttentionStatistics
from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.objectives.predictions import PredictionWeights, WordLabels

WeightedSum = tuple[Array, Array]  # (total, weight)
Rngs = dict[str, Array] | None


class Terms(NamedTuple):
    """The loss terms and the metrics of a pass, as sums over a batch.

    losses: {loss term: its sum over the batch}; `Objective.normalizers` has the divisors.
    metrics: {metric: (sum, weight)}; see `training.metrics.Sums`.
    """

    losses: dict[str, Array]
    metrics: dict[str, WeightedSum]


@flax.struct.dataclass
class Outputs:
    """What one forward pass of a model returns: predictions and recorded statistics, before any loss is computed.

    predictions: by name; `task` is the prediction that the objective's own loss is about, `nsp` the next sentence,
        `sentence` the first position of each text. Names beside `Objective.prediction_names` are never compared between
        passes.
    encoder_batch: the batch as the encoder read it, with a generator's samples in place.
    statistics: ||H||^2 and <H, P> of the encoder's guided heads, with a leading axis over the layers; None without
        `ports.guides`.
    decoder_statistics, cross_statistics: the same for the guided heads of a decoder, in its self-attention and in its
        attention to the source; None without `ports.decoder_guides` or `ports.cross_guides`.
    mask_counts: of an attack on attention, with a leading axis over the layers; None without `ports.attack`.
    metrics: (total, weight) of measurements that the predictions do not contain, such as the length of a perturbation.
    second_passes: outputs of further passes on the same `encoder_batch`, by the loss term that compares them with this
        one.
    encoded_BLD: the encoder's last hidden states, in an evaluation of masked words or replaced tokens, for the metrics
        of `plateau`; None in training, which has no such metrics.
    """

    predictions: dict[str, Any]
    encoder_batch: Batch
    statistics: AttentionStatistics | None = None
    decoder_statistics: AttentionStatistics | None = None
    cross_statistics: AttentionStatistics | None = None
    mask_counts: MaskCounts | None = None
    metrics: dict[str, WeightedSum] = flax.struct.field(default_factory=dict)
    second_passes: dict[str, "Outputs"] = flax.struct.field(default_factory=dict)
    encoded_BLD: Array | None = None


class AttackedPass(NamedTuple):
    """The batch and the extra inputs of an encoder in a clean and in an attacked pass of one training step.

    encoder_batch: the batch as the encoder reads it in both passes.
    clean: the encoder's optional inputs in the clean pass.
    attacked: the same in the attacked pass.
    """

    encoder_batch: Batch
    clean: Ports
    attacked: Ports


@dataclasses.dataclass(frozen=True)
class PrimaryMetric:
    """The loss by which a run is summarised: the loss of the task, without terms that are only added for training.

    metric: name of the loss among the metrics.
    term: name of the loss among the terms of the objective (`coefficients`).
    label: name of the loss in reports and progress lines.
    unit: for reports, such as `nats per token`.
    margin: how far the loss is below the loss of guessing without context when a run has left this plateau.
    """

    metric: str
    term: str
    label: str
    unit: str
    margin: float


class Objective:
    """A training objective: the sum over loss terms t of coefficients(step)[t] * totals[t] / normalizers(batch)[t].

    A new objective defines the two attributes and all methods above `predict`; the others are derived from them.

    primary_metric: the loss by which runs are summarised.
    prediction_names: names of the predictions in which a clean and an attacked pass are compared, with `task` first.
    """

    @property
    def primary_metric(self) -> PrimaryMetric:
        """The name, label and unit of the loss by which a training run is summarised."""
        raise NotImplementedError

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """Names of the predictions by which a clean and an attacked pass are compared; the first is always `"task"`."""
        raise NotImplementedError

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {loss term: divisor of its batch sum}, such as the number of masked words, from the batch alone."""
        raise NotImplementedError

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {loss term: its coefficient in the loss at a training step}."""
        raise NotImplementedError

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {prediction name: weights of its examples or tokens} for comparing a clean and an attacked pass.

        The names are `prediction_names`. An element is an example, a token or a position.
        """
        raise NotImplementedError

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the model and return its outputs, without computing losses.

        `rngs` is None for an evaluation, without dropout and attacks. Otherwise it has the key `dropout`, and may have
        a key `samples` for tokens that are drawn before the encoder runs.
        """
        raise NotImplementedError

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return the loss terms and metrics of a batch, computed from a pass's outputs."""
        raise NotImplementedError

    def predict(self, params: Params, encoder_batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Return the outputs of a second pass of the model, on the batch that the encoder read in the first pass.

        encoder_batch: `Outputs.encoder_batch` of the first pass.

        Not the same as `forward` where `forward` draws samples or collects statistics of guided heads: a second pass
        must read the samples of the first pass, and statistics that no term uses would still cost time in a fused
        kernel.
        """
        return self.forward(params, encoder_batch, rngs, step, ports)

    def word_labels(self, batch: Batch) -> WordLabels | None:
        """Return labels and weights of the predicted words if a wrapper may compute their loss; None (default) if not.

        A wrapper can then compute this loss together with another term of the same scores (`consistency.joint_words`).
        """
        del batch
        return None

    def loss(
        self,
        params: Params,
        batch: Batch,
        rngs: Rngs,
        step: Array,
        factors: dict[str, Array],
        ports: Ports = Ports(),
    ) -> tuple[Array, dict[str, WeightedSum]]:
        """Run the model and return (loss, metrics); the loss sums `factors[t]` * (batch sum of t) over loss terms t.

        factors: from `loss_factors`, for the whole batch of a training step, also if `batch` is a microbatch of it.
        """
        return self.loss_of(self.forward(params, batch, rngs, step, ports), batch, factors)

    def loss_of(
        self, outputs: Outputs, batch: Batch, factors: dict[str, Array]
    ) -> tuple[Array, dict[str, WeightedSum]]:
        """Return (loss, metrics), as `loss` does, computed from outputs that `forward` has returned."""
        terms = self.terms(outputs, batch)
        loss: Any = sum(factors[term] * total for term, total in terms.losses.items())
        return loss, terms.metrics

    def value_and_grad(
        self, params: Params, batch: Batch, rngs: Rngs, step: Array, factors: dict[str, Array]
    ) -> tuple[tuple[Array, dict[str, WeightedSum]], Params]:
        """Return `loss` and its gradient with regard to the parameters, as ((loss, metrics), gradient).

        A method, so that an objective can override it whose gradient is not the gradient of one forward pass. Such an
        objective must be the outermost, because objectives around it would only call its `forward` and `terms`.
        """
        return jax.value_and_grad(self.loss, has_aux=True)(params, batch, rngs, step, factors)

    def attacked_pass(self, params: Params, batch: Batch, rngs: dict[str, Array], step: Array) -> AttackedPass | None:
        """Return the encoder's inputs in a clean and in an attacked pass at a training step; None without an attack.

        Attacks override it; it is for analyses, not for training.
        """
        del params, batch, rngs, step
        return None


@dataclasses.dataclass(frozen=True)
class Wrapper(Objective):
    """Base class of objectives that extend an inner objective; by default, methods call the inner objective's methods.

    Raises ValueError around an objective that overrides `value_and_grad`.
    """

    inner: Objective

    def __post_init__(self):
        if type(self.inner).value_and_grad is not Objective.value_and_grad:
            name, wrapper = type(self.inner).__name__, type(self).__name__
            raise ValueError(
                f"{name} computes its gradient itself and must be the outermost objective: wrap it around {wrapper}"
            )

    @property
    def primary_metric(self) -> PrimaryMetric:
        """The name, label and unit of the loss by which a training run is summarised, from the inner objective."""
        return self.inner.primary_metric

    @property
    def prediction_names(self) -> tuple[str, ...]:
        """Names of the inner objective's predictions by which a clean and an attacked pass are compared."""
        return self.inner.prediction_names

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {loss term: divisor of its batch sum} of the inner objective."""
        return self.inner.normalizers(batch)

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {loss term: its coefficient in the loss at a training step} of the inner objective."""
        return self.inner.coefficients(step)

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {prediction name: weights of its examples or tokens} of the inner objective, for comparing passes."""
        return self.inner.prediction_weights(batch)

    def word_labels(self, batch: Batch) -> WordLabels | None:
        """Return the inner objective's word labels and weights; None if a wrapper may not compute their loss."""
        return self.inner.word_labels(batch)

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the inner objective's model and return its outputs."""
        return self.inner.forward(params, batch, rngs, step, ports)

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return the loss terms and metrics of the inner objective."""
        return self.inner.terms(outputs, batch)

    def predict(self, params: Params, encoder_batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the inner objective's model again on what the encoder read in the first pass; return the outputs."""
        return self.inner.predict(params, encoder_batch, rngs, step, ports)

    def attacked_pass(self, params: Params, batch: Batch, rngs: dict[str, Array], step: Array) -> AttackedPass | None:
        """Return the inner objective's inputs of a clean and an attacked encoder pass; None without an attack."""
        return self.inner.attacked_pass(params, batch, rngs, step)


def loss_factors(objective: Objective, batch: Batch, step: Array) -> dict[str, Array]:
    """Return {loss term: the factor of its batch sum in the loss}: the term's coefficient / the term's divisor."""
    coefficients = objective.coefficients(step)
    return {
        term: coefficients[term] / jnp.maximum(weight, 1.0) for term, weight in objective.normalizers(batch).items()
    }


def apply_model(
    model: nn.Module, params: Params, batch: Batch, rngs: Rngs, ports: Ports, method: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """Apply a model; return its output and {name: what its layers recorded}: guided heads' statistics, mask counts.

    The names are those of the fields of `Outputs`: `statistics`, None without `ports.guides`, `decoder_statistics` and
    `cross_statistics`, None without the guides of a decoder, and `mask_counts`, None without `ports.attack`. Dropout is
    on if `rngs` is not None.
    """
    guides = ports.guides, ports.decoder_guides, ports.cross_guides
    collections = {"statistics": any(guide is not None for guide in guides), "attack": ports.attack is not None}
    result, sown = model.apply(
        {"params": params},
        batch,
        ports=ports,
        deterministic=rngs is None,
        rngs=rngs,
        mutable=[name for name, is_recorded in collections.items() if is_recorded],
        method=method,
    )
    return result, {
        "statistics": _sown(sown, "statistics", "encoder", "attention"),
        "decoder_statistics": _sown(sown, "statistics", "decoder", "attention"),
        "cross_statistics": _sown(sown, "statistics", "decoder", "cross_attention"),
        "mask_counts": _sown(sown, "attack", "encoder", "attention"),
    }


def _sown(collections: Mapping[str, Any], name: str, stack: str, attention: str) -> Any:
    """Return what the encoder's or decoder's layers sowed into a Flax collection, stacked over layers; None if nothing.

    name: of the collection.
    stack: `encoder` or `decoder`.
    attention: `attention` for self-attention, or `cross_attention`.
    """
    leaves = dict(collections).get(name, {}).get(stack, {}).get("layers", {}).get(attention, {})
    values = jax.tree.leaves(leaves, is_leaf=lambda node: isinstance(node, tuple))
    return values[0][0] if values else None

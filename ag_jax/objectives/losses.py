"""Losses as sums with weights; nothing here divides.

A mean of microbatch means weighs a row by how few others share its microbatch. So every loss is a total, its weight
depends on the batch alone, and the train step divides once, by the weight of the whole batch.

Shape letters: B batch, M masked positions of a row, C classes.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from ag_jax.attention.guidance import AttentionStatistics
from ag_jax.models.encoder import Batch, Ports
from ag_jax.objectives.predictions import Counts, Predictions

Array = jax.Array
LossTerm = tuple[Array, Array]  # (total, weight)
Params = Any
Schedule = Callable[[Array], Array]


@flax.struct.dataclass
class Outcome:
    """What an objective says of a batch.

    totals: the sum of every loss term, to be divided by `Objective.normalizers` of the whole batch.
    metrics: (total, weight) of what is only reported.
    predictions: what the model said, to be compared with what it says under attack.
    shown: the batch as the encoder read it, with a generator's samples in place.
    statistics: of the guided heads, with a leading axis over the layers, if `ports.guides` asked for them.
    """

    totals: dict[str, Array]
    metrics: dict[str, LossTerm]
    predictions: Predictions
    shown: Batch
    statistics: AttentionStatistics | None = None


@dataclasses.dataclass(frozen=True)
class Headline:
    """The loss that a run is summed up by: that of the task, without what is only added for training.

    metric: its name among the metrics; label, unit: for people.
    margin: how far below the loss of guessing without context it falls when a run has left that plateau.
    """

    metric: str
    label: str
    unit: str
    margin: float


class Objective(Protocol):
    """What a model is trained on. Objectives that guide or attack wrap another one and are of this type too.

    The loss is the sum over terms of coefficients(step)[term] * totals[term] / normalizers(batch)[term].
    `rngs` is None for an evaluation, without dropout. Otherwise it has a key `dropout`, and may have one `samples` for what is
    drawn before the encoder.

    A train step names in `ports.factors` what it multiplies each total with, coefficient / normalizer of the whole batch.

    `predict` is the same pass without its losses, on `Outcome.shown`: what is drawn before the encoder stays the same. `says`
    names its predictions, `counts` has what each of them counts.
    """

    @property
    def headline(self) -> Headline: ...

    @property
    def says(self) -> tuple[str, ...]: ...

    def normalizers(self, batch: Batch) -> dict[str, Array]: ...

    def coefficients(self, step: Array) -> dict[str, Array]: ...

    def __call__(
        self, params: Params, batch: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Outcome: ...

    def predict(
        self, params: Params, shown: Batch, rngs: dict[str, Array] | None, step: Array, ports: Ports = Ports()
    ) -> Predictions: ...

    def counts(self, batch: Batch) -> dict[str, Counts]: ...


def loss_factors(weights: dict[str, Array], coefficients: dict[str, Array]) -> dict[str, Array]:
    """What the loss multiplies each total with: coefficient / weight."""
    return {term: coefficients[term] / jnp.maximum(weights[term], 1.0) for term in weights}


def sown(collections: Params, name: str) -> Any:
    """What the layers of an encoder sowed into a collection, once each, with a leading axis over them; None if nothing.

    `statistics` has `AttentionStatistics` of guided heads, `attack` the `Units` of an attack.
    """
    found = jax.tree.leaves(dict(collections).get(name, {}), is_leaf=lambda node: isinstance(node, tuple))
    return found[0][0] if found else None


def wanted(ports: Ports) -> list[str]:
    """The collections that layers are to sow into."""
    asked = {"statistics": ports.guides, "attack": ports.attack}
    return [name for name, port in asked.items() if port is not None]


def cross_entropy(logits: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """Sum of -w log softmax(logits)[label], and sum of w where the largest logit is the label's.

    `logits` (..., C) in float32, `labels` and `weights` (...). The first is zero if and only if every label of a non-zero
    weight has probability 1.
    """
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    return (losses * weights).sum(), (correct * weights).sum()

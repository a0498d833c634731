"""The objective of fine-tuning: the labels of a task.

Shape letters: B batch, C candidates of an example, L length, T classes.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.heads import CANDIDATES, TaskModel
from ag_jax.objectives.base import Array, LossTerm, Objective, Outputs, Params, PrimaryMetric, Rngs, apply_model
from ag_jax.objectives.losses import cross_entropy
from ag_jax.objectives.predictions import Categorical, Counts, Numbers, Prediction

TASK = PrimaryMetric("task_loss", "task loss", "of an example or a tag", margin=0.0)


def choice_loss(logits_BC: Array, labels_BC: Array, weights_B: Array) -> tuple[Array, Array]:
    """Sum of -w sum_c y_c log softmax(logits)_c, and sum of w where the best candidate is a right one.

    With two candidates it is the pairwise ranking loss log(1 + exp(s_wrong - s_right)).
    """
    losses_B = -(labels_BC * jax.nn.log_softmax(logits_BC, axis=-1)).sum(-1)
    best_B1 = jnp.argmax(logits_BC, axis=-1)[:, None]
    right_B = (jnp.take_along_axis(labels_BC, best_B1, axis=-1)[:, 0] > 0).astype(jnp.float32)
    return (losses_B * weights_B).sum(), (right_B * weights_B).sum()


def span_loss(logits_B2L: Array, starts_B: Array, ends_B: Array, weights_B: Array) -> tuple[Array, Array]:
    """Sum of -w (log P(start) + log P(end)) / 2 (Devlin et al. 2019, section 4.2), and of w where both are right."""
    labels_B2 = jnp.stack([starts_B, ends_B], axis=-1)
    both_B2 = jnp.broadcast_to(weights_B[:, None], labels_B2.shape)
    total, _ = cross_entropy(logits_B2L, labels_B2, both_B2)
    right_B = (jnp.argmax(logits_B2L, axis=-1) == labels_B2).all(-1).astype(jnp.float32)
    return total / 2, (right_B * weights_B).sum()


@dataclasses.dataclass(frozen=True)
class Supervised(Objective):
    """The loss of a task's labels, averaged over the examples of the batch, or over its tags.

    One term, `task`: cross entropy of classes, tags, candidates or both ends of a span; squared error of numbers.
    Examples with `weights` 0 fill a batch up and count for nothing; nor does a window of which the answer may not be
    chosen.
    """

    model: TaskModel

    primary_metric: ClassVar[PrimaryMetric] = TASK
    prediction_names: ClassVar[tuple[str, ...]] = ("task",)

    def weights(self, batch: Batch) -> Array:
        """The weight of each label: `B`, for tagging `BL`."""
        weights_B = batch["weights"]
        if self.model.kind == "tagging":
            return batch["label_weights"] * weights_B[:, None]
        if self.model.kind == "span":
            for name in ("starts", "ends"):
                allowed_B1 = jnp.take_along_axis(batch["span_weights"], batch[name][:, None], axis=1) > 0
                weights_B = weights_B * allowed_B1[:, 0]
        return weights_B

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Examples or tags that count."""
        return {"task": self.weights(batch).sum()}

    def coefficients(self, step: Array) -> dict[str, Array]:
        """1 for the term."""
        return {"task": jnp.ones_like(step, jnp.float32)}

    def counts(self, batch: Batch) -> dict[str, Counts]:
        """Of the task, as in its loss: each end of a span counts half."""
        weights = self.weights(batch)
        if self.model.kind == "tagging":
            return {"task": Counts(weights, batch["weights"])}
        if self.model.kind == "span":
            weights = jnp.stack([weights / 2, weights / 2], axis=-1)
        return {"task": Counts(weights)}

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Predict the labels."""
        del step
        logits, sown = apply_model(self.model, params, batch, rngs, ports)
        return Outputs({"task": self._prediction(logits)}, batch, **sown)

    def terms(self, outputs: Outputs, batch: Batch) -> tuple[dict[str, Array], dict[str, LossTerm]]:
        """Total of the term; the loss, and the accuracy but for numbers."""
        weights = self.weights(batch)
        total, correct = self._loss(outputs.predictions["task"], batch, weights)
        metrics = {"task_loss": (total, weights.sum())}
        if correct is not None:
            metrics["accuracy"] = (correct, weights.sum())
        return {"task": total}, metrics

    def _prediction(self, logits: Array) -> Prediction:
        if self.model.kind == "regression":
            return Numbers(logits)
        # The distributions of a span are over positions, `B2L`, where the model has `BL2`.
        return Categorical(logits.swapaxes(1, 2) if self.model.kind == "span" else logits)

    def _loss(self, prediction: Prediction, batch: Batch, weights: Array) -> tuple[Array, Array | None]:
        kind = self.model.kind
        if kind == "regression":
            return (jnp.square(prediction.values - batch["labels"]) * weights).sum(), None
        if kind in CANDIDATES:
            return choice_loss(prediction.logits, batch["labels"], weights)
        if kind == "span":
            return span_loss(prediction.logits, batch["starts"], batch["ends"], weights)
        return cross_entropy(prediction.logits, batch["labels"], weights)

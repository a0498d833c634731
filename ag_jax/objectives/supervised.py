"""The objective of fine-tuning on the labels of a task.

Shape letters: B batch, C candidates of an example, K labels of a task, L length.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.models.heads import TaskModel
from ag_jax.objectives.base import Objective, Outputs, PrimaryMetric, Rngs, Terms, apply_model
from ag_jax.objectives.losses import cross_entropy
from ag_jax.objectives.predictions import Categorical, Prediction, PredictionWeights, Values, YesNo

TASK = PrimaryMetric("task_loss", "task", "task loss", "of an example or a tag", margin=0.0)


def choice_loss(logits_BC: Array, labels_BC: Array, weights_B: Array) -> tuple[Array, Array]:
    """Return the weighted sum of multiple-choice losses, and the total weight of examples whose top candidate is right.

    The loss of an example is -sum_c y_c log softmax(logits)_c, with y_c the label of candidate c. The candidate with
    the largest logit is right if its label is above 0. With two candidates the loss is the pairwise ranking
    loss, log(1 + exp(s_wrong - s_right)).
    """
    losses_B = -(labels_BC * jax.nn.log_softmax(logits_BC, axis=-1)).sum(-1)
    best_B1 = jnp.argmax(logits_BC, axis=-1)[:, None]
    right_B = (jnp.take_along_axis(labels_BC, best_B1, axis=-1)[:, 0] > 0).astype(jnp.float32)
    return (losses_B * weights_B).sum(), (right_B * weights_B).sum()


def label_set_loss(logits_BK: Array, labels_BK: Array, weights_B: Array) -> tuple[Array, Array]:
    """Return the weighted sum of multi-label losses, and the total weight of examples of which all labels are right.

    The loss of an example is the mean over the labels of -log P(label), with P(k) = sigmoid(logit k) if the example has
    label k, and 1 - sigmoid(logit k) otherwise. A label is predicted if its logit is above 0.
    """
    has_label_BK = labels_BK > 0
    losses_BK = jax.nn.softplus(jnp.where(has_label_BK, -logits_BK, logits_BK))
    right_B = ((logits_BK > 0) == has_label_BK).all(-1).astype(jnp.float32)
    return (losses_BK.mean(-1) * weights_B).sum(), (right_B * weights_B).sum()


def span_loss(logits_B2L: Array, starts_B: Array, ends_B: Array, weights_B: Array) -> tuple[Array, Array]:
    """Return the weighted sum of answer-span losses, and the total weight of examples with start and end both right.

    The loss of an example is -(log P(start) + log P(end)) / 2. Devlin et al. 2019, section 4.2.
    """
    labels_B2 = jnp.stack([starts_B, ends_B], axis=-1)
    both_B2 = jnp.broadcast_to(weights_B[:, None], labels_B2.shape)
    total, _ = cross_entropy(logits_B2L, labels_B2, both_B2)
    right_B = (jnp.argmax(logits_B2L, axis=-1) == labels_B2).all(-1).astype(jnp.float32)
    return total / 2, (right_B * weights_B).sum()


def span_or_none_loss(logits_B3L: Array, starts_B: Array, ends_B: Array, weights_B: Array) -> tuple[Array, Array]:
    """Return the weighted sum of span plus answerability losses, and the total weight of examples with all three right.

    The loss of an example is that of `span_loss` plus -log P(class); start, end and class must be right.

    The classes are 0, no answer, where `starts_B` is 0, and 1, an answer, elsewhere; their logits are those of
    `models.heads.AnswerHead`. Liu et al. 2019, section 5.2. The paper does not say what the span of a question without
    an answer is: here it is the first token, as in Devlin et al. 2019.
    """
    labels_B3 = jnp.stack([starts_B, ends_B, (starts_B > 0).astype(starts_B.dtype)], axis=-1)
    total, _ = cross_entropy(logits_B3L, labels_B3, _with_class(weights_B))
    right_B = (jnp.argmax(logits_B3L, axis=-1) == labels_B3).all(-1).astype(jnp.float32)
    return total, (right_B * weights_B).sum()


def _with_class(weights_B: Array) -> Array:
    """Return the loss weights `B3` of (start, end, answerability): an example's weight times (1/2, 1/2, 1)."""
    return jnp.stack([weights_B / 2, weights_B / 2, weights_B], axis=-1)


@dataclasses.dataclass(frozen=True)
class TaskLoss:
    """The functions that define one kind of task's loss: predictions from logits, the summed loss, and weights.

    prediction: logits of the model -> prediction.
    total: (prediction, batch, weights) -> sum of weights * loss, and sum of weights where the prediction is right (None
        for numbers).
    weights: batch -> weight of each label, `B`, for tags `BL`.
    prediction_weights: (batch, weights) -> weights of the prediction's elements when a clean and an attacked pass are
        compared.
    """

    prediction: Callable[[Array], Prediction]
    total: Callable[[Any, Batch, Array], tuple[Array, Array | None]]
    weights: Callable[[Batch], Array]
    prediction_weights: Callable[[Batch, Array], PredictionWeights]


def _example_weights(batch: Batch) -> Array:
    return batch["weights"]


def _tag_weights(batch: Batch) -> Array:
    return batch["label_weights"] * batch["weights"][:, None]


def _span_weights(batch: Batch) -> Array:
    """Return each example's weight in the loss, `B`: 0 if the labelled answer begins or ends where no answer may lie.

    No answer may lie where the batch's array `span_weights`, `BL`, is 0, as in the question. Other rows keep their
    `weights`.
    """
    weights_B = batch["weights"]
    for name in ("starts", "ends"):
        allowed_B1 = jnp.take_along_axis(batch["span_weights"], batch[name][:, None], axis=1) > 0
        weights_B = weights_B * allowed_B1[:, 0]
    return weights_B


def _label_prediction_weights(batch: Batch, weights: Array) -> PredictionWeights:
    del batch
    return PredictionWeights(weights)


def _label_set_prediction_weights(batch: Batch, weights_B: Array) -> PredictionWeights:
    labels_BK = batch["label_set"]
    return PredictionWeights(jnp.broadcast_to(weights_B[:, None] / labels_BK.shape[1], labels_BK.shape))


def _tag_prediction_weights(batch: Batch, weights_BL: Array) -> PredictionWeights:
    return PredictionWeights(weights_BL, batch["weights"])


def _span_prediction_weights(batch: Batch, weights_B: Array) -> PredictionWeights:
    del batch
    return PredictionWeights(jnp.stack([weights_B / 2, weights_B / 2], axis=-1))  # each end counts half, as in the loss


def _span_or_none_prediction_weights(batch: Batch, weights_B: Array) -> PredictionWeights:
    del batch
    return PredictionWeights(_with_class(weights_B) / 2)  # shares of 1 for an example, in proportion to the loss


def _label_total(prediction: Categorical, batch: Batch, weights: Array) -> tuple[Array, Array]:
    return cross_entropy(prediction.logits, batch["labels"], weights)


def _label_set_total(prediction: YesNo, batch: Batch, weights_B: Array) -> tuple[Array, Array]:
    return label_set_loss(prediction.logits, batch["label_set"], weights_B)


def _number_total(prediction: Values, batch: Batch, weights_B: Array) -> tuple[Array, None]:
    return (jnp.square(prediction.values - batch["labels"]) * weights_B).sum(), None


def _choice_total(prediction: Categorical, batch: Batch, weights_B: Array) -> tuple[Array, Array]:
    return choice_loss(prediction.logits, batch["labels"], weights_B)


def _span_total(prediction: Categorical, batch: Batch, weights_B: Array) -> tuple[Array, Array]:
    return span_loss(prediction.logits, batch["starts"], batch["ends"], weights_B)


def _span_or_none_total(prediction: Categorical, batch: Batch, weights_B: Array) -> tuple[Array, Array]:
    return span_or_none_loss(prediction.logits, batch["starts"], batch["ends"], weights_B)


def _over_positions(logits_BLC: Array) -> Categorical:
    return Categorical(logits_BLC.swapaxes(1, 2))


CLASS_LOSS = TaskLoss(Categorical, _label_total, _example_weights, _label_prediction_weights)
LABEL_SET_LOSS = TaskLoss(YesNo, _label_set_total, _example_weights, _label_set_prediction_weights)
NUMBER_LOSS = TaskLoss(Values, _number_total, _example_weights, _label_prediction_weights)
CHOICE_LOSS = TaskLoss(Categorical, _choice_total, _example_weights, _label_prediction_weights)
TAG_LOSS = TaskLoss(Categorical, _label_total, _tag_weights, _tag_prediction_weights)
SPAN_LOSS = TaskLoss(_over_positions, _span_total, _span_weights, _span_prediction_weights)
SPAN_OR_NONE_LOSS = TaskLoss(_over_positions, _span_or_none_total, _span_weights, _span_or_none_prediction_weights)


@dataclasses.dataclass(frozen=True)
class Supervised(Objective):
    """The loss of a task's labels, averaged over the examples of the batch; for tagging, over the tags of the batch.

    One term, `task`: cross entropy of classes, tags, candidates or both ends of a span, with that of the classifier of
    answerability added if there is one; the mean binary cross entropy of the labels of a multi-label task; squared
    error of numbers.
    Examples with `weights` 0 fill a batch up and count for nothing; nor does a window of which the answer may not be
    chosen.

    model: the encoder with the head of the task's kind.
    task_loss: the loss of the same kind.
    """

    model: TaskModel
    task_loss: TaskLoss

    primary_metric: ClassVar[PrimaryMetric] = TASK
    prediction_names: ClassVar[tuple[str, ...]] = ("task",)

    def normalizers(self, batch: Batch) -> dict[str, Array]:
        """Return {"task": divisor of the loss}, the number of examples, or of tags, with a label."""
        return {"task": self.task_loss.weights(batch).sum()}

    def coefficients(self, step: Array) -> dict[str, Array]:
        """Return {"task": 1}, the factor of the loss term at every step."""
        return {"task": jnp.ones_like(step, jnp.float32)}

    def prediction_weights(self, batch: Batch) -> dict[str, PredictionWeights]:
        """Return {"task": weights}: how much each label counts in the comparison of a clean and an attacked pass.

        There is a weight for each example, each label of a multi-label task, each tag, or each start and end of an
        answer, as in the loss.
        """
        return {"task": self.task_loss.prediction_weights(batch, self.task_loss.weights(batch))}

    def forward(self, params: Params, batch: Batch, rngs: Rngs, step: Array, ports: Ports = Ports()) -> Outputs:
        """Run the model without losses: predict the labels of the batch."""
        del step
        logits, sown = apply_model(self.model, params, batch, rngs, ports)
        return Outputs({"task": self.task_loss.prediction(logits)}, batch, **sown)

    def terms(self, outputs: Outputs, batch: Batch) -> Terms:
        """Return {"task": batch sum of the loss} and {metric: (sum, weight)}: loss and, unless regression, accuracy."""
        weights = self.task_loss.weights(batch)
        total, correct = self.task_loss.total(outputs.predictions["task"], batch, weights)
        metrics = {"task_loss": (total, weights.sum())}
        if correct is not None:
            metrics["accuracy"] = (correct, weights.sum())
        return Terms({"task": total}, metrics)

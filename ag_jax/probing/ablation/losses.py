"""Loss of each row of a batch as a function of a mask over attention heads.

The losses are those of the training objectives. Each row is a batch of its own for them, so that its sum of losses and
its weight are known.

Shape letters: N layers, H heads, B rows, M masked positions of a row, D width, and 1 for the axis of a batch of one
row.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from ag_jax.models.encoder import Batch, Params, Ports
from ag_jax.models.heads import TaskModel
from ag_jax.objectives.supervised import TaskLoss
from ag_jax.objectives.word_loss import word_loss
from ag_jax.pretraining.workloads import Model

# (parameters, batch, mask over heads) -> each row's sum of weighted losses, and the sum of its weights: `B` and `B`.
RowLosses = Callable[[Params, Batch, Array], tuple[Array, Array]]


def of_masked_words(model: Model) -> RowLosses:
    """Return a function that computes the sum of each row's losses of masked words, and the number of these words.

    model: one with a head for masked words.
    """

    def losses(params: Params, batch: Batch, head_mask_NH: Array) -> tuple[Array, Array]:
        ports = Ports(head_mask_NH=head_mask_NH)
        heads: Any = model.apply({"params": params}, batch, ports=ports, deterministic=True)

        def of_row(hidden_1MD: Array, labels_1M: Array, weights_1M: Array) -> Array:
            return word_loss(hidden_1MD, heads.embedding_VD, heads.bias_V, labels_1M, weights_1M)[0]

        weights_BM = batch["masked_weights"]
        rows = (heads.hidden_BMD[:, None], batch["masked_labels"][:, None], weights_BM[:, None])
        return jax.vmap(of_row)(*rows), weights_BM.sum(1)

    return losses


def of_task(model: TaskModel, task_loss: TaskLoss) -> RowLosses:
    """Return a function that computes the weighted sum of each row's losses of labels, and the sum of the weights.

    The weights are those of `task_loss`.
    """

    def losses(params: Params, batch: Batch, head_mask_NH: Array) -> tuple[Array, Array]:
        logits = model.apply({"params": params}, batch, ports=Ports(head_mask_NH=head_mask_NH), deterministic=True)

        def of_row(logits: Array, row: Batch) -> tuple[Array, Array]:
            weights = task_loss.weights(row)
            return task_loss.total(task_loss.prediction(logits), row, weights)[0], weights.sum()

        return jax.vmap(of_row)(*jax.tree.map(lambda field: field[:, None], (logits, batch)))

    return losses

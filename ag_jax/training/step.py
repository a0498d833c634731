"""Training and evaluation steps, as pure functions of parameters, batch and random key."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ag_jax.attention.adversary import split_params
from ag_jax.objectives.base import Batch, Objective, WeightedSum, loss_factors
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.state import TrainState


def split_microbatches(batch: Batch, microbatches: int) -> Batch:
    """Split a batch into microbatches: reshape each field `(B, ...)` to `(microbatches, B / microbatches, ...)`.

    No row moves to another device.
    """

    # Part i takes every microbatches-th row from row i, so each device's rows are spread evenly over all parts.
    def split(field: Array) -> Array:
        return field.reshape(-1, microbatches, *field.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, batch)


def loss_and_gradient(
    params: Any, batch: Batch, key: Array, step: Array, *, objective: Objective, microbatches: int
) -> tuple[Array, dict[str, WeightedSum], Any]:
    """Return (loss, metrics, gradient) of the whole batch, computed in `microbatches` equal parts.

    loss = sum_terms c(step) * (sum_parts total) / weight, with the weight of the whole batch. Without dropout, value
    and gradient do not depend on the number of parts, however uneven their weights. Each part draws dropout masks of
    its own.
    """
    factors = loss_factors(objective, batch, step)

    def of_part(part: Batch, key: Array) -> tuple[Array, dict[str, WeightedSum], Any]:
        (loss, metrics), gradient = objective.value_and_grad(params, part, {"dropout": key}, step, factors)
        return loss, metrics, gradient

    if microbatches == 1:
        return of_part(batch, key)

    def accumulate(sums, part_and_key):
        return jax.tree.map(jnp.add, sums, of_part(*part_and_key)), None

    parts = (split_microbatches(batch, microbatches), jax.random.split(key, microbatches))
    shapes = jax.eval_shape(of_part, *jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(accumulate, zeros, parts)[0]


def gradient_norms(gradient: Any) -> dict[str, Array]:
    """Return {name: global norm} of the model's gradient and, separately, of an adversary's gradient."""
    model, adversary = split_params(gradient)
    norms = {"gradient_norm": optax.tree.norm(model)}
    return norms | ({"adversary_gradient_norm": optax.tree.norm(adversary)} if adversary else {})


def train_step(
    state: TrainState,
    batch: Batch,
    key: Array,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    microbatches: int = 1,
) -> tuple[TrainState, dict[str, WeightedSum]]:
    """Return the training state after one update, and {metric: (total, weight)} of the step.

    key: random key of the run; the step's key is `fold_in(key, step)`, so a resumed run draws the same numbers.
    """
    step_key = jax.random.fold_in(key, state.step)
    loss, metrics, gradient = loss_and_gradient(
        state.params, batch, step_key, state.step, objective=objective, microbatches=microbatches
    )
    updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    # With weight 1, a row of metrics has the mean over its steps; `Journal` takes the sum of `tokens` from the totals.
    one = jnp.float32(1)
    metrics |= {
        "loss": (loss, one),
        # Norms before clipping, which is part of the optimizer.
        **{name: (norm, one) for name, norm in gradient_norms(gradient).items()},
        "tokens": (_tokens(batch), one),
    }
    return TrainState(state.step + 1, params, opt_state), metrics


def _tokens(batch: Batch) -> Array:
    """Return the number of tokens in a batch without padding, in translation those of source and target."""
    sides = [batch[name] for name in ("segment_ids", "target_segment_ids") if name in batch]
    # Segment ids are 0 on padding.
    return sum((ids > 0).sum() for ids in sides).astype(jnp.float32)  # type: ignore[union-attr]


def evaluation_step(params: Any, batch: Batch, step: Array, *, objective: Objective) -> dict[str, WeightedSum]:
    """Return {metric: (total, weight)} of a batch, computed without dropout."""
    return objective.terms(objective.forward(params, batch, None, step), batch).metrics


def compile_train_step(
    make_objective: Callable[[Hyperparameters], Objective],
    make_optimizer: Callable[[Hyperparameters], optax.GradientTransformation],
    microbatch_rows: int | None,
    mesh: Mesh,
    shardings: TrainState,
) -> jax.stages.Wrapped:
    """Return `train_step` jitted for a mesh, as a function of (state, batch, key, hyperparameters).

    The old state is donated, so its memory is reused for the new state.

    microbatch_rows: rows of each part of a batch, which are computed one after the other; a smaller batch is one part,
        as is every batch with None.
    """

    def step(state: TrainState, batch: Batch, key: Array, hyperparameters: Hyperparameters):
        objective, optimizer = make_objective(hyperparameters), make_optimizer(hyperparameters)
        rows = len(jax.tree.leaves(batch)[0])
        microbatches = max(1, rows // microbatch_rows) if microbatch_rows else 1
        return train_step(state, batch, key, objective=objective, optimizer=optimizer, microbatches=microbatches)

    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        step,
        in_shardings=(shardings, sharding.batch_sharding(mesh), everywhere, everywhere),
        out_shardings=(shardings, everywhere),
        donate_argnums=0,
    )


def compile_evaluation_step(
    make_objective: Callable[[Hyperparameters], Objective], mesh: Mesh, shardings: TrainState
) -> jax.stages.Wrapped:
    """Return `evaluation_step` jitted for a mesh, as a function of (params, batch, step, hyperparameters)."""

    def step(params: Any, batch: Batch, number: Array, hyperparameters: Hyperparameters):
        return evaluation_step(params, batch, number, objective=make_objective(hyperparameters))

    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        step,
        in_shardings=(shardings.params, sharding.batch_sharding(mesh), everywhere, everywhere),
        out_shardings=everywhere,
    )

"""Compiled training and evaluation steps, shared by all runs that differ only in seed and `Hyperparameters`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax
from jax.sharding import Mesh

from ag_jax.objectives.base import Objective
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.state import TrainState, abstract_state, create_state, state_shardings
from ag_jax.training.step import compile_evaluation_step, compile_train_step


@dataclasses.dataclass(frozen=True)
class Program:
    """Training and evaluation steps of an objective and its optimizer, jitted for the devices of a mesh.

    Each function is compiled when it is first called with arguments of new shapes.

    make_objective: hyperparameters -> the loss, with its model.
    make_optimizer: hyperparameters -> the optax transformation of the parameters' gradient; the structure of its state
        is the same for all.
    mesh: the devices and their axes.
    init: key -> randomly initialised parameters, boxed with the names of their axes.
    shardings: a `TrainState` of shardings, one for each array of the state.
    abstract: a `TrainState` of shapes, types and shardings, into which a checkpoint is restored.
    create: key -> the state at step 0, with randomly initialised parameters.
    train_step: (state, batch, key, hyperparameters) -> (state after one update, metrics as totals and weights).
    evaluation_step: (params, batch, step, hyperparameters) -> metrics as totals and weights, without dropout.
    """

    make_objective: Callable[[Hyperparameters], Objective]
    make_optimizer: Callable[[Hyperparameters], optax.GradientTransformation]
    mesh: Mesh
    init: Callable[[jax.Array], Any]
    shardings: TrainState
    abstract: TrainState
    create: Callable[[jax.Array], TrainState]
    train_step: jax.stages.Wrapped
    evaluation_step: jax.stages.Wrapped


def make_program(
    make_objective: Callable[[Hyperparameters], Objective],
    make_optimizer: Callable[[Hyperparameters], optax.GradientTransformation],
    init: Callable[[jax.Array], Any],
    mesh: Mesh,
    microbatch_rows: int | None = None,
) -> Program:
    """Return the jitted training and evaluation steps of an objective and an optimizer, without compiling them yet.

    For the other arguments see `Program`.

    microbatch_rows: rows of each part of a batch, which are computed one after the other; None computes a batch at
        once.
    """
    # Shapes do not depend on the key, nor on the hyperparameters.
    abstract_params, optimizer = jax.eval_shape(init, jax.random.key(0)), make_optimizer(Hyperparameters())
    shardings = state_shardings(abstract_params, optimizer, mesh)

    def create(key: jax.Array) -> TrainState:
        return create_state(nn.unbox(init(key)), optimizer)

    return Program(
        make_objective=make_objective,
        make_optimizer=make_optimizer,
        mesh=mesh,
        init=init,
        shardings=shardings,
        abstract=abstract_state(abstract_params, optimizer, shardings),
        # With output shardings every array is made on the device that keeps it.
        create=jax.jit(create, out_shardings=shardings),
        train_step=compile_train_step(make_objective, make_optimizer, microbatch_rows, mesh, shardings),
        evaluation_step=compile_evaluation_step(make_objective, mesh, shardings),
    )

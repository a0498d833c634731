"""Train state: step, parameters and optimizer state, with their shapes and shardings."""

import dataclasses
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ag_jax.objectives.base import Params
from ag_jax.training import sharding


@flax.struct.dataclass
class TrainState:
    """Everything that a train step changes: step, parameters and optimizer state.

    Random keys are derived from the step, and are not stored.

    step: number of updates done, int32.
    params: nested dict of parameters, without axis names.
    opt_state: state of the optax optimizer.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState


def state_shardings(abstract_params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Return a `TrainState` that holds the sharding of each array of the state, before the state exists.

    The optimizer's moments are sharded like their parameters; everything else is replicated.

    abstract_params: shapes and types of the parameters, boxed with the names of their axes.
    """
    params = sharding.parameter_shardings(abstract_params, mesh)
    everywhere: Any = NamedSharding(mesh, PartitionSpec())
    abstract_opt_state = jax.eval_shape(optimizer.init, nn.unbox(abstract_params))

    # `optax.partition` replaces the parameters of the other optimizer by masked nodes, which have no sharding.
    def is_of_another_group(leaf: Any) -> bool:
        return isinstance(leaf, optax.MaskedNode)

    opt_state = optax.tree_utils.tree_map_params(
        optimizer,
        lambda own, of_parameter: own if is_of_another_group(own) else of_parameter,
        abstract_opt_state,
        params,
        transform_non_params=lambda _: everywhere,
        is_leaf=is_of_another_group,
    )
    return TrainState(everywhere, params, opt_state)


def create_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state at step 0, with these parameters and a new optimizer state."""
    return TrainState(jnp.int32(0), params, optimizer.init(params))


def with_params(state: TrainState, new_params: Params, shardings: TrainState) -> TrainState:
    """Return `state` with some or all of its parameters replaced by those in `new_params`.

    new_params: nested dict with some or all of the parameters; every host has its complete arrays.
    shardings: shardings of `state`.
    """

    def replaced(old: Any, new: Any, places: Any) -> Any:
        if isinstance(old, dict):
            return {name: replaced(old[name], new[name], places[name]) if name in new else old[name] for name in old}
        value = np.asarray(new, old.dtype)
        return jax.make_array_from_callback(value.shape, places, lambda index: value[index])

    return dataclasses.replace(state, params=replaced(state.params, new_params, shardings.params))


def abstract_state(
    abstract_params: Params, optimizer: optax.GradientTransformation, shardings: TrainState
) -> TrainState:
    """Return a `TrainState` of shapes, types and shardings instead of arrays, to restore a checkpoint or compile.

    abstract_params: shapes and types of the parameters, boxed with the names of their axes.
    shardings: what `state_shardings` returns for them.
    """
    shapes = jax.eval_shape(lambda params: create_state(params, optimizer), nn.unbox(abstract_params))
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, shardings
    )

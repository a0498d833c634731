"""Fresh states: the same numbers on any mesh, each piece where it belongs."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ag_jax.training.config import MeshConfig, OptimizerConfig
from ag_jax.training.optimizer import make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import make_mesh
from tests import tiny
from tests.cases import some

MODEL, BATCH = tiny.model(heads=4, width=16), tiny.batch()


def init(key):
    return MODEL.init(key, BATCH, deterministic=True)["params"]


@pytest.fixture(
    scope="module",
    params=some([{}, {"kind": "muon"}, {"kind": "lion"}, {"clip_updates": True}], {"kind": "muon"}),
    ids=str,
)
def both(request, eight_devices):
    """(program, fresh state, updates, optimizer's state after them), on one device and on eight.

    Muon's state is in two groups, of which each has masks in the place of the parameters of the other.
    """
    optimizer = make_optimizer(OptimizerConfig(**request.param), 10)

    @jax.jit
    def update(state, params):
        return optimizer.update(jax.tree.map(lambda leaf: jax.numpy.sin(31.0 * leaf) + 0.1, params), state, params)

    def made(mesh):
        program = make_program(lambda _: None, lambda _: optimizer, init, mesh)
        state = program.create(jax.random.key(0))
        return program, state, *update(state.opt_state, state.params)

    spread = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), eight_devices)
    return made(make_mesh(MeshConfig(), eight_devices[:1])), made(spread)


def moments(state):
    """[(path of a parameter, one of its moments)], and the other leaves of the optimizer's state"""
    params, found, others = dict(jax.tree_util.tree_leaves_with_path(state.params)), [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state):
        of = next((own for own in params if path[-len(own) :] == own), None)
        others.append(leaf) if of is None else found.append((of, leaf))
    return found, others


def test_the_same_parameters_on_one_device_and_on_eight(both):
    (_, alone, *_), (_, spread, *_) = both
    jax.tree.map(np.testing.assert_array_equal, alone, spread)
    assert int(alone.step) == 0 and not any(np.asarray(leaf).any() for _, leaf in moments(alone)[0])
    nodes = [spread.params]
    while nodes:
        node = nodes.pop()
        assert type(node) is dict or isinstance(node, jax.Array)
        nodes += node.values() if type(node) is dict else []


def test_arrays_lie_where_the_shardings_say(both):
    _, (program, state, _, after) = both
    assert jax.tree.structure(state) == jax.tree.structure(program.shardings)
    assert jax.tree.structure(after) == jax.tree.structure(program.shardings.opt_state)
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(program.shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    kernel = state.params["encoder"]["layers"]["feedforward_in"]["kernel"]
    assert kernel.shape == (2, 16, 22)
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 8, 11)}
    assert state.step.sharding.spec == PartitionSpec()


def test_moments_lie_where_their_parameters_lie(both):
    _, (_, state, *_) = both
    params, (found, others) = dict(jax.tree_util.tree_leaves_with_path(state.params)), moments(state)
    assert {of for of, _ in found} == params.keys(), "all parameters have moments"
    for of, moment in found:
        assert moment.shape == params[of].shape
        assert moment.sharding.is_equivalent_to(params[of].sharding, moment.ndim)
    assert all(leaf.sharding.spec == PartitionSpec() for leaf in others)


def test_updates_are_the_same_on_one_device_and_on_eight(both):
    (_, _, alone, _), (_, _, spread, _) = both
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=1e-3)

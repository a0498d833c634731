"""Fresh states: the same numbers on any mesh, each piece where it belongs."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import MeshConfig, make_mesh
from tests import tiny
from tests.cases import some

MODEL, BATCH = tiny.model(heads=4, width=16), tiny.batch()
OPTIMIZER = make_optimizer(OptimizerConfig(), 10)


def init(key):
    return MODEL.init(key, BATCH, deterministic=True)["params"]


def make(mesh):
    program = make_program(lambda _: None, lambda _: OPTIMIZER, init, mesh)
    return program.create(jax.random.key(0)), program.shardings


@pytest.fixture(scope="module")
def spread(eight_devices):
    return make(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), eight_devices))


def moments(state):
    """The two Adam moments of the optimizer state."""
    (adam,) = [
        part
        for part in jax.tree.leaves(state.opt_state, is_leaf=lambda node: hasattr(node, "mu"))
        if hasattr(part, "mu")
    ]
    return adam.mu, adam.nu


def test_same_parameters_on_one_device_and_on_eight(spread, eight_devices):
    alone, _ = make(make_mesh(MeshConfig(), eight_devices[:1]))
    for one, other in zip(jax.tree.leaves(alone.params), jax.tree.leaves(spread[0].params), strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(alone.step) == int(spread[0].step) == 0
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(moments(alone)))


def test_parameters_are_a_plain_dict_of_arrays(spread):
    state, _ = spread
    nodes = [state.params]
    while nodes:
        node = nodes.pop()
        assert type(node) is dict or isinstance(node, jax.Array)
        nodes += node.values() if type(node) is dict else []


def test_arrays_lie_where_the_shardings_say(spread):
    state, shardings = spread
    assert jax.tree.structure(state) == jax.tree.structure(shardings)
    for leaf, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    kernel = state.params["encoder"]["layers"]["feedforward_in"]["kernel"]
    assert kernel.shape == (2, 16, 22)
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 8, 11)}


def test_moments_lie_where_their_parameters_lie(spread):
    state, shardings = spread
    for one_of_both in moments(state):
        for moment, param in zip(jax.tree.leaves(one_of_both), jax.tree.leaves(state.params), strict=True):
            assert moment.shape == param.shape
            assert moment.sharding.is_equivalent_to(param.sharding, param.ndim)
    counts = [leaf for leaf in jax.tree.leaves(shardings.opt_state) if leaf.spec == PartitionSpec()]
    assert len(counts) == 2  # of Adam and of the schedule
    assert shardings.step.spec == PartitionSpec()


@pytest.mark.parametrize(
    "settings",
    some([{"kind": "muon"}, {"kind": "lion"}, {"clip_updates": True}], {"kind": "muon"}),
    ids=str,
)
def test_updates_of_every_optimizer_are_the_same_on_one_device_and_on_eight(eight_devices, settings):
    """With states that lie where their parameters lie, also those of parameters in two groups."""
    optimizer = make_optimizer(OptimizerConfig(**settings), 10)

    def updated(mesh):
        program = make_program(lambda _: None, lambda _: optimizer, init, mesh)
        state = program.create(jax.random.key(0))
        gradient = jax.tree.map(lambda leaf: jax.numpy.sin(31.0 * leaf) + 0.1, state.params)
        updates, opt_state = jax.jit(optimizer.update)(gradient, state.opt_state, state.params)
        return program, updates, opt_state

    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), eight_devices)
    program, updates, opt_state = updated(mesh)
    assert jax.tree.structure(opt_state) == jax.tree.structure(program.shardings.opt_state)
    split = {leaf.sharding.spec for leaf in jax.tree.leaves(program.create(jax.random.key(0)).opt_state)}
    assert PartitionSpec(None, "fsdp", "tensor", None) in split  # the momentum of the queries
    _, alone, _ = updated(make_mesh(MeshConfig(), eight_devices[:1]))
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(updates), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=1e-3)

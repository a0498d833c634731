"""Which device holds what."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ag_jax.settings import schema
from ag_jax.training import sharding
from ag_jax.training.config import MeshConfig
from ag_jax.training.sharding import make_mesh
from tests import tiny


def specs(mesh, **settings):
    """The axes of the mesh over which a model's parameters are split, by their names."""
    model, batch = tiny.model(heads=4, width=16, **settings), tiny.batch()
    boxed = jax.eval_shape(lambda: model.init(jax.random.key(0), batch, deterministic=True))["params"]
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(sharding.parameter_shardings(boxed, mesh))
    }


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (8, 1, 1)),
        ({"fsdp": 4}, (2, 4, 1)),
        ({"tensor": 8}, (1, 1, 8)),
        ({"data": 2, "fsdp": 2, "tensor": 2}, (2, 2, 2)),
    ],
)
def test_data_takes_the_devices_that_are_left(eight_devices, settings, shape):
    mesh = make_mesh(MeshConfig(**settings), eight_devices)
    assert mesh.axis_names == ("data", "fsdp", "tensor") and mesh.devices.shape == shape
    assert set(mesh.devices.flat) == set(eight_devices)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"data": 3}, "data=3 x fsdp=1 x tensor=1 needs 3 .* 8"),
        ({"fsdp": 3}, "data=2 x fsdp=3 x tensor=1 needs 6 .* 8"),
        ({"tensor": 16}, "data=1 x fsdp=1 x tensor=16 needs 16 .* 8"),
        ({"data": 0}, "mesh.data"),
    ],
)
def test_a_mesh_that_does_not_fit(eight_devices, settings, named):
    with pytest.raises(ValueError, match=named):
        schema.check(MeshConfig(**settings), "mesh")
        make_mesh(MeshConfig(**settings), eight_devices)


def test_parameters_are_split_by_the_names_of_their_axes(eight_devices):
    found = specs(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), eight_devices))
    P = PartitionSpec
    layers = "encoder/layers/"
    expected = {
        layers + "attention/query/kernel": P(None, "fsdp", "tensor", None),
        layers + "attention/query/bias": P(None, "tensor", None),
        layers + "attention/output/kernel": P(None, "tensor", None, "fsdp"),
        layers + "attention/output/bias": P(None, "fsdp"),
        layers + "feedforward_in/kernel": P(None, "fsdp", "tensor"),
        layers + "feedforward_in/bias": P(None, "tensor"),
        layers + "feedforward_out/kernel": P(None, "tensor", "fsdp"),
        layers + "feedforward_norm/scale": P(None, "fsdp"),
        # 37 words are not even; the width is.
        "encoder/embeddings/word/embedding": P(None, "fsdp"),
        "encoder/embeddings/position/embedding": P(None, "fsdp"),
        "word_head/bias": P(None),
        "word_head/dense/kernel": P("fsdp", None),
        "next_head/classifier/kernel": P("fsdp", None),
    }
    assert {name: found[name] for name in expected} == expected
    even = specs(make_mesh(MeshConfig(tensor=2), eight_devices), vocabulary_size=38)
    assert even["encoder/embeddings/word/embedding"] == P("tensor", "fsdp")
    assert even["word_head/bias"] == P("tensor")


def test_an_axis_that_does_not_divide_is_not_split(eight_devices):
    found = specs(make_mesh(MeshConfig(tensor=8), eight_devices))  # 4 heads, 22 features
    assert found["encoder/layers/attention/query/kernel"] == PartitionSpec(None, "fsdp", None, None)
    assert found["encoder/layers/feedforward_in/kernel"] == PartitionSpec(None, "fsdp", None)


def test_every_matrix_of_every_layer_is_split_over_fsdp(eight_devices):
    """Only tables and heads that the rules exempt are whole on every device."""
    found = specs(make_mesh(MeshConfig(fsdp=8), eight_devices))
    biases = [f"encoder/layers/attention/{name}/bias" for name in ("query", "key", "value")]
    of_heads = ["word_head/bias", "word_head/dense/bias", "next_head/pooler/bias", "next_head/classifier/bias"]
    whole = {*biases, *of_heads, "encoder/layers/feedforward_in/bias"}
    assert {name for name, spec in found.items() if "fsdp" not in spec} == whole


def test_rows_go_over_data_and_fsdp(eight_devices):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), eight_devices)
    batch = tiny.batch((11, 7, 5, 3))
    placed = sharding.place_batch(batch, mesh)
    for name, field in batch.items():
        np.testing.assert_array_equal(placed[name], field)
        assert placed[name].sharding.spec == PartitionSpec(("data", "fsdp"))
        assert {shard.data.shape for shard in placed[name].addressable_shards} == {(1, *field.shape[1:])}
    np.testing.assert_array_equal(sharding.process_rows(mesh, 16), np.arange(16))


def test_hosts_feed_their_own_rows_in_the_order_of_the_batch(monkeypatch):
    """Devices of one of two hosts, which hold rows 12-15 and 4-7, of which one is there twice (for `tensor`)."""
    held = {"a": (slice(12, 16),), "b": (slice(4, 8),), "c": (slice(12, 16),)}

    class Placed:
        def addressable_devices_indices_map(self, shape):
            assert shape == (16,)
            return held

    monkeypatch.setattr(sharding, "batch_sharding", lambda mesh: Placed())
    np.testing.assert_array_equal(sharding.process_rows(None, 16), [4, 5, 6, 7, 12, 13, 14, 15])


class TpuDevice:
    """A device of a TPU slice, as far as a mesh asks for it."""

    platform, device_kind = "tpu", "TPU v5 lite"

    def __init__(self, slice_index, number):
        self.slice_index, self.id, self.process_index = slice_index, 4 * slice_index + number, slice_index
        self.coords, self.core_on_chip = [number % 2, number // 2, 0], 0


def test_data_crosses_slices():
    """Each slice has consecutive places of `data`, however the devices are ordered, and all of `fsdp` and `tensor`."""
    devices = [TpuDevice(slice_index, number) for number in range(4) for slice_index in range(3)]
    mesh = make_mesh(MeshConfig(fsdp=2), devices)
    assert dict(mesh.shape) == {"data": 6, "fsdp": 2, "tensor": 1}
    found = [[device.slice_index for device in row.ravel()] for row in mesh.devices]
    assert found == [[0, 0], [0, 0], [1, 1], [1, 1], [2, 2], [2, 2]]
    assert len({device.id for device in mesh.devices.ravel()}) == 12
    with pytest.raises(ValueError, match="data=2 x fsdp=2 x tensor=3 .* 3 slices"):
        make_mesh(MeshConfig(fsdp=2, tensor=3), devices)

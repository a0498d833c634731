"""Checkpoints: exact, checked, and never mistaken for another model's."""

import gc
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from ag_jax.training.checkpoint import Checkpoints, CorruptCheckpointError, fingerprint
from ag_jax.training.state import TrainState


def state(step: int, width: int = 3) -> TrainState:
    params = {"dense": {"kernel": jnp.arange(5.0 * width).reshape(5, width) + step, "bias": jnp.full(width, 0.1)}}
    return TrainState(jnp.int32(step), params, {"count": jnp.int32(step), "mu": jax.tree.map(jnp.square, params)})


def like(value: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), value)


def saved(directory, *steps: int, **options) -> Checkpoints:
    checkpoints = Checkpoints(epath.Path(directory), **({"keep_last": 10} | options))
    for step in steps:
        checkpoints.save(state(step), {"tokens": 10 * step, "sums": [0.1, 1 / 3]})
    checkpoints.wait()
    return checkpoints


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_state_and_progress_come_back_exactly(tmp_path):
    saved(tmp_path / "c", 3, 7).close()
    restored = Checkpoints(epath.Path(tmp_path / "c")).restore_latest(like(state(0)))
    assert_same(restored.state, state(7))
    assert restored.progress == {"tokens": 70, "sums": [0.1, 1 / 3]}


def test_nothing_saved_is_none(tmp_path):
    assert Checkpoints(epath.Path(tmp_path / "c")).restore_latest(like(state(0))) is None


def test_parameters_alone(tmp_path):
    saved(tmp_path / "c", 3).close()
    params = Checkpoints(epath.Path(tmp_path / "c"), read_only=True).restore_params(3)
    assert_same(params, state(3).params)


def test_which_checkpoints_stay(tmp_path):
    checkpoints = saved(tmp_path / "c", *range(0, 13), keep_last=2, keep_every=5, milestones=(1,))
    assert checkpoints.steps() == [0, 1, 5, 10, 11, 12]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_fingerprint_sees_every_bit_of_every_element(dtype):
    value = np.asarray(jnp.arange(1, 7).astype(dtype).reshape(2, 3))
    original = fingerprint([jnp.asarray(value)])
    for byte in range(value.nbytes):
        for bit in range(8):
            raw = bytearray(value.tobytes())
            raw[byte] ^= 1 << bit
            changed = np.frombuffer(bytes(raw), value.dtype).reshape(value.shape)
            assert fingerprint([jnp.asarray(changed)]) != original
    assert fingerprint([jnp.asarray(value.T)]) != original


def test_fingerprint_does_not_depend_on_the_devices():
    value = jnp.arange(48.0).reshape(8, 6)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = jax.device_put(value, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", "b")))
    assert fingerprint([value]) == fingerprint([split])


# Orbax abandons coroutines when a read fails; their warnings surface whenever they are collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collect_what_orbax_abandons():
    """Here, where it is expected, and not in the middle of another module's test."""
    yield
    gc.collect()


def files_of(step_directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in step_directory.rglob("*") if path.is_file() and path.stat().st_size)


def damages():
    yield "truncated", lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    yield "emptied", lambda path: path.write_bytes(b"")
    yield "deleted", lambda path: path.unlink()
    yield "flipped", lambda path: path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


@pytest.mark.parametrize(("name", "damage"), list(damages()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used(tmp_path, capsys, name, damage):
    saved(tmp_path / "c", 3, 7).close()
    for path in files_of(tmp_path / "c" / "7" / "state"):
        damage(path)
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    restored = checkpoints.restore_latest(like(state(0)))
    assert_same(restored.state, state(3))
    warning = capsys.readouterr().err
    assert "checkpoint of step 7 is damaged" in warning and "corrupt_checkpoints" in warning
    assert checkpoints.steps() == [3]
    checkpoints.save(state(7), {"tokens": 1})
    checkpoints.wait()
    assert_same(checkpoints.restore_latest(like(state(0))).state, state(7))


def test_every_single_damaged_file_is_noticed_or_harmless(tmp_path):
    """Whatever file is damaged, what comes back is either refused or bit for bit what was saved."""
    saved(tmp_path / "c", 7).close()
    refused = 0
    for path in files_of(tmp_path / "c" / "7"):
        original = path.read_bytes()
        middle = len(original) // 2
        path.write_bytes(original[:middle] + bytes([original[middle] ^ 0x10]) + original[middle + 1 :])
        try:
            restored = Checkpoints(epath.Path(tmp_path / "c"), read_only=True).restore(7, like(state(0)))
            assert_same(restored.state, state(7))
        except CorruptCheckpointError:
            refused += 1
        path.write_bytes(original)
    assert refused


def test_a_changed_array_is_refused_even_if_it_can_be_read(tmp_path, monkeypatch):
    saved(tmp_path / "c", 7).close()
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    monkeypatch.setattr("ag_jax.training.checkpoint.fingerprint", lambda tree: [0])
    with pytest.raises(CorruptCheckpointError, match="differ from those that were saved"):
        checkpoints.restore(7, like(state(0)))


def test_another_model_is_refused_with_both_shapes_and_left_alone(tmp_path):
    saved(tmp_path / "c", 7).close()
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    with pytest.raises(ValueError, match=r"params/dense/kernel: checkpoint \(5, 3\), config \(5, 4\)"):
        checkpoints.restore_latest(like(state(0, width=4)))
    assert checkpoints.steps() == [7]


def test_a_checkpoint_moves_to_another_mesh(tmp_path):
    axes = (jax.sharding.AxisType.Auto,) * 2
    value = {"dense": {"kernel": jnp.arange(64.0).reshape(8, 8)}}

    def on_mesh(shape):
        mesh = jax.make_mesh(shape, ("a", "b"), axis_types=axes)
        place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", "b"))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return TrainState(jax.device_put(jnp.int32(1), everywhere), jax.device_put(value, place), ())

    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    checkpoints.save(on_mesh((8, 1)), {})
    checkpoints.wait()
    restored = checkpoints.restore_latest(like(on_mesh((2, 4)))).state
    assert_same(restored.params, value)
    assert restored.params["dense"]["kernel"].sharding.mesh.shape == {"a": 2, "b": 4}

"""Checkpoints: exact, checked, and never mistaken for another model's."""

import contextlib
import errno
import functools
import pathlib
import random
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from etils import epath

from ag_jax.training import damage
from ag_jax.training.checkpoint import Checkpoints, CorruptCheckpointError
from ag_jax.training.fingerprint import changed, fingerprint
from ag_jax.training.state import TrainState
from tests.distributed.fake_hosts import FakeHosts


def state(step: int, width: int = 3) -> TrainState:
    params = {"dense": {"kernel": jnp.arange(5.0 * width).reshape(5, width) + step, "bias": jnp.full(width, 0.1)}}
    moments = jax.tree.map(jnp.square, params)
    moments["dense"]["bias"] = optax.MaskedNode()  # as in the groups of Muon, each of which has some of the parameters
    return TrainState(jnp.int32(step), params, {"count": jnp.int32(step), "mu": moments})


def like(value: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), value)


def saved(directory, *steps: int, of=state, **options) -> Checkpoints:
    checkpoints = Checkpoints(epath.Path(directory), **({"keep_last": 10} | options))
    for step in steps:
        checkpoints.save(of(step), {"tokens": 10 * step, "sums": [0.1, 1 / 3]})
    checkpoints.wait()
    return checkpoints


def opened(directory) -> Checkpoints:
    return Checkpoints(epath.Path(directory), read_only=True)


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_state_and_progress_come_back_exactly(tmp_path):
    assert saved(tmp_path / "c").restore_latest(like(state(0))) is None
    saved(tmp_path / "c", 3, 7).close()
    restored = Checkpoints(epath.Path(tmp_path / "c")).restore_latest(like(state(0)))
    assert_same(restored.state, state(7))
    assert restored.progress == {"tokens": 70, "sums": [0.1, 1 / 3]}
    assert_same(opened(tmp_path / "c").restore_params(3), state(3).params)


@pytest.mark.parametrize(
    ("steps", "options", "kept"),
    [
        (range(13), {"keep_last": 2, "keep_every": 5, "milestones": (1,)}, [0, 1, 5, 10, 11, 12]),
        # Interruptions push out no other checkpoint.
        ((10, 20, 27, 30, 33, 40), {"keep_last": 3, "checkpoint_every": 10}, [20, 30, 40]),
        ((10, 20, 27, 30, 33), {"keep_last": 3, "checkpoint_every": 10}, [20, 30, 33]),
        ((3, 10, 13, 17), {"keep_last": 3, "checkpoint_every": 10}, [10, 13, 17]),
    ],
)
def test_which_checkpoints_stay(tmp_path, steps, options, kept):
    assert saved(tmp_path / "c", *steps, **options).steps() == kept


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_fingerprint_sees_every_bit_of_every_element(dtype):
    value = np.asarray(jnp.arange(1, 7).astype(dtype).reshape(2, 3))
    original = fingerprint([jnp.asarray(value)])
    for byte in range(value.nbytes):
        for bit in range(8):
            raw = bytearray(value.tobytes())
            raw[byte] ^= 1 << bit
            flipped = np.frombuffer(bytes(raw), value.dtype).reshape(value.shape)
            assert fingerprint([jnp.asarray(flipped)]) != original
    assert fingerprint([jnp.asarray(value.T)]) != original
    assert fingerprint([jnp.asarray(value.reshape(6))]) != original


def test_fingerprint_sees_changes_that_a_weighted_sum_does_not():
    """Two signs: each changes the sum of bits_i (2 i + 1) modulo 2^32 by 2^31."""
    value = np.arange(1.0, 7.0, dtype=np.float32)
    other = value * np.float32([1, -1, 1, 1, -1, 1])
    assert changed({"a": jnp.asarray(value)}, fingerprint({"a": value})) == []
    assert changed({"a": jnp.asarray(other)}, fingerprint({"a": value})) == ["a"]
    assert changed({"a": jnp.asarray(value)}, fingerprint({"b": value})) == ["a", "b"]


def files_of(step_directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in step_directory.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.mark.parametrize(
    "ruin",
    [lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), lambda path: path.unlink()],
)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used(tmp_path, capsys, ruin):
    saved(tmp_path / "c", 3, 7).close()
    for path in files_of(tmp_path / "c" / "7" / "state"):
        ruin(path)
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    restored = checkpoints.restore_latest(like(state(0)))
    assert_same(restored.state, state(3))
    warning = capsys.readouterr().err
    assert "step 7 is damaged" in warning and "corrupt_checkpoints" in warning
    assert checkpoints.steps() == [3] and (tmp_path / "corrupt_checkpoints" / "7").exists()
    checkpoints.save(state(7), {"tokens": 1})
    checkpoints.wait()
    assert_same(checkpoints.restore_latest(like(state(0))).state, state(7))


def large(step: int) -> TrainState:
    """A state with arrays that are large enough for files of their own, and compress well, a little and not at all."""
    drawn = np.random.default_rng(step).standard_normal((31, 17))
    return state(step).replace(
        params={"flat": jnp.full((40, 30), 0.5), "ramp": jnp.arange(900.0), "drawn": jnp.asarray(drawn, jnp.bfloat16)}
    )


def test_no_flipped_bit_gives_other_values_in_silence(tmp_path):
    """Whichever bit of whichever file is flipped, what comes back is an error or bit for bit what was saved."""
    saved(tmp_path / "c", 7, of=large).close()
    checkpoints, files = opened(tmp_path / "c"), files_of(tmp_path / "c" / "7")
    (data,) = [file for file in files if file.stat().st_size > 2000 and file.parent.name == "d"]
    chosen, errors = random.Random(0), 0
    for number in range(40):
        path = data if number % 2 else chosen.choice(files)
        original = path.read_bytes()
        flipped = bytearray(original)
        flipped[chosen.randrange(len(original))] ^= 1 << chosen.randrange(8)
        path.write_bytes(flipped)
        try:
            assert_same(checkpoints.restore_params(7), large(7).params)
        except CorruptCheckpointError:
            errors += 1
        if number < 10:
            with contextlib.suppress(CorruptCheckpointError):
                restored = checkpoints.restore(7, like(large(0)))
                assert_same(restored.state, large(7))
                assert restored.progress == {"tokens": 70, "sums": [0.1, 1 / 3]}
        path.write_bytes(original)
    assert errors > 10
    assert_same(checkpoints.restore_params(7), large(7).params)


def test_progress_that_was_changed_is_damage(tmp_path):
    saved(tmp_path / "c", 7).close()
    path, checkpoints = tmp_path / "c" / "7" / "progress" / "metadata", opened(tmp_path / "c")
    path.write_text(path.read_text().replace('"tokens": 70', '"tokens": 71'))
    for read in (
        checkpoints.restore_params,
        checkpoints.restore_progress,
        lambda at: checkpoints.restore(at, state(0)),
    ):
        with pytest.raises(CorruptCheckpointError, match="progress"):
            read(7)
    path.write_text('{"tokens": 70}')
    with pytest.raises(CorruptCheckpointError, match="fingerprint"):
        checkpoints.restore_params(7)


def test_if_all_are_damaged_nothing_is_changed(tmp_path):
    saved(tmp_path / "c", 3, 7).close()
    for path in (*files_of(tmp_path / "c" / "3" / "state"), *files_of(tmp_path / "c" / "7" / "state")):
        path.write_bytes(b"")
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    with pytest.raises(ValueError, match=rf"{tmp_path} .*\n.*of step 7 .*\n.*of step 3 "):
        checkpoints.restore_latest(like(state(0)))
    assert checkpoints.steps() == [3, 7] and not (tmp_path / "corrupt_checkpoints").exists()


OBSTACLES = {
    "memory": MemoryError(),
    "open files": OSError(errno.EMFILE, "Too many open files"),
    "network": ConnectionResetError("Connection reset by peer"),
    "device": jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes"),
    "store": ValueError("UNAVAILABLE: Error reading gs://bucket: the server does not answer"),
    "system": ValueError("UNKNOWN: Failed to open [os_error_code='23', source_locations='...']"),
}


@pytest.mark.parametrize("cause", [*OBSTACLES.values(), ValueError("[os_error_code='2'] no file"), FileNotFoundError()])
def test_what_prevents_reading_is_no_damage(tmp_path, monkeypatch, cause):
    """But a file that is missing is."""
    saved(tmp_path / "c", 3, 7).close()
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    expected = OSError if cause in OBSTACLES.values() else CorruptCheckpointError

    def fails(*_, **__):
        raise RuntimeError("Encountered an error") from cause

    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "restore", fails)
        for read in (checkpoints.restore_params, lambda step: checkpoints.restore(step, like(state(0)))):
            with pytest.raises(expected, match="checkpoint of step 7"):
                read(7)
    assert_same(checkpoints.restore_latest(like(state(0))).state, state(7))


def test_an_error_that_orbax_hides_is_no_damage(tmp_path):
    """Files that cannot be read, here for a loop of links, say nothing about their content."""
    (tmp_path / "state").mkdir()
    assert isinstance(damage.judge(7, epath.Path(tmp_path), ValueError("hidden")), CorruptCheckpointError)
    (tmp_path / "state" / "loop").symlink_to("loop")
    found = damage.judge(7, epath.Path(tmp_path), ValueError("hidden"))
    assert isinstance(found, OSError) and "loop" in str(found)


@pytest.mark.parametrize(
    ("problems", "expected"), [("-d-", CorruptCheckpointError), ("-do", OSError), ("d-o", OSError)]
)
def test_all_hosts_come_to_the_same_end(tmp_path, monkeypatch, problems, expected):
    """Of three hosts some find damage (d) or an obstacle (o)."""
    checkpoints = saved(tmp_path / "c", 7)
    fakes = FakeHosts(monkeypatch, 3)

    def on_host(host):
        def read(step, like):
            if problems[host] == "d":
                raise CorruptCheckpointError(step, "the file is empty")
            if problems[host] == "o":
                raise OSError("permission denied")
            return state(7), {}, {}

        with pytest.raises(expected) as error:
            types.MethodType(Checkpoints.restore, types.SimpleNamespace(_read=read))(7, like(state(0)))
        return str(error.value)

    assert len(set(fakes.run(on_host))) == 1
    checkpoints.close()


def test_a_wrong_path_or_step_is_no_damage(tmp_path, monkeypatch):
    saved(tmp_path / "runs" / "a", 3).close()
    monkeypatch.chdir(tmp_path)
    assert_same(opened("runs/a").restore_params(3), state(3).params)
    for place, has in (("runs/a", "3"), ("runs", "none"), ("nowhere", "none")):
        checkpoints = opened(place)
        for read in (checkpoints.restore_params, functools.partial(checkpoints.restore, like=like(state(0)))):
            with pytest.raises(OSError, match=f"{tmp_path / place} .* step 9; it has: {has}"):
                read(9)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("content", [b'{"item_handlers": 1.5}', b'{"a":' * 99_999 + b"1" + b"}" * 99_999])
def test_a_damaged_description_of_a_checkpoint_is_named(tmp_path, content):
    saved(tmp_path / "c", 3, 7).close()
    file = tmp_path / "c" / "7" / "_CHECKPOINT_METADATA"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="7/_CHECKPOINT_METADATA"):
        saved(tmp_path / "c")
    assert file.read_bytes() == content
    (tmp_path / "c" / "7").rename(tmp_path / "aside")
    assert saved(tmp_path / "c").steps() == [3]


def test_another_model_is_an_error_with_both_shapes_and_left_alone(tmp_path):
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

    spread = on_mesh((8, 1))
    assert fingerprint(spread.params) == fingerprint(value)
    checkpoints = saved(tmp_path / "c", 1, of=lambda _: spread)
    restored = checkpoints.restore_latest(like(on_mesh((2, 4)))).state
    assert_same(restored.params, value)
    assert restored.params["dense"]["kernel"].sharding.mesh.shape == {"a": 2, "b": 4}

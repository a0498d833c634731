"""Checkpoints: exact, checked, and never mistaken for another model's."""

import contextlib
import errno
import functools
import os
import pathlib
import random
import shutil
import sys
import tempfile
import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from etils import epath

from ag_jax.training.checkpoint import Checkpoints, CorruptCheckpointError
from ag_jax.training.fingerprint import changed, fingerprint
from ag_jax.training.state import TrainState
from tests.distributed.fake_hosts import FakeHosts


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


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ((10, 20, 30, 40), [20, 30, 40]),
        ((10, 20, 27, 30, 33, 40), [20, 30, 40]),  # interrupted at 27 and 33
        ((10, 20, 27, 30, 33), [20, 30, 33]),
        ((10, 13, 17), [10, 13, 17]),
        ((3, 10, 13, 17), [10, 13, 17]),
    ],
)
def test_an_interruption_pushes_out_no_other_checkpoint(tmp_path, steps, kept):
    assert saved(tmp_path / "c", *steps, keep_last=3, checkpoint_every=10).steps() == kept


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
    assert fingerprint([jnp.asarray(value.reshape(6))]) != original


def test_fingerprint_sees_changes_that_a_weighted_sum_does_not():
    """Two signs: each changes the sum of bits_i (2 i + 1) modulo 2^32 by 2^31."""
    value = np.arange(1.0, 7.0, dtype=np.float32)
    other = value * np.float32([1, -1, 1, 1, -1, 1])
    assert changed({"a": jnp.asarray(value)}, fingerprint({"a": value})) == []
    assert changed({"a": jnp.asarray(other)}, fingerprint({"a": value})) == ["a"]
    assert changed({"a": jnp.asarray(value)}, fingerprint({"b": value})) == ["a", "b"]


def test_fingerprint_does_not_depend_on_the_devices():
    value = jnp.arange(48.0).reshape(8, 6)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    split = jax.device_put(value, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", "b")))
    assert fingerprint([value]) == fingerprint([split])


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


def large(step: int) -> TrainState:
    """A state with arrays that are large enough for files of their own, and compress well, a little and not at all."""
    drawn = np.random.default_rng(step).standard_normal((31, 17))
    return state(step).replace(
        params={"flat": jnp.full((40, 30), 0.5), "ramp": jnp.arange(900.0), "drawn": jnp.asarray(drawn, jnp.bfloat16)}
    )


def save_large(directory: pathlib.Path, *steps: int) -> None:
    checkpoints = Checkpoints(epath.Path(directory), keep_last=10)
    for step in steps:
        checkpoints.save(large(step), {"tokens": 1 / 3})
    checkpoints.close()


def test_no_flipped_bit_gives_other_values_in_silence(tmp_path):
    """Whichever bit of whichever file is flipped, what comes back is either refused or bit for bit what was saved."""
    save_large(tmp_path / "c", 7)
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"), read_only=True)
    files = files_of(tmp_path / "c" / "7")
    (data,) = [file for file in files if file.stat().st_size > 2000 and file.parent.name == "d"]
    chosen, refused = random.Random(0), 0
    for number in range(50):
        path = data if number % 2 else chosen.choice(files)
        original = path.read_bytes()
        flipped = bytearray(original)
        flipped[chosen.randrange(len(original))] ^= 1 << chosen.randrange(8)
        path.write_bytes(flipped)
        try:
            assert_same(checkpoints.restore_params(7), large(7).params)
        except CorruptCheckpointError:
            refused += 1
        if number < 10:
            with contextlib.suppress(CorruptCheckpointError):
                restored = checkpoints.restore(7, like(large(0)))
                assert_same(restored.state, large(7))
                assert restored.progress == {"tokens": 1 / 3}
        path.write_bytes(original)
    assert refused > 10
    assert_same(checkpoints.restore_params(7), large(7).params)


def test_progress_that_was_changed_is_refused(tmp_path):
    saved(tmp_path / "c", 7).close()
    path = tmp_path / "c" / "7" / "progress" / "metadata"
    path.write_text(path.read_text().replace('"tokens": 70', '"tokens": 71'))
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"), read_only=True)
    with pytest.raises(CorruptCheckpointError, match="the progress differs from what was saved"):
        checkpoints.restore(7, like(state(0)))
    path.write_text('{"tokens": 70}')
    with pytest.raises(CorruptCheckpointError, match="its fingerprint is missing"):
        checkpoints.restore_params(7)


def test_if_all_are_damaged_nothing_is_changed_and_the_way_out_is_named(tmp_path):
    saved(tmp_path / "c", 3, 7).close()
    for path in (*files_of(tmp_path / "c" / "3" / "state"), *files_of(tmp_path / "c" / "7" / "state")):
        path.write_bytes(b"")
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))
    steps = r".*of step 7 .*\n.*of step 3 .*\n"
    expected = rf"all checkpoints of {tmp_path} are damaged.*\n{steps}.*rename or delete {tmp_path}, or"
    with pytest.raises(ValueError, match=expected):
        checkpoints.restore_latest(like(state(0)))
    assert checkpoints.steps() == [3, 7] and not (tmp_path / "corrupt_checkpoints").exists()


@pytest.fixture
def as_nobody():
    """Files of a directory lose all permissions, and the process those of root, if it has them."""
    place = pathlib.Path(tempfile.mkdtemp())  # others may not enter pytest's own
    place.chmod(0o755)

    @contextlib.contextmanager
    def without_permissions(*denied: pathlib.Path):
        root = os.geteuid() == 0
        for path in denied:
            path.chmod(0)
        try:
            if root:
                os.seteuid(65534)
            yield
        finally:
            if root:
                os.seteuid(0)
            for path in denied:
                path.chmod(0o755)

    yield place, without_permissions
    shutil.rmtree(place)


def test_a_missing_permission_is_no_damage(as_nobody):
    place, without_permissions = as_nobody
    save_large(place / "c", 3, 7)
    checkpoints = Checkpoints(epath.Path(place / "c"), read_only=True)
    state_of_7 = place / "c" / "7" / "state"
    files = [path for path in files_of(state_of_7) if path.parent.name == "d"]
    expected = "cannot read the checkpoint of step 7: .*Permission denied.*\n.*nothing was changed"
    for denied in (files, [state_of_7 / "_METADATA"], [state_of_7]):  # the last is an error that Orbax hides
        with without_permissions(*denied):
            for read in (checkpoints.restore_params, lambda step: checkpoints.restore_latest(like(large(0)))):
                with pytest.raises(OSError, match=expected):
                    read(7)
    assert checkpoints.steps() == [3, 7] and not (place / "corrupt_checkpoints").exists()
    assert_same(checkpoints.restore_latest(like(large(0))).state, large(7))


OBSTACLES = {
    "memory": MemoryError(),
    "open files": OSError(errno.EMFILE, "Too many open files"),
    "network": ConnectionResetError("Connection reset by peer"),
    "device": jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes"),
    "store": ValueError("UNAVAILABLE: Error reading gs://bucket: the server does not answer"),
    "system": ValueError(
        "UNKNOWN: Error reading local file: Failed to open [os_error_code='23', source_locations='...']"
    ),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_prevents_reading_is_no_damage(tmp_path, monkeypatch, obstacle):
    saved(tmp_path / "c", 3, 7).close()
    checkpoints = Checkpoints(epath.Path(tmp_path / "c"))

    def fails(*_, **__):
        raise RuntimeError("Encountered an error") from OBSTACLES[obstacle]

    monkeypatch.setattr(ocp.CheckpointManager, "restore", fails)
    for read in (checkpoints.restore_params, lambda step: checkpoints.restore_latest(like(state(0)))):
        with pytest.raises(OSError, match="cannot read the checkpoint of step 7: .*\n.*nothing was changed"):
            read(7)
    monkeypatch.undo()
    assert_same(checkpoints.restore_latest(like(state(0))).state, state(7))


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

        return types.MethodType(Checkpoints.restore, types.SimpleNamespace(_read=read))(7, like(state(0)))

    def error_on_host(host):
        with pytest.raises(expected) as error:
            on_host(host)
        return str(error.value)

    assert len(set(fakes.run(error_on_host))) == 1
    checkpoints.close()


def test_a_wrong_path_or_step_is_no_damage(tmp_path, monkeypatch):
    saved(tmp_path / "runs" / "a", 3).close()
    monkeypatch.chdir(tmp_path)
    assert_same(Checkpoints(epath.Path("runs/a"), read_only=True).restore_params(3), state(3).params)
    for place, has in (("runs/a", "3"), ("runs", "none"), ("nowhere", "none")):
        checkpoints = Checkpoints(epath.Path(place), read_only=True)
        for read in (checkpoints.restore_params, functools.partial(checkpoints.restore, like=like(state(0)))):
            with pytest.raises(OSError, match=f"{tmp_path / place} has no checkpoint of step 9; it has: {has}"):
                read(9)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("content", [b'{"item_handlers": 1.5}', b"[]", b'{"a":' * 99_999 + b"1" + b"}" * 99_999])
def test_a_damaged_description_of_a_checkpoint_is_named(tmp_path, content):
    saved(tmp_path / "c", 3, 7).close()
    file = tmp_path / "c" / "7" / "_CHECKPOINT_METADATA"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="description of a checkpoint is damaged .*7/_CHECKPOINT_METADATA"):
        saved(tmp_path / "c")
    assert file.read_bytes() == content
    (tmp_path / "c" / "7").rename(tmp_path / "aside")
    assert saved(tmp_path / "c").steps() == [3]


def test_orbax_does_not_print_what_it_abandons(tmp_path, monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    checkpoints = saved(tmp_path / "c", 7)
    code = compile("async def read(): pass", "site-packages/orbax/checkpoint/handler.py", "exec")
    exec(code, names := {})
    abandoned = names["read"]()
    sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError("Event loop is closed"), object=None))
    sys.unraisablehook(types.SimpleNamespace(exc_value=Exception("Encountered error while reading"), object=abandoned))
    assert not reported
    abandoned.close()
    other = types.SimpleNamespace(exc_value=ValueError("of somebody else"), object=None)
    sys.unraisablehook(other)
    assert reported == [other]
    for path in files_of(tmp_path / "c" / "7" / "state"):
        path.write_bytes(b"")
    with pytest.raises(CorruptCheckpointError):
        checkpoints.restore_params(7)
    assert reported == [other]


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

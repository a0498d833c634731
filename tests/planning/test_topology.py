"""Names of TPU slices, and the devices that libtpu makes of them."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest

from ag_jax.planning import topology
from ag_jax.training import chips

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'ag_jax[tpu]'"
)


@pytest.mark.parametrize(
    ("text", "name", "accelerator", "chips_", "devices", "hosts"),
    [
        ("v5e:4x4", "v5e:4x4", "v5litepod-16", 16, 16, 4),
        ("v5litepod-8", "v5e:2x4", "v5litepod-8", 8, 8, 1),
        ("v5e-256", "v5e:16x16", "v5litepod-256", 256, 256, 64),
        ("V6E-8", "v6e:2x4", "v6e-8", 8, 8, 1),
        ("v4-8", "v4:2x2x1", "v4-8", 4, 4, 1),
        ("v5p-8", "v5p:2x2x1", "v5p-8", 4, 4, 1),
        ("v3-8", "v3:2x2", "v3-8", 4, 8, 1),
        ("v2-32", "v2:4x4", "v2-32", 16, 32, 4),
        ("v3:32x32", "v3:32x32", "v3-2048", 1024, 2048, 256),
        ("tpu7x-8", "tpu7x:2x2x1", "tpu7x-8", 4, 8, 1),
        ("ironwood:4x4x4", "tpu7x:4x4x4", "tpu7x-128", 64, 128, 16),
        ("v7x-2", "tpu7x:1x1x1", "tpu7x-2", 1, 2, 1),
    ],
)
def test_names(text, name, accelerator, chips_, devices, hosts):
    found = topology.parse(text)
    assert (found.name, found.accelerator) == (name, accelerator)
    assert (found.chips, found.devices, found.hosts) == (chips_, devices, hosts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e:3x3", r"no v5e slice '3x3': choose one of v5e:1x1 \(v5litepod-1\), v5e:2x2 \(v5litepod-4\), v5e:2x4 "),
        ("v4-12", r"no v4 slice '12': choose one of v4:2x2x1 \(v4-8\), v4:2x2x2 \(v4-16\)"),
        ("v5e-100000", r"choose one of .*v5e:16x16 \(v5litepod-256\)$"),
        ("v5e:0x4", "no v5e slice '0x4'"),
        ("v9:2x2", "unknown TPU generation 'v9': choose one of v2, v3, v4, v5e, v5p, v6e, tpu7x"),
        ("two chips", "GENERATION:SHAPE such as v5e:4x4, or a name such as v5litepod-16; got 'two chips'"),
        ("", "GENERATION:SHAPE"),
    ],
)
def test_what_does_not_exist(text, message):
    with pytest.raises(ValueError, match=message):
        topology.parse(text)


def test_several_slices():
    found = topology.parse("v5litepod-16", 4)
    assert (found.name, found.accelerator, found.slices) == ("v5e:4x4", "v5litepod-16", 4)
    assert (found.chips, found.devices, found.hosts) == (64, 64, 16)
    assert topology.parse("tpu7x-8", 2).devices == 16
    for name, slices, message in [
        ("v5e:4x4", 0, "--slices must be at least 1, got 0"),
        ("v4:2x2x1", 2, "--slices=2 needs the bandwidth between slices, .* for v4: choose one of v5e, v5p, v6e, tpu7x"),
    ]:
        with pytest.raises(ValueError, match=message):
            topology.parse(name, slices)


def test_every_slice_can_be_named_both_ways():
    for generation, shapes in topology.SHAPES.items():
        for shape in shapes:
            found = topology.Topology(chips.tpu(generation), shape)
            assert topology.parse(found.name) == topology.parse(found.accelerator) == found


def test_without_libtpu(monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'ag_jax\[tpu\]'"):
        topology.parse("v5e:2x2").compile_only_devices()


@needs_libtpu
@pytest.mark.parametrize(
    ("name", "slices"),
    [
        *((name, 1) for name in ("v2:2x2", "v3:4x4", "v4:2x2x2", "v5e:1x1", "v5e:16x16", "v5p:8x8x16", "v6e:2x4")),
        *((name, 1) for name in ("tpu7x:1x1x1", "tpu7x:2x2x4")),
        ("v5e:4x4", 2),
        ("v5p:2x2x1", 3),
        ("tpu7x:2x2x1", 2),
    ],
)
def test_devices(name, slices):
    found = topology.parse(name, slices)
    devices = found.compile_only_devices()
    assert len(set(devices)) == found.devices
    assert len({getattr(device, "slice_index", 0) for device in devices}) == slices
    assert chips.of_kind(devices[0].device_kind) == found.chip


@pytest.mark.parametrize("has_tpu", [True, False])
def test_only_a_machine_without_a_tpu_gets_variables_for_libtpu(has_tpu, tmp_path, monkeypatch):
    """A real TPU's settings come from its metadata server and must stay as they are."""
    if has_tpu:
        (tmp_path / "accel0").touch()
    monkeypatch.setattr(topology, "_DEVICE_FILES", (str(tmp_path / "accel[0-9]*"),))
    monkeypatch.setattr(os, "environ", {"TPU_WORKER_HOSTNAMES": "ours"})
    topology.silence_libtpu()
    assert os.environ["TPU_WORKER_HOSTNAMES"] == "ours" and ("TPU_ACCELERATOR_TYPE" in os.environ) != has_tpu


@needs_libtpu
def test_libtpu_is_silent_on_a_machine_without_a_tpu():
    script = "from ag_jax.planning import topology; topology.silence_libtpu(); import jax; print(jax.default_backend())"
    unset = {
        name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS" and not name.startswith("TPU_")
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=unset, capture_output=True, text=True, timeout=120, check=True
    )
    if done.stdout.strip() == "tpu":
        pytest.skip("this machine has a TPU")
    assert done.stderr == ""


def test_the_version_of_libtpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    assert topology.versions()["libtpu"] == str(tmp_path / "libtpu.so")
    monkeypatch.delenv("TPU_LIBRARY_PATH")
    installed = importlib.util.find_spec("libtpu") is not None
    assert topology.versions()["libtpu"] == (importlib.metadata.version("libtpu") if installed else "none")

"""Names of TPU slices, and the devices that libtpu makes of them."""

import importlib.util

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
        ("V6E-8", "v6e:2x4", "v6e-8", 8, 8, 1),
        ("v4-8", "v4:2x2x1", "v4-8", 4, 4, 1),
        ("v3-8", "v3:2x2", "v3-8", 4, 8, 1),
        ("v3:32x32", "v3:32x32", "v3-2048", 1024, 2048, 256),
        ("tpu7x-8", "tpu7x:2x2x1", "tpu7x-8", 4, 8, 1),
        ("ironwood:4x4x4", "tpu7x:4x4x4", "tpu7x-128", 64, 128, 16),
    ],
)
def test_names(text, name, accelerator, chips_, devices, hosts):
    found = topology.parse(text)
    assert (found.name, found.accelerator) == (name, accelerator)
    assert (found.chips, found.devices, found.hosts) == (chips_, devices, hosts)


@pytest.mark.parametrize(
    ("text", "slices", "named"),
    [
        ("v5e:3x3", 1, "'3x3'.* v5e:2x2 .v5litepod-4"),
        ("v4-12", 1, "'12'"),
        ("v5e:0x4", 1, "'0x4'"),
        ("v9:2x2", 1, "'v9'"),
        ("two chips", 1, "'two chips'"),
        ("v5e:4x4", 0, "--slices"),
        ("v4:2x2x1", 2, "--slices=2 .* v4"),
    ],
)
def test_what_does_not_exist(text, slices, named):
    with pytest.raises(ValueError, match=named):
        topology.parse(text, slices)


def test_several_slices():
    found = topology.parse("v5litepod-16", 4)
    assert (found.name, found.accelerator, found.slices) == ("v5e:4x4", "v5litepod-16", 4)
    assert (found.chips, found.devices, found.hosts) == (64, 64, 16)
    assert topology.parse("tpu7x-8", 2).devices == 16


def test_every_slice_can_be_named_both_ways():
    for generation, shapes in topology.SHAPES.items():
        for shape in shapes:
            found = topology.Topology(chips.tpu(generation), shape)
            assert topology.parse(found.name) == topology.parse(found.accelerator) == found


@needs_libtpu
@pytest.mark.parametrize(
    ("name", "slices"),
    [
        *((name, 1) for name in ("v3:4x4", "v4:2x2x2", "v5e:1x1", "v6e:2x4", "tpu7x:2x2x4")),
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

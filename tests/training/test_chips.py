"""Chips by name and by what JAX calls them."""

import pytest

from ag_jax.training import chips


def test_a_core_of_v3_is_half_a_chip():
    chip = chips.tpu("v3")
    device = chip.per_device()
    assert chip.flops == 123e12 and device.flops == 61.5e12
    assert device.usable_bytes == 15.48 * 2**30 and device.memory_bandwidth == 450e9 and device.devices == 1


def test_a_megacore_is_a_whole_chip():
    chip = chips.tpu("v4")
    assert chip.cores == 2 and chip.per_device() == chip


@pytest.mark.parametrize(
    ("kind", "name", "flops"),
    [
        ("TPU v5 lite", "v5e", 197e12),
        ("TPU v5", "v5p", 459e12),
        ("TPU v6 lite", "v6e", 918e12),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", "H100", 989e12),
        ("NVIDIA H200", "H200", 989e12),
    ],
)
def test_of_kind(kind, name, flops):
    chip = chips.of_kind(kind)
    assert (chip.name, chip.flops) == (name, flops)


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 PCIe", "TPU v5 lite pod", ""])
def test_no_guess_for_an_unknown_device(kind):
    assert chips.of_kind(kind) is None


def test_every_kind_is_one_chips():
    kinds = [kind for chip in chips.TPUS + chips.GPUS for kind in chip.kinds]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("chip", chips.TPUS + chips.GPUS, ids=lambda chip: chip.name)
def test_figures_have_the_right_size(chip):
    """A slip of a factor of a thousand or eight in the table would show here."""
    assert 40e12 < chip.flops < 3e15 and 16e9 <= chip.memory_bytes < 210e9
    assert 0.85 < chip.usable_bytes / chip.memory_bytes < 1.0
    assert 60 < chip.flops / chip.memory_bandwidth < 600  # the ridge of the roofline, FLOPs a byte
    assert 2 < chip.memory_bandwidth / chip.link_bandwidth < 13
    assert chip.network_bandwidth is None or 1e9 < chip.network_bandwidth < chip.link_bandwidth / 10


def test_unknown_generation():
    with pytest.raises(ValueError, match="unknown TPU generation 'v9': choose one of v2, v3, v4, v5e, v5p, v6e"):
        chips.tpu("v9")

"""Chips by name and by what JAX calls them."""

import pytest

from ag_jax.training import chips

# Published: name, teraflops, memory in GB (GPUs) or GiB (TPUs), bandwidth in GB/s, chips of a host.
PUBLISHED = {
    "TPU v2": ("v2", 46, 16, 700, 4),
    "TPU v3": ("v3", 123, 32, 900, 4),
    "TPU v4": ("v4", 275, 32, 1200, 4),
    "TPU v5 lite": ("v5e", 197, 16, 819, 8),
    "TPU v5": ("v5p", 459, 95.74, 2765, 4),
    "TPU v6 lite": ("v6e", 918, 32, 1638, 8),
    "TPU7x": ("tpu7x", 2307, 192, 7380, 4),
    "NVIDIA A100-SXM4-40GB": ("A100-40GB", 312, 40, 1555, 8),
    "NVIDIA A100-SXM4-80GB": ("A100-80GB", 312, 80, 2039, 8),
    "NVIDIA H100 80GB HBM3": ("H100", 989, 80, 3350, 8),
    "NVIDIA H200": ("H200", 989, 141, 4800, 8),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_published_figures(kind):
    chip, (name, teraflops, memory, bandwidth, per_host) = chips.of_kind(kind), PUBLISHED[kind]
    gigabyte = 2**30 if kind.startswith("TPU") else 1e9
    assert (chip.name, chip.flops, chip.memory_bytes) == (name, teraflops * 1e12, memory * gigabyte)
    assert (chip.memory_bandwidth, chip.chips_per_host) == (bandwidth * 1e9, per_host)
    assert 0.85 < chip.usable_bytes / chip.memory_bytes < 1.0
    assert 2 < chip.memory_bandwidth / chip.link_bandwidth < 13
    assert chip.network_bandwidth is None or 1e9 < chip.network_bandwidth < chip.link_bandwidth / 10


def test_links_and_clocks():
    """The links in GB/s, the network in Gbit/s, and the clock in MHz."""
    expected = {"v2": (248, None, 700), "v3": (328, None, 940), "v4": (300, None, 1050), "v5e": (200, 25, 1500)}
    expected |= {"v5p": (600, 50, 1750), "v6e": (400, 100, 1750), "tpu7x": (600, 100, None)}
    for name, (link, network, clock) in expected.items():
        chip = chips.tpu(name)
        assert (chip.link_bandwidth, chip.clock) == (link * 1e9, clock and clock * 1e6)
        assert chip.network_bandwidth == (network and network * 1e9 / 8)


def test_a_device_is_a_core_of_some_chips_and_a_whole_one_of_others():
    device = chips.tpu("v3").per_device()
    assert device.flops == 61.5e12 and device.usable_bytes == 15.48 * 2**30 and device.memory_bandwidth == 450e9
    assert (device.cores, device.devices, device.link_bandwidth) == (1, 1, 164e9)
    assert chips.tpu("tpu7x").per_device().network_bandwidth == 6.25e9
    assert chips.tpu("v4").cores == 2 and chips.tpu("v4").per_device() == chips.tpu("v4")


def test_no_guess_for_an_unknown_device():
    for kind in ("cpu", "NVIDIA H100 PCIe", "TPU v5 lite pod", ""):
        assert chips.of_kind(kind) is None
    kinds = [kind for chip in chips.TPUS + chips.GPUS for kind in chip.kinds]
    assert len(set(kinds)) == len(kinds)
    with pytest.raises(ValueError, match="'v9'.* v2, v3, v4, v5e, v5p, v6e"):
        chips.tpu("v9")

"""Peak FLOP/s, memory and bandwidths of TPUs and GPUs, from their makers' specifications.

Clocks of TPUs follow from their peak and the number of their matrix units: v5e has four of 128 x 128, v6e four of
256 x 256, and each core of v4 and v5p four of 128 x 128; for TPU7x the number is not published.

Sources: TPUs v3 to TPU7x, the "key specifications" tables of cloud.google.com/tpu/docs/{v3,v4,v5e,v5p,v6e,tpu7x}; TPU
v2 and the links of v2 and v3, Jouppi et al. 2020, "A domain-specific supercomputer for training deep neural networks";
GPUs, NVIDIA's data sheets of the SXM modules, dense figures. `usable_bytes` of a TPU is the figure in errors of libtpu
0.0.51's compiler ("exceeds available HBM (15.75G)"); the rest of its memory belongs to the system.
"""

import dataclasses

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """Specification of a TPU or GPU chip, with figures for the whole chip, which may be several JAX devices.

    kinds: its values of `jax.Device.device_kind`.
    flops: peak of dense matrix products in bfloat16, FLOP/s.
    memory_bytes: HBM, bytes.
    usable_bytes: HBM that a program may fill, bytes.
    memory_bandwidth: of HBM, bytes/s.
    link_bandwidth: bytes/s that a chip can send over all its links to other chips, which is half of a bandwidth that is
        given as bidirectional.
    chips_per_host: largest number of chips of a slice with a single host.
    devices: number of JAX devices on a chip: on v2, v3 and TPU7x each of the two cores is one.
    clock: cycles of a TPU core a second; None for GPUs, and where it is not known.
    network_bandwidth: bytes/s that a chip can send over the network of the data center, to chips of other slices; None
        if it is not known.
    """

    name: str
    kinds: tuple[str, ...]
    flops: float
    memory_bytes: float
    usable_bytes: float
    memory_bandwidth: float
    link_bandwidth: float
    chips_per_host: int
    cores: int = 1
    devices: int = 1
    clock: float | None = None
    network_bandwidth: float | None = None

    def per_device(self) -> "Chip":
        """Return the specification of one JAX device, with its share of the chip's figures."""
        names = ("flops", "memory_bytes", "usable_bytes", "memory_bandwidth", "link_bandwidth")
        return dataclasses.replace(
            self,
            cores=self.cores // self.devices,
            devices=1,
            network_bandwidth=self.network_bandwidth and self.network_bandwidth / self.devices,
            **{name: getattr(self, name) / self.devices for name in names},
        )


def _tpu(
    name: str,
    kinds: tuple[str, ...],
    teraflops,
    gibibytes,
    usable,
    gigabytes_s,
    link_gigabytes_s,
    megahertz,
    network_gigabits_s=None,
    **more,
) -> Chip:
    return Chip(
        name,
        kinds,
        teraflops * 1e12,
        gibibytes * GIB,
        usable * GIB,
        gigabytes_s * 1e9,
        link_gigabytes_s * 1e9,
        clock=megahertz and megahertz * 1e6,
        network_bandwidth=network_gigabits_s and network_gigabits_s / 8 * 1e9,
        **more,
    )


TPUS = (
    # Links: 4 x 496 Gbit/s and 4 x 656 Gbit/s each way.
    _tpu("v2", ("TPU v2",), 46, 16, 14.96, 700, 248, 700, chips_per_host=4, cores=2, devices=2),
    _tpu("v3", ("TPU v3",), 123, 32, 30.96, 900, 328, 940, chips_per_host=4, cores=2, devices=2),
    # Both cores of a v4 or v5p chip are one device ("megacore"), the way Cloud TPU machines run them.
    _tpu("v4", ("TPU v4",), 275, 32, 30.75, 1200, 300, 1050, chips_per_host=4, cores=2),
    # Between slices: 6.4 Tbit/s of 256 v5e chips; the others are given for each chip.
    _tpu("v5e", ("TPU v5 lite", "TPU v5e"), 197, 16, 15.75, 819, 200, 1500, 25, chips_per_host=8),
    _tpu("v5p", ("TPU v5", "TPU v5p"), 459, 95.74, 95.73, 2765, 600, 1750, 50, chips_per_host=4, cores=2),
    _tpu("v6e", ("TPU v6 lite", "TPU v6e"), 918, 32, 31.24, 1638, 400, 1750, 100, chips_per_host=8),
    _tpu("tpu7x", ("TPU7x",), 2307, 192, 189.5, 7380, 600, None, 100, chips_per_host=4, cores=2, devices=2),
)


def _gpu(name: str, kinds: tuple[str, ...], teraflops, gigabytes, gigabytes_s, link_gigabytes_s) -> Chip:
    # A driver and a CUDA context take about 1 GB; JAX then preallocates three quarters unless told otherwise.
    return Chip(
        name,
        kinds,
        teraflops * 1e12,
        gigabytes * 1e9,
        (gigabytes - 1) * 1e9,
        gigabytes_s * 1e9,
        link_gigabytes_s * 1e9,
        8,
    )


GPUS = (
    _gpu("A100-40GB", ("NVIDIA A100-SXM4-40GB",), 312, 40, 1555, 300),
    _gpu("A100-80GB", ("NVIDIA A100-SXM4-80GB",), 312, 80, 2039, 300),
    _gpu("H100", ("NVIDIA H100 80GB HBM3",), 989, 80, 3350, 450),
    _gpu("H200", ("NVIDIA H200",), 989, 141, 4800, 450),
)


def of_kind(device_kind: str) -> Chip | None:
    """Return the specification of the chip with this `jax.Device.device_kind`; None if it is unknown."""
    return next((chip for chip in TPUS + GPUS if device_kind in chip.kinds), None)


def tpu(generation: str) -> Chip:
    """Return the specification of a TPU generation, such as v5e, or raise ValueError if it is unknown."""
    chip = next((chip for chip in TPUS if chip.name == generation), None)
    if chip is None:
        raise ValueError(
            f"unknown TPU generation {generation!r}: choose one of {', '.join(chip.name for chip in TPUS)}"
        )
    return chip

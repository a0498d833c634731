"""TPU slices by name, and devices to compile for ahead of time; no TPU needed."""

import dataclasses
import glob
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

import jax
from jax.experimental import topologies

from ag_jax.planning import schedules
from ag_jax.training import chips
from ag_jax.training.chips import Chip

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
_PER_HOST = 4  # chips of a host in a slice of several hosts
# Chips along each axis of the slices that Cloud TPU rents.
SHAPES = {
    "v2": ("2x2", "4x4", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "8x8", "8x16", "16x16", "16x32", "32x32"),
    "v4": _CUBES,
    "v5e": _FLAT,
    "v5p": _CUBES,
    "v6e": _FLAT,
    "tpu7x": ("1x1x1", *_CUBES),
}
_COUNTED_IN_CORES = ("v2", "v3", "v4", "v5p", "tpu7x")  # v4-8 has 8 cores on 4 chips, v5e-8 has 8 chips
_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e", "v6": "v6e", "trillium": "v6e"}
_ALIASES |= dict.fromkeys(("v7x", "v7", "ironwood"), "tpu7x")
# Without these variables libtpu asks the metadata server of a TPU VM, and prints errors on any other machine.
_WITHOUT_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
}

_DEVICE_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")  # where Linux shows the chips of a TPU


@dataclasses.dataclass(frozen=True)
class Topology:
    """A TPU slice, or several slices of one shape that a network connects.

    chip: of its generation.
    shape: chips along each axis of a slice, such as 4x4.
    slices: number of slices.
    """

    chip: Chip
    shape: str
    slices: int = 1

    def __post_init__(self):
        if self.slices < 1:
            raise ValueError(f"--slices must be at least 1, got {self.slices}")
        if self.slices > 1 and self.chip.network_bandwidth is None:
            names = ", ".join(chip.name for chip in chips.TPUS if chip.network_bandwidth)
            raise ValueError(
                f"--slices={self.slices} needs the bandwidth between slices, which is not known here for "
                f"{self.chip.name}: choose one of {names}"
            )

    @property
    def name(self) -> str:
        """The name of a slice, `GENERATION:SHAPE`, such as v5e:4x4."""
        return f"{self.chip.name}:{self.shape}"

    @property
    def accelerator(self) -> str:
        """The name of a slice on Cloud TPU, such as v5litepod-16."""
        return f"{'v5litepod' if self.chip.name == 'v5e' else self.chip.name}-{_size(self.chip, self.shape)}"

    @property
    def chips(self) -> int:
        """The number of chips in all slices."""
        return self.slices * _chips(self.shape)

    @property
    def devices(self) -> int:
        """The number of JAX devices in all slices."""
        return self.chips * self.chip.devices

    @property
    def hosts(self) -> int:
        """The number of machines that the chips belong to."""
        chips_of_slice = _chips(self.shape)
        return self.slices * (1 if chips_of_slice <= self.chip.chips_per_host else -(-chips_of_slice // _PER_HOST))

    def compile_only_devices(self) -> list[jax.Device]:
        """Return devices for which programs can be compiled, but on which none can run.

        Several processes may compile for such devices at once.

        Raises ValueError if libtpu, which this needs, is not installed, or gives another number of devices.
        """
        if not (importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
            raise ValueError(
                "compiling for TPUs needs libtpu, which is not installed (no TPU is needed): pip install 'ag_jax[tpu]'"
            )
        _set_environment()
        schedules.request()
        # A v4 or v5p chip is one device of two cores on Cloud TPU machines; libtpu's default for v4 is two devices.
        options: dict[str, Any] = {"chip_config_name": "megacore"} if self.chip.cores > self.chip.devices else {}
        if _chips(self.shape) == 1:  # libtpu takes a host to have four chips unless told otherwise
            options["chips_per_host_bounds"] = (1, 1, 1)
        if self.slices > 1:
            options["num_slices"] = self.slices
        devices = topologies.get_topology_desc(self.name, platform="tpu", **options).devices
        if len(devices) != self.devices:
            raise ValueError(
                f"libtpu gives {len(devices)} devices for {self.name}, expected {self.devices}: update libtpu"
            )
        return list(devices)


def silence_libtpu() -> None:
    """Keep an installed libtpu from printing errors while JAX looks for devices on a machine without a TPU.

    JAX asks every installed library for devices. On a machine with a TPU nothing changes; environment variables that
    are set already never change. Must be called before JAX is used for the first time.
    """
    if not any(glob.glob(pattern) for pattern in _DEVICE_FILES):
        _set_environment()


def _set_environment() -> None:
    for name, value in _WITHOUT_TPU.items():
        os.environ.setdefault(name, value)


def versions() -> dict[str, str]:
    """Return the versions of jax, jaxlib and libtpu, on which the result of a compilation depends."""
    result = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    package, library = importlib.util.find_spec("libtpu"), os.environ.get("TPU_LIBRARY_PATH", "")
    if package and (not library or library.startswith(os.path.dirname(package.origin))):
        return result | {"libtpu": importlib.metadata.version("libtpu")}
    return result | {"libtpu": library or "none"}


def _chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


def _size(chip: Chip, shape: str) -> int:
    """Return the number in a slice's Cloud TPU name: its cores for v2 to v4 and v5p, else its chips (v5litepod-16)."""
    return _chips(shape) * (chip.cores if chip.name in _COUNTED_IN_CORES else 1)


def parse(text: str, slices: int = 1) -> Topology:
    """Parse a slice's name: `GENERATION:SHAPE` such as v5e:4x4, or Cloud TPU's such as v5litepod-16 or v4-8.

    slices: number of such slices.

    Raises ValueError if there is no such slice, and for an impossible number of slices.
    """
    match = re.fullmatch(r"(v\d\w*|tpu7x|trillium|ironwood)[:-](\d+(?:x\d+)*)", text.strip().lower())
    if not match:
        raise ValueError(
            f"--topology is GENERATION:SHAPE such as v5e:4x4, or a name such as v5litepod-16; got {text!r}"
        )
    chip = chips.tpu(_ALIASES.get(match[1], match[1]))
    for shape in SHAPES[chip.name]:
        if match[2] in (shape, str(_size(chip, shape))):
            return Topology(chip, shape, slices)
    names = ", ".join(f"{chip.name}:{shape} ({Topology(chip, shape).accelerator})" for shape in SHAPES[chip.name])
    raise ValueError(f"there is no {chip.name} slice {match[2]!r}: choose one of {names}")

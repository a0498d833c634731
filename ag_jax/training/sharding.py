"""Sharding of parameters and batches: the mesh of devices, and the mesh axis over which each array axis is split.

The mesh has three axes. `data` and `fsdp` both split the batch; `fsdp` also splits the parameters along the model's
width, `tensor` along heads, feed-forward features and vocabulary. Where there are several TPU slices, `data` crosses
them, because it needs the fewest messages: one sum of the gradients in a step.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ag_jax.training.config import MeshConfig

RULES = {
    "vocabulary": "tensor",
    "heads": "tensor",
    "feedforward": "tensor",
    "embed": "fsdp",
}
AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")  # axes that the batch is split over
BATCH = PartitionSpec(ROWS)


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Return a mesh over `devices` (default: all), in which several TPU slices divide only the axis `data`.

    Raises ValueError if the product of the axes is not the number of devices, or if `data` cannot be divided among the
    slices.
    """
    devices = jax.devices() if devices is None else devices
    data = config.data or max(len(devices) // (config.fsdp * config.tensor), 1)
    shape = (data, config.fsdp, config.tensor)
    if math.prod(shape) != len(devices):
        raise ValueError(
            f"the mesh data={data} x fsdp={config.fsdp} x tensor={config.tensor} needs {math.prod(shape)} devices, but "
            f"there are {len(devices)}; choose mesh.data, mesh.fsdp and mesh.tensor whose product is {len(devices)}"
        )
    types = (AxisType.Auto,) * 3
    # Devices of a single slice may lack the attribute; on GPUs it has another meaning.
    is_tpu = devices[0].platform == "tpu"
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if is_tpu else 1
    if slices == 1:
        return jax.make_mesh(shape, AXES, axis_types=types, devices=devices)
    if data % slices:
        raise ValueError(
            f"the mesh data={data} x fsdp={config.fsdp} x tensor={config.tensor} must have a multiple of {slices} "
            f"along data, because there are {slices} slices, and only data may cross them: the other axes send too "
            "much; lower mesh.fsdp or mesh.tensor"
        )
    within = (data // slices, config.fsdp, config.tensor)
    return Mesh(mesh_utils.create_hybrid_device_mesh(within, (slices, 1, 1), devices), AXES, axis_types=types)


def parameter_shardings(abstract_params: Any, mesh: Mesh) -> Any:
    """Return a sharding for every parameter, from its axis names (`nn.with_logical_partitioning`) and `RULES`.

    An axis whose length is not divisible by its mesh axis, such as a vocabulary of 50,265 words by two, is not split.
    """

    def sharding(leaf) -> NamedSharding:
        names: Any = leaf.names if isinstance(leaf, nn.Partitioned) else ()
        axes: list[str | None] = []
        for size, name in zip(nn.unbox(leaf).shape, names, strict=False):
            axis = RULES.get(name)
            is_split = axis is not None and axis not in axes and size % mesh.shape[axis] == 0
            axes.append(axis if is_split else None)
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map(sharding, abstract_params, is_leaf=lambda leaf: isinstance(leaf, nn.Partitioned))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch, whose rows are split over the mesh axes `data` and `fsdp`."""
    return NamedSharding(mesh, BATCH)


@functools.lru_cache(maxsize=64)
def process_rows(mesh: Mesh, rows: int) -> np.ndarray:
    """Return the ascending indices of the rows that this process's devices hold in a batch of `rows` rows.

    The rows of a host need not be contiguous, and hosts hold the same rows where `tensor` spans them.
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in indices]))


def place_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Place this process's rows of a batch on its devices; return the global batch, sharded over the mesh."""
    return jax.make_array_from_process_local_data(batch_sharding(mesh), batch)


def to_host(arrays: Any, mesh: Mesh) -> Any:
    """Return a tree of arrays on the devices of `mesh` as complete NumPy arrays; every host must call it."""
    if jax.process_count() > 1:
        arrays = jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))(arrays)
    return jax.device_get(arrays)

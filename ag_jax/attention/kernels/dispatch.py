"""Which implementation of attention a run uses, and how it is spread over devices.

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head, N = H * V.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from ag_jax.attention import dropout
from ag_jax.attention.guidance import Guides
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend, Kernel, Mixed, Shape, guided_statistics, sparse_targets

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Fused:
    """A kernel as an `Attend`: each device of `mesh` runs it on its own rows and heads.

    rows, heads: the axes of the mesh that the batch and the heads are split over.
    """

    kernel: Kernel
    mesh: Mesh | None = None
    rows: tuple[str, ...] = ()
    heads: str | None = None

    def __call__(
        self,
        query_BLHV: Array,
        key_BLHV: Array,
        value_BLHV: Array,
        sequences_BL: Array,
        *,
        bias: Array | None = None,
        guides: Guides | None = None,
        rate: float = 0.0,
        key: Array | None = None,
    ) -> Mixed:
        """`contract.Attend`. Raises ValueError for guides on what dropout leaves, which kernels do not compute."""
        if guides is not None and guides.after_dropout:
            raise ValueError("guidance.probabilities=after_dropout needs model.attention=reference")
        batch, length, heads, _ = query_BLHV.shape
        shifts_H, weights_BHK = sparse_targets(guides, batch, length, heads) if guides is not None else (None, None)
        if bias is not None:
            bias = jnp.broadcast_to(bias, (*bias.shape[:2], length, length))
        seeds = dropout.seeds(key) if rate else jnp.zeros((2,), jnp.uint32)

        def on_device(query, key, value, sequences, bias, shifts, weights, seeds):
            rows, length, local_heads, width = query.shape
            shape = Shape(local_heads, heads, width, length, rate, guides is not None)
            first = (self._position(self.rows) * rows, self._position((self.heads,)) * local_heads)
            numbers = jnp.concatenate([jax.lax.bitcast_convert_type(seeds, jnp.int32), jnp.stack(first)])
            flat = (array.reshape(rows, length, local_heads * width) for array in (query, key, value))
            mixed, squares, overlap = self.kernel(shape, *flat, sequences, bias, shifts, weights, numbers)
            return mixed.reshape(query.shape), squares, overlap

        if self.mesh is not None and self.mesh.size > 1:
            on_device = jax.shard_map(on_device, mesh=self.mesh, **self._specs(bias, guides), check_vma=False)
        mixed_BLHV, squares_BHQ, overlap_BHQ = on_device(
            query_BLHV, key_BLHV, value_BLHV, sequences_BL, bias, shifts_H, weights_BHK, seeds
        )
        if guides is None:
            return mixed_BLHV, None
        return mixed_BLHV, guided_statistics(squares_BHQ, overlap_BHQ, guides, sequences_BL)

    def _position(self, axes: tuple[str | None, ...]) -> Array:
        """This device's number along axes of the mesh."""
        position = jnp.int32(0)
        for axis in axes if self.mesh is not None and self.mesh.size > 1 else ():
            if axis is not None:
                position = position * self.mesh.shape[axis] + jax.lax.axis_index(axis)
        return position

    def _specs(self, bias: Array | None, guides: Guides | None) -> dict:
        rows, heads = self.rows or None, self.heads
        qkv, row = PartitionSpec(rows, None, heads), PartitionSpec(rows, heads)
        of_bias = (
            None
            if bias is None
            else PartitionSpec(rows if bias.shape[0] > 1 else None, heads if bias.shape[1] > 1 else None)
        )
        shifts, weights = (None, None) if guides is None else (PartitionSpec(heads), row)
        statistic = None if guides is None else row
        return {
            "in_specs": (qkv, qkv, qkv, PartitionSpec(rows), of_bias, shifts, weights, PartitionSpec()),
            "out_specs": (qkv, statistic, statistic),
        }


@dataclasses.dataclass(frozen=True)
class Choice:
    """An implementation, its name, and why it was taken, for the log."""

    attend: Attend
    name: str
    reason: str


# Imported here, for the compilers of kernels take long to import and are not part of every build of JAX.


def _tpu(device: jax.Device, head_width: int, length: int) -> tuple[Kernel, str | None]:
    """The kernels for TPUs, and why they cannot run, if they cannot."""
    from ag_jax.attention.kernels.tpu import attention as tpu
    from ag_jax.attention.kernels.tpu import grid

    return tpu.attend, grid.refuses(device.device_kind, head_width, length)


def _gpu(device: jax.Device, head_width: int) -> tuple[Kernel, str | None]:
    """The same for GPUs."""
    from ag_jax.attention.kernels.gpu import attention as gpu
    from ag_jax.attention.kernels.gpu import grid as gpu_grid

    return gpu.attend, gpu_grid.refuses(device, head_width)


def choose(
    wanted: str,
    mesh: Mesh,
    *,
    head_width: int,
    length: int,
    after_dropout: bool,
    rows: tuple[str, ...],
    heads: str,
) -> Choice:
    """The implementation for a config's `model.attention` on the devices of `mesh`.

    `auto` takes the kernel for the devices, and the reference where there is none or where it cannot do what is asked.
    Raises ValueError if `wanted` names a kernel that cannot.
    """
    if wanted == "reference":
        return Choice(reference.attend, "reference", "model.attention=reference")
    device = mesh.devices.flat[0]
    name = device.platform if wanted == "auto" else wanted
    if name not in ("tpu", "gpu"):
        return Choice(reference.attend, "reference", f"there is no kernel for the platform {name}")
    kernel, refused = None, f"the devices are of the platform {device.platform}"
    if device.platform == name:
        kernel, refused = _tpu(device, head_width, length) if name == "tpu" else _gpu(device, head_width)
    if after_dropout and not refused:
        refused = "its kernel does not compute guidance.probabilities=after_dropout"
    if not refused:
        return Choice(Fused(kernel, mesh, rows, heads), name, f"the devices are {device.device_kind}")
    if wanted == "auto":
        return Choice(reference.attend, "reference", refused)
    raise ValueError(f"model.attention={wanted} cannot be used: {refused}. Choose auto or reference")

"""Which implementation of attention a run uses, and how it is spread over devices.

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head, N = H * V.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from ag_jax.attention import dropout
from ag_jax.attention.fused import reference, tpu, tpu_grid
from ag_jax.attention.fused.contract import Attend, Kernel, Mixed, Shape, guided_statistics, sparse_targets
from ag_jax.attention.guidance import Guides

Array = jax.Array

_CAPABILITY = 8.0  # of the GPUs that the kernel is for: A100 and later


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
        of_bias = None if bias is None else PartitionSpec(
            rows if bias.shape[0] > 1 else None, heads if bias.shape[1] > 1 else None
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
    device = mesh.devices.flat[0]
    kernels = {"tpu": tpu.attend}
    if wanted == "reference":
        return Choice(reference.attend, "reference", "model.attention=reference")
    name = device.platform if wanted == "auto" else wanted
    if name not in kernels:
        return Choice(reference.attend, "reference", f"there is no kernel for {device.platform} devices")
    if device.platform != name:
        refused = f"the devices are {device.platform}s"
    elif after_dropout:
        refused = "guidance.probabilities=after_dropout is not in the kernels"
    elif name == "gpu" and float(getattr(device, "compute_capability", _CAPABILITY)) < _CAPABILITY:
        refused = f"compute capability {device.compute_capability} is below {_CAPABILITY}"
    elif name == "tpu" and length > tpu_grid.longest(head_width):
        refused = f"rows of {length} tokens are longer than the {tpu_grid.longest(head_width)} that fit on the chip"
    else:
        reason = f"the devices are {name}s" if wanted == "auto" else f"model.attention={name}"
        return Choice(Fused(kernels[name], mesh, rows, heads), name, reason)
    if wanted != "auto":
        raise ValueError(f"model.attention={wanted} cannot be used: {refused}. Take auto or reference")
    return Choice(reference.attend, "reference", refused)

"""Choose the implementation of attention that a run uses, and split its work over devices.

Shape letters: B batch, Q query position, K key position, H head, W width of a head, A = H * W width of all heads.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from ag_jax.attention import dropout
from ag_jax.attention.config import GuidanceLoss
from ag_jax.attention.kernels import cudnn, reference, self_check
from ag_jax.attention.kernels.interface import (
    Attend,
    AttentionInputs,
    Kernel,
    KernelConfig,
    KernelInputs,
    Mixed,
    guided_statistics,
    sparse_targets,
)


@dataclasses.dataclass(frozen=True)
class Fused(Attend):
    """Attention by a fused kernel, which each device of a mesh runs on its own examples and heads.

    kernel: attention for one device.
    mesh: the devices; None for a single one.
    rows, heads: the axes of the mesh that the batch and the heads are split over.
    """

    kernel: Kernel
    mesh: Mesh | None = None
    rows: tuple[str, ...] = ()
    heads: str | None = None

    def compute(self, inputs: AttentionInputs) -> Mixed:
        """Return (output `BQHW`, statistics of guidance or None without guides).

        Raises ValueError for guidance after dropout, which kernels do not compute.
        """
        guides, rate = inputs.guides, inputs.rate
        if guides is not None and guides.after_dropout:
            raise ValueError("guidance.probabilities=after_dropout needs model.attention=reference")
        heads, width = inputs.query_BQHW.shape[2:]
        lengths = inputs.query_BQHW.shape[1], inputs.key_BKHW.shape[1]
        bias = inputs.bias
        if bias is not None:
            bias = jnp.broadcast_to(bias, (*bias.shape[:2], *lengths))
        columns_BHQ, weights_BHK = (None, None) if guides is None else sparse_targets(inputs)
        loss: GuidanceLoss = "squared" if guides is None else guides.loss
        seeds = dropout.seeds(inputs.key) if rate else jnp.zeros((2,), jnp.uint32)

        def on_device(local: KernelInputs) -> tuple[Array, tuple[Array, ...]]:
            rows, _, all_widths = local.query_BQA.shape
            local_heads = all_widths // width
            guided_heads = 0 if guides is None else sum(guides.counts)
            if guides is not None and local_heads < heads:
                # One program serves all devices, so each computes statistics of all its heads.
                guided_heads = local_heads
            config = KernelConfig(local_heads, heads, width, *lengths, rate, guided_heads, inputs.band, loss)
            first = (self._position(self.rows) * rows, self._position((self.heads,)) * local_heads)
            scalars = jnp.concatenate([jax.lax.bitcast_convert_type(local.scalars, jnp.int32), jnp.stack(first)])
            return self.kernel(config, local._replace(scalars=scalars))

        # Heads are flattened before the arrays are split: on a TPU, arrays with the axes (head, width of a head) last
        # have another layout, and would be copied.
        query, key, value = (array.reshape(*array.shape[:2], heads * width) for array in inputs[:3])
        arrays = KernelInputs(query, key, value, *inputs[3:5], bias, columns_BHQ, weights_BHK, seeds)
        if self.mesh is not None and self.mesh.size > 1:
            on_device = jax.shard_map(on_device, mesh=self.mesh, **self._specs(arrays), check_vma=False)
        mixed_BQA, sums = on_device(arrays)
        mixed_BQHW = mixed_BQA.reshape(inputs.query_BQHW.shape)
        return mixed_BQHW, None if guides is None else guided_statistics(sums, inputs)

    def _position(self, axes: tuple[str | None, ...]) -> Array:
        """Return this device's row-major index over these axes of the mesh; 0 if there is one device."""
        position = jnp.int32(0)
        for axis in axes if self.mesh is not None and self.mesh.size > 1 else ():
            if axis is not None:
                position = position * self.mesh.shape[axis] + jax.lax.axis_index(axis)
        return position

    def _specs(self, arrays: KernelInputs) -> dict:
        """Return the arguments of `jax.shard_map` for splitting a kernel's inputs and results over the mesh."""
        rows, heads, bias = self.rows or None, self.heads, arrays.bias
        side, ids, by_head = PartitionSpec(rows, None, heads), PartitionSpec(rows), PartitionSpec(rows, heads)
        of_bias = None
        if bias is not None:  # an axis of size 1 is shared by all devices
            of_bias = PartitionSpec(rows if bias.shape[0] > 1 else None, heads if bias.shape[1] > 1 else None)
        of_targets = None if arrays.columns_BHQ is None else by_head
        specs: list[Any] = [side, side, side, ids, ids, of_bias, of_targets, of_targets, PartitionSpec()]
        return {"in_specs": (KernelInputs(*specs),), "out_specs": (side, by_head)}


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen implementation of attention, its name, and the reason for the choice.

    attend: the implementation.
    name: its name: `reference`, `tpu`, `gpu` or `cudnn`.
    reason: why it was chosen, for the log.
    """

    attend: Attend
    name: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a layer's attention, the type of its arrays and the loss of its guidance, by which `choose` decides.

    heads: number of heads of a layer.
    head_width: width of a head.
    length: the most tokens of a row.
    dtype: floating-point type of queries, keys and values.
    loss: of the guidance, by which kernels compute other statistics.
    """

    heads: int
    head_width: int
    length: int
    dtype: str
    loss: GuidanceLoss = "squared"


# Kernels are imported where they are chosen: their compilers take long to import, and are not part of every build of
# JAX.


def _tpu(device: jax.Device, sizes: Sizes) -> tuple[Kernel, str | None]:
    """Return (the kernel for TPUs, why it cannot run on `device` or None if it can)."""
    from ag_jax.attention.kernels.tpu import attention as tpu
    from ag_jax.attention.kernels.tpu import grid

    itemsize = jnp.dtype(sizes.dtype).itemsize
    reason = grid.unsupported_reason(device.device_kind, sizes.heads, sizes.head_width, sizes.length, itemsize)
    return tpu.attend, reason


def _gpu(device: jax.Device, sizes: Sizes) -> tuple[Kernel, str | None]:
    """Return (the kernel for GPUs, why it cannot run on `device` or None if it can)."""
    from ag_jax.attention.kernels.gpu import attention as gpu
    from ag_jax.attention.kernels.gpu import grid as gpu_grid

    return gpu.attend, gpu_grid.unsupported_reason(device, sizes.head_width)


def _tested(name: str, device: jax.Device, sizes: Sizes) -> tuple[Kernel | None, str | None, bool]:
    """Return (kernel or None if its import fails, why it cannot run on `device` or None, whether that is a defect).

    A defect is that the kernel cannot be imported, does not compile, or computes something else than the reference.

    Devices that are not there, for which programs are only compiled, run no test.
    """
    try:
        kernel, unsupported = _tpu(device, sizes) if name == "tpu" else _gpu(device, sizes)
    except (ImportError, AttributeError) as error:  # such as a JAX without this compiler, or with another interface
        return None, f"its kernel cannot be imported with jax {jax.__version__}: {error}", True
    if unsupported or device not in jax.devices():
        return kernel, unsupported, False
    defect = self_check.problem(Fused(kernel), sizes.head_width, sizes.length, sizes.dtype, sizes.loss)
    return kernel, defect, defect is not None


def choose(setting: str, mesh: Mesh, sizes: Sizes, *, after_dropout: bool, rows: tuple[str, ...], heads: str) -> Choice:
    """Choose the implementation of attention for the devices of `mesh`; `setting` is the config's `model.attention`.

    `auto` takes the kernel of the platform if the kernel supports the settings and passes `self_check`, which runs once
    in a process, on its first device. Otherwise GPUs take cuDNN if that passes the same test without guidance and
    dropout, and everything else takes the reference. A kernel that fails the test is reported by a warning.

    sizes: of the whole model; a device has its share of the heads.
    after_dropout: whether guidance is of the probabilities after dropout.
    rows, heads: the axes of the mesh that the batch and the heads are split over.

    Raises ValueError if `setting` names a kernel that does not support the settings, or that fails the test.
    """
    if setting == "reference":
        return Choice(reference.attend, "reference", "model.attention=reference")
    device = mesh.devices.flat[0]  # all devices of a mesh are of one kind
    name = device.platform if setting == "auto" else setting
    if name not in ("tpu", "gpu"):
        return Choice(reference.attend, "reference", f"there is no kernel for the platform {name}")
    kernel, unsupported, is_defect = None, f"the devices are of the platform {device.platform}", False
    if sizes.heads % mesh.shape[heads]:  # a kernel would get a part of a head
        unsupported = f"{sizes.heads} heads cannot be split over {mesh.shape[heads]} devices"
    elif device.platform == name:
        local = dataclasses.replace(sizes, heads=sizes.heads // mesh.shape[heads])
        kernel, unsupported, is_defect = _tested(name, device, local)
    if after_dropout and not unsupported:
        unsupported = "its kernel does not compute guidance.probabilities=after_dropout"
    if not unsupported:
        return Choice(Fused(kernel, mesh, rows, heads), name, f"the devices are {device.device_kind}")
    if setting == "auto":
        choice, substitute = Choice(reference.attend, "reference", unsupported), "the slower reference"
        if name == "gpu" and device in jax.devices():
            attend = cudnn.CuDnn()
            if self_check.problem(attend, sizes.head_width, sizes.length, sizes.dtype, only_plain=True) is None:
                choice = Choice(attend, "cudnn", unsupported)
                substitute = "cuDNN without guidance and attention dropout, and else the slower reference"
        if is_defect:
            self_check.warn(name, substitute, unsupported)
        return choice
    raise ValueError(f"model.attention={setting} cannot be used: {unsupported}; choose auto or reference")

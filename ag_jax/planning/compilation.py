"""Compile the training step of a config ahead of time for a TPU slice: its memory and costs; no TPU needed."""

import dataclasses
import re
import time
from typing import Any

import jax

from ag_jax.data import pipeline, tokenizers
from ag_jax.planning import costs, schedules
from ag_jax.planning.hlo import HloModule
from ag_jax.planning.topology import Topology
from ag_jax.pretraining import build, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training import sharding
from ag_jax.training.chips import Chip
from ag_jax.training.hyperparameters import Hyperparameters

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# "the total memory required for HLO temporaries (22.19G) exceeds available HBM (15.75G)", arguments counted in;
# "Used 17.06G of 15.48G hbm".
_TOO_LARGE = (
    re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
)


def vocabulary(config: ExperimentConfig) -> workloads.Vocabulary:
    """Return the tokenizer at `data.tokenizer.path`, or size and special ids of the tokenizer that a run would train.

    No text is read.
    """
    tokenizer = config.data.tokenizer
    return tokenizers.load(tokenizer.path) if tokenizer.path else workloads.VocabularyInfo(tokenizer.vocabulary_size)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Memory that a program needs on one device, in bytes.

    output: results that do not reuse the memory of a (donated) argument.
    code: the compiled program itself.
    """

    arguments: float
    output: float
    temporary: float
    code: float

    @property
    def total(self) -> float:
        """The sum of arguments, output, temporary memory and code, in bytes."""
        return self.arguments + self.output + self.temporary + self.code


@dataclasses.dataclass(frozen=True)
class KernelCycles:
    """Cycles of all calls of a program's kernels (Pallas) in one step on one device.

    A call has the cycles of the kernel's schedule, or, if these are more, those of the matrix products that the kernel
    declares, at the chip's peak, because a schedule does not count waiting for the matrix units.

    by_kernel: cycles of all calls, by name.
    missing: names of kernels without a schedule, as with some versions of libtpu.
    with_unknown_loops: names of kernels with a loop whose body is counted once, because its iterations are unknown.
    """

    by_kernel: dict[str, float]
    missing: tuple[str, ...] = ()
    with_unknown_loops: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """Cycles of all kernels whose instruction schedule is known, that is, of those not in `missing`."""
        return sum(self.by_kernel.values())


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled training step that fits into a device's memory: the memory and costs of the step.

    costs: of one step on one device, with the iterations of loops counted.
    kernels: cycles of the kernels, which the costs do not have.
    reported: the compiler's own analysis, which counts the body of a loop once.
    seconds: how long the compilation took.
    """

    memory: Memory
    costs: costs.Costs
    kernels: KernelCycles
    reported: dict[str, float]
    seconds: float


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """Result of compiling a training step that does not fit into a device's memory.

    needed: bytes that a device would need.
    available: bytes that the device has.
    """

    needed: float
    available: float


def compile_step(config: ExperimentConfig, topology: Topology, devices: list[jax.Device]) -> Compiled | TooLarge:
    """Compile the training step of `config` for these devices; return its memory and costs.

    Returns a `TooLarge` if the step does not fit into the memory of a device.

    topology: the slice that has the devices.

    Raises ValueError if mesh or batch do not go with the number of devices, and `JaxRuntimeError` if the compiler fails
    for another reason than memory.
    """
    mesh = sharding.make_mesh(config.mesh, devices)
    program = build.make_program(config, vocabulary(config), mesh)
    batch = {
        name: jax.ShapeDtypeStruct(field.shape, field.dtype)
        for name, field in pipeline.empty_batch(config.data, config.training.batch_size).items()
    }
    began = time.perf_counter()
    key = jax.eval_shape(lambda: jax.random.key(0))
    lowered = program.train_step.lower(program.abstract, batch, key, Hyperparameters())
    try:
        executable = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        outcome = too_large(str(error))
        if outcome is None:
            raise
        return outcome
    return _account(executable, topology, time.perf_counter() - began)


def _account(executable: Any, topology: Topology, seconds: float) -> Compiled:
    """Return the memory and costs of a compiled step, read from its executable."""
    sizes = executable.memory_analysis()
    memory = Memory(
        sizes.argument_size_in_bytes,
        sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
        sizes.temp_size_in_bytes,
        sizes.generated_code_size_in_bytes,
    )
    reported = executable.cost_analysis() or {}
    # Kernels without a declared cost make the compiler's sum of FLOPs negative: no figure at all.
    reported = {name: reported[name] for name in ("flops", "bytes accessed") if reported.get(name, -1) > 0}
    program = HloModule(executable.as_text())
    kernels = kernel_cycles(program, topology.chip.per_device())
    return Compiled(memory, costs.costs(program, topology.devices), kernels, reported, seconds)


def kernel_cycles(program: HloModule, device: Chip) -> KernelCycles:
    """Return the cycles of the kernels of a program that this process has compiled for a device of this kind."""
    by_kernel: dict[str, float] = {}
    missing, unknown = [], []
    for kernel, calls, flops in costs.kernels(program):
        schedule = schedules.find(kernel, schedules.request())
        if schedule is None:
            missing.append(kernel.name)
            continue
        at_peak = flops / device.flops * device.clock if device.clock else 0.0
        by_kernel[kernel.name] = by_kernel.get(kernel.name, 0.0) + calls * max(schedule.cycles, at_peak)
        if schedule.unknown_loops:
            unknown.append(kernel.name)
    return KernelCycles(by_kernel, tuple(dict.fromkeys(missing)), tuple(dict.fromkeys(unknown)))


def too_large(message: str) -> TooLarge | None:
    """Parse the memory needed and available from a compiler's error; None if the error is about something else."""
    for pattern in _TOO_LARGE:
        match = pattern.search(message)
        if match:
            return TooLarge(float(match[1]) * _UNITS[match[2]], float(match[3]) * _UNITS[match[4]])
    return None

"""The training step of a config, compiled for a slice that is not there: does it fit, and what does it do."""

import dataclasses
import re
import time
from typing import Any

import jax

from ag_jax.data import tokenizers
from ag_jax.data.text import batching
from ag_jax.planning import costs
from ag_jax.planning.hlo import Program
from ag_jax.planning.topology import Topology
from ag_jax.pretraining import build, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training import sharding

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# "the total memory required for HLO temporaries (22.19G) exceeds available HBM (15.75G)", arguments counted in;
# "Used 17.06G of 15.48G hbm".
_TOO_LARGE = (
    re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)"),
    re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"),
)


def vocabulary(config: ExperimentConfig) -> workloads.Vocabulary:
    """The tokenizer at `data.tokenizer.path`, or what the one that a run trains will be like; no text is read."""
    tokenizer = config.data.tokenizer
    return tokenizers.load(tokenizer.path) if tokenizer.path else workloads.VocabularyInfo(tokenizer.vocabulary_size)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device; `output` is what does not take the place of an argument."""

    arguments: float
    output: float
    temporary: float
    code: float

    @property
    def total(self) -> float:
        """All at once."""
        return self.arguments + self.output + self.temporary + self.code


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A step that fits. reported: the compiler's own analysis, which counts loops once; seconds: it took to compile."""

    memory: Memory
    costs: costs.Costs
    reported: dict[str, float]
    seconds: float


@dataclasses.dataclass(frozen=True)
class TooLarge:
    """A step that does not fit: bytes that a device would need, and those it has."""

    needed: float
    available: float


def compile_step(config: ExperimentConfig, topology: Topology, devices: list[jax.Device]) -> Compiled | TooLarge:
    """Compile the very step that a run of `config` on these devices would train with.

    Raises ValueError if mesh or batch do not go with the number of devices.
    """
    mesh = sharding.make_mesh(config.mesh, devices)
    program = build.make_program(config, vocabulary(config), mesh)
    batch = {
        name: jax.ShapeDtypeStruct(field.shape, field.dtype)
        for name, field in batching.empty_batch(config.data, config.training.batch_size).items()
    }
    began = time.perf_counter()
    lowered = program.train_step.lower(program.abstract, batch, jax.eval_shape(lambda: jax.random.key(0)))
    try:
        executable = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        refusal = too_large(str(error))
        if refusal is None:
            raise
        return refusal
    return _account(executable, topology, time.perf_counter() - began)


def _account(executable: Any, topology: Topology, seconds: float) -> Compiled:
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
    return Compiled(memory, costs.costs(Program(executable.as_text()), topology.devices), reported, seconds)


def too_large(message: str) -> TooLarge | None:
    """What the compiler says of memory that is not enough, in bytes; None if the message is about something else."""
    for pattern in _TOO_LARGE:
        found = pattern.search(message)
        if found:
            return TooLarge(float(found[1]) * _UNITS[found[2]], float(found[3]) * _UNITS[found[4]])
    return None

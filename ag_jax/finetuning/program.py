"""Model, optimizer and compiled steps of fine-tuning, shared by all trials of one task and batch size.

Seed and learning rate are arguments of the compiled steps, so a sweep compiles each shape of a batch once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from ag_jax.attention.adversary import ADVERSARY
from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.attention.kernels import dispatch
from ag_jax.attention.patterns import PatternTokens
from ag_jax.finetuning.kinds import KINDS
from ag_jax.interop.finetuned import Head
from ag_jax.models import heads
from ag_jax.models.config import EncoderConfig
from ag_jax.models.heads import TaskModel
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.base import Objective
from ag_jax.objectives.supervised import Supervised
from ag_jax.pretraining import build
from ag_jax.training import sharding
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.program import Program, make_program
from ag_jax.training.sharding import MeshConfig
from ag_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class ProgramSpec:
    """The settings that compiled fine-tuning steps depend on, which are the key of the cache of compiled programs.

    config: the encoder.
    head: the task's head.
    optimizer: the optimizer, with learning rate 1: `scale_by_peak` multiplies by the trial's.
    steps: the number of steps of a trial, for schedules.
    batch_size: examples of a batch.
    microbatches: parts that a batch is computed in, one after the other.
    guidance: guidance of attention.
    adversarial: the attack that the model is trained against.
    special: the token ids that patterns look for.
    mesh: the shape of the mesh of devices.
    """

    config: EncoderConfig
    head: Head
    optimizer: OptimizerConfig
    steps: int
    batch_size: int
    microbatches: int
    guidance: GuidanceConfig
    adversarial: AdversarialConfig
    special: PatternTokens
    mesh: MeshConfig


class Peak(NamedTuple):
    """The state of `scale_by_peak`: the peak learning rate of a trial."""

    learning_rate: jax.Array


def scale_by_peak(apart: tuple[str, ...] = ()) -> optax.GradientTransformation:
    """Return a transformation that multiplies the updates of all parameters by a peak learning rate, except those of
    the parameters named in `apart`.

    The transformation's state has the peak. The transformations before it must have a schedule with the peak 1.

    apart: parts of the parameters that have a peak of their own, whose updates are not multiplied.
    """

    def update(updates, state: Peak, params=None):
        del params
        scaled = {name: tree for name, tree in updates.items() if name not in apart}
        return updates | jax.tree.map(lambda leaf: leaf * state.learning_rate, scaled), state

    return optax.GradientTransformation(lambda _: Peak(jnp.float32(1)), update)


def make_trial_optimizer(spec: ProgramSpec) -> optax.GradientTransformation:
    """Return the optimizer of a trial, whose state holds the peak learning rate.

    An adversary with `asa.learning_rate` keeps that learning rate.
    """
    adversary = build.adversary_optimizer(spec.adversarial, spec.optimizer)
    apart = (ADVERSARY,) if adversary is not None and spec.adversarial.asa.learning_rate else ()
    return optax.chain(make_optimizer(spec.optimizer, spec.steps, adversary), scale_by_peak(apart))


class TaskProgram(NamedTuple):
    """The model for a task, with its compiled training steps and prediction, for the settings in a `ProgramSpec`
    (encoder, head and training).

    program: the training steps.
    model: the encoder with the task's head.
    predict: (params, batch) -> logits, on every host.
    """

    program: Program
    model: TaskModel
    predict: Callable[[Any, dict[str, jax.Array]], jax.Array]


def with_learning_rate(state: TrainState, learning_rate: float) -> TrainState:
    """Return a training state whose optimizer has the peak learning rate `learning_rate`."""
    before, peak = state.opt_state
    value = jax.device_put(np.float32(learning_rate), peak.learning_rate.sharding)
    return dataclasses.replace(state, opt_state=(before, Peak(value)))


def make_objective(spec: ProgramSpec, model: TaskModel) -> Objective:
    """Return the training objective: the task's loss, with guidance of attention and an attack if `spec` has them."""
    objective = Supervised(model, KINDS[spec.head.kind].loss)
    return build.guided_and_attacked(objective, spec.guidance, spec.adversarial, spec.config, spec.special, spec.steps)


@functools.lru_cache(maxsize=4)
def compiled(spec: ProgramSpec) -> TaskProgram:
    """Return the `TaskProgram` of a spec from a cache, or build it; a batch shape is compiled when it first occurs.

    Raises ValueError if microbatches and devices do not divide the batch.
    """
    mesh = sharding.make_mesh(spec.mesh)
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if spec.batch_size % (spec.microbatches * parts):
        raise ValueError(
            f"a batch of {spec.batch_size} cannot be split into microbatches={spec.microbatches} on mesh.data * "
            f"mesh.fsdp = {parts} devices: choose a batch size that is a multiple of microbatches * mesh.data * "
            f"mesh.fsdp = {spec.microbatches * parts}, or a mesh with fewer devices along data"
        )
    attend = dispatch.choose(
        spec.config.attention,
        mesh,
        head_width=spec.config.width // spec.config.heads,
        length=spec.head.max_length,
        after_dropout=spec.guidance.mode != "none" and spec.guidance.probabilities == "after_dropout",
        rows=sharding.ROWS,
        heads=sharding.RULES["heads"],
    ).attend
    model = spec.head.model(spec.config, attend)
    # Initialised with the reference attention, which has the same parameters and accepts an example of any shape.
    reference_model, row = spec.head.model(spec.config), heads.example(spec.head.kind)

    def init(key: jax.Array) -> Any:
        adversary = adversarial.init(spec.adversarial, spec.config, jax.random.fold_in(key, 1))
        return reference_model.init(key, row, deterministic=True)["params"] | adversary

    def predict(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        logits: Any = model.apply({"params": params}, batch, deterministic=True)
        return logits

    program = make_program(make_objective(spec, model), make_trial_optimizer(spec), init, mesh, spec.microbatches)
    everywhere = NamedSharding(mesh, PartitionSpec())  # because every host reads all logits
    in_shardings = (program.shardings.params, sharding.batch_sharding(mesh))
    return TaskProgram(program, model, jax.jit(predict, in_shardings=in_shardings, out_shardings=everywhere))

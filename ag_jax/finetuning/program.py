"""Model, optimizer and compiled steps of fine-tuning, shared by all trials of one task and batch size.

Seed and `Hyperparameters` are arguments of the compiled steps, so a sweep compiles each shape of a batch once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax
from jax.sharding import NamedSharding, PartitionSpec

from ag_jax.attention.config import GuidanceConfig
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
from ag_jax.training.config import MeshConfig, OptimizerConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import make_optimizer
from ag_jax.training.program import Program, make_program


@dataclasses.dataclass(frozen=True)
class ProgramSpec:
    """The settings that compiled fine-tuning steps depend on, which are the key of the cache of compiled programs.

    config: the encoder.
    head: the task's head.
    optimizer: the optimizer, without its hyperparameters.
    steps: the number of steps of a trial, for schedules.
    batch_size: examples of a batch.
    microbatches: parts that a batch is computed in, one after the other.
    guidance: guidance of attention, without its hyperparameter.
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


def make_trial_optimizer(spec: ProgramSpec, hyperparameters: Hyperparameters) -> optax.GradientTransformation:
    """Return the optimizer of a trial; an adversary with `asa.learning_rate` has that learning rate."""
    settings = hyperparameters.in_optimizer(spec.optimizer)
    return make_optimizer(settings, spec.steps, build.adversary_optimizer(spec.adversarial, settings))


class TaskProgram(NamedTuple):
    """A task's model with its compiled training steps and prediction function, made from a `ProgramSpec`.

    program: the training steps.
    model: the encoder with the task's head.
    predict: (params, batch) -> logits, on every host.
    """

    program: Program
    model: TaskModel
    predict: Callable[[Any, dict[str, jax.Array]], jax.Array]


def make_objective(spec: ProgramSpec, model: TaskModel, hyperparameters: Hyperparameters) -> Objective:
    """Return the training objective: the task's loss, with guidance of attention and an attack if `spec` has them."""
    objective, guided = Supervised(model, KINDS[spec.head.kind].loss), hyperparameters.in_guidance(spec.guidance)
    return build.guided_and_attacked(objective, guided, spec.adversarial, spec.config, spec.special, spec.steps)


@functools.lru_cache(maxsize=4)
def compiled(spec: ProgramSpec) -> TaskProgram:
    """Return the `TaskProgram` of a spec from a cache, or build it; a batch shape is compiled when it first occurs.

    Raises ValueError if microbatches and devices do not divide the batch, or `mesh.tensor` the heads.
    """
    mesh = sharding.make_mesh(spec.mesh)
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if spec.batch_size % (spec.microbatches * parts):
        raise ValueError(
            f"a batch of {spec.batch_size} cannot be split into microbatches={spec.microbatches} on mesh.data * "
            f"mesh.fsdp = {parts} devices: choose a multiple of {spec.microbatches * parts}"
        )
    if spec.config.heads % mesh.shape["tensor"]:
        raise ValueError(
            f"mesh.tensor={mesh.shape['tensor']} must divide the {spec.config.heads} attention heads of the checkpoint"
        )
    attend = dispatch.choose(
        spec.config.attention,
        mesh,
        dispatch.Sizes(
            spec.config.heads, spec.config.head_width, spec.head.max_length, spec.config.dtype, spec.guidance.loss
        ),
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

    objective = functools.partial(make_objective, spec, model)
    program = make_program(
        objective, functools.partial(make_trial_optimizer, spec), init, mesh, spec.batch_size // spec.microbatches
    )
    everywhere = NamedSharding(mesh, PartitionSpec())  # because every host reads all logits
    in_shardings = (program.shardings.params, sharding.batch_sharding(mesh))
    return TaskProgram(program, model, jax.jit(predict, in_shardings=in_shardings, out_shardings=everywhere))

"""What trials of one task and batch size share: model, optimizer and compiled steps.

Seed and learning rate are arguments of the compiled steps, so a sweep compiles each shape of a batch once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ag_jax.attention import guidance
from ag_jax.attention.adversary import ADVERSARY
from ag_jax.attention.guidance import GuidanceConfig
from ag_jax.attention.kernels import dispatch
from ag_jax.attention.patterns import SpecialTokens
from ag_jax.interop.finetuned import Head
from ag_jax.models import heads
from ag_jax.models.config import EncoderConfig
from ag_jax.models.heads import TaskModel
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.losses import Objective
from ag_jax.objectives.supervised import Supervised
from ag_jax.pretraining import build, mask_trace
from ag_jax.training import sharding
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.sharding import MeshConfig
from ag_jax.training.state import TrainState, abstract_state, state_shardings
from ag_jax.training.step import compile_train_step

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a compiled step depends on; optimizer.learning_rate is 1, its place is taken by the trial's."""

    config: EncoderConfig
    head: Head
    optimizer: OptimizerConfig
    steps: int
    batch_size: int
    microbatches: int
    guidance: GuidanceConfig
    adversarial: AdversarialConfig
    special: SpecialTokens
    mesh: MeshConfig


class Peak(NamedTuple):
    """The learning rate at its peak, as a part of the optimizer's state."""

    learning_rate: jax.Array


def scale_by_peak(apart: tuple[str, ...] = ()) -> optax.GradientTransformation:
    """Updates times the learning rate of the state: what comes before it has a schedule with the peak 1.

    apart: parts of the parameters that have a peak of their own.
    """

    def update(updates, state: Peak, params=None):
        del params
        scaled = {name: tree for name, tree in updates.items() if name not in apart}
        return updates | jax.tree.map(lambda leaf: leaf * state.learning_rate, scaled), state

    return optax.GradientTransformation(lambda _: Peak(jnp.float32(1)), update)


def make_trial_optimizer(plan: Plan) -> optax.GradientTransformation:
    """That of the plan, with the learning rate as a part of its state; an adversary may have one of its own."""
    adversary = build.adversary_optimizer(plan.adversarial, plan.optimizer)
    apart = (ADVERSARY,) if adversary is not None and plan.adversarial.asa.learning_rate else ()
    return optax.chain(make_optimizer(plan.optimizer, plan.steps, adversary), scale_by_peak(apart))


@dataclasses.dataclass(frozen=True)
class Program:
    """The compiled parts of a plan.

    step: (state, batch, key) -> (state, metrics); predict: (params, batch) -> logits; create: (key, learning rate) -> state.
    """

    model: TaskModel
    objective: Objective
    mesh: Mesh
    shardings: TrainState
    abstract: TrainState
    step: Callable[..., Any]
    predict: Callable[[Any, Batch], jax.Array]
    create: Callable[[jax.Array, jax.Array], TrainState]


def make_objective(plan: Plan, model: TaskModel) -> Objective:
    """The task's loss, guided and attacked if the plan says so."""
    objective = Supervised(model)
    if plan.guidance.mode != "none":
        objective = Guided(
            inner=objective,
            config=plan.guidance,
            assignment=guidance.assign_heads(plan.guidance, plan.config.heads),
            heads=plan.config.heads,
            special=plan.special,
            alpha=guidance.coefficient_schedule(plan.guidance, plan.steps),
        )
    trace = mask_trace.read(plan.adversarial, plan.config.layers)
    return adversarial.wrap(
        objective, plan.adversarial, adversarial.Setting(plan.config, plan.special, plan.steps, trace)
    )


@functools.lru_cache(maxsize=4)
def compiled(plan: Plan) -> Program:
    """The program of a plan; shapes of batches are compiled when they first come.

    Raises ValueError if microbatches and devices do not divide the batch.
    """
    mesh = sharding.make_mesh(plan.mesh)
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    if plan.batch_size % (plan.microbatches * parts):
        raise ValueError(
            f"a batch of {plan.batch_size} cannot be split in microbatches={plan.microbatches} over mesh.data * mesh.fsdp = {parts} "
            "devices: choose a batch size that is a multiple of their product, or a mesh with fewer devices along data"
        )
    attend = dispatch.choose(
        plan.config.attention,
        mesh,
        head_width=plan.config.width // plan.config.heads,
        length=plan.head.max_length,
        after_dropout=plan.guidance.mode != "none" and plan.guidance.probabilities == "after_dropout",
        rows=sharding.ROWS,
        heads=sharding.RULES["heads"],
    ).attend
    model = plan.head.model(plan.config, attend)
    objective = make_objective(plan, model)
    optimizer = make_trial_optimizer(plan)
    # The reference has the same parameters, and no demands on the shape of the example.
    fresh, row = plan.head.model(plan.config), heads.example(plan.head.kind)

    def init(key: jax.Array) -> Any:
        beside = adversarial.init(plan.adversarial, plan.config, jax.random.fold_in(key, 1))
        return fresh.init(key, row, deterministic=True)["params"] | beside

    def create(key: jax.Array, learning_rate: jax.Array) -> TrainState:
        params = nn.unbox(init(key))
        before, _ = optimizer.init(params)
        return TrainState(jnp.int32(0), params, (before, Peak(learning_rate)))

    def predict(params: Any, batch: Batch) -> jax.Array:
        return model.apply({"params": params}, batch, deterministic=True)

    make = functools.partial(init, jax.random.key(0))
    shardings = state_shardings(make, optimizer, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    return Program(
        model=model,
        objective=objective,
        mesh=mesh,
        shardings=shardings,
        abstract=abstract_state(make, optimizer, shardings),
        step=compile_train_step(objective, optimizer, plan.microbatches, mesh, shardings),
        predict=jax.jit(
            predict, in_shardings=(shardings.params, sharding.batch_sharding(mesh)), out_shardings=everywhere
        ),
        create=jax.jit(create, out_shardings=shardings),
    )

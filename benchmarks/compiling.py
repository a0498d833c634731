"""The real training step on shapes alone, for benchmarks that compile and need not run."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ag_jax.attention import guidance
from ag_jax.attention.patterns import SpecialTokens
from ag_jax.models.config import EncoderConfig
from ag_jax.models.pretraining import PretrainingModel
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.pretraining import Pretraining
from ag_jax.training import sharding
from ag_jax.training.optimizer import OptimizerConfig, make_optimizer
from ag_jax.training.state import TrainState, state_shardings
from ag_jax.training.step import compile_train_step

STEPS = 100_000


def training_step(*, layers: int, heads: int, length: int, rows: int, mode: str) -> tuple[Any, tuple]:
    """The jitted step of a RoBERTa of width 768 with 52,000 words, and shapes of its arguments."""
    config = EncoderConfig(vocabulary_size=52_000, layers=layers, heads=heads, max_length=length)
    model = PretrainingModel(config)
    objective = Pretraining(model)
    if mode != "none":
        guided = guidance.GuidanceConfig(mode=mode)
        objective = Guided(
            objective,
            guided,
            guidance.assign_heads(guided, heads),
            heads,
            SpecialTokens(delimiters=(0, 2), periods=(4,)),
            guidance.coefficient_schedule(guided, STEPS),
        )
    masked = int(0.15 * length) + 1
    shapes = {
        "tokens": ((rows, length), jnp.int32),
        "original": ((rows, length), jnp.int32),
        "segments": ((rows, length), jnp.int32),
        "valid": ((rows, length), bool),
        "masked_positions": ((rows, masked), jnp.int32),
        "masked_labels": ((rows, masked), jnp.int32),
        "masked_weights": ((rows, masked), jnp.float32),
    }
    batch = {name: jax.ShapeDtypeStruct(*shape) for name, shape in shapes.items()}

    def init():
        example = {name: jnp.zeros(*shape) for name, shape in shapes.items()}
        return model.init(jax.random.key(0), example, deterministic=True)["params"]

    optimizer = make_optimizer(OptimizerConfig(), STEPS)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    params = nn.unbox(jax.eval_shape(init))
    state = TrainState(jax.ShapeDtypeStruct((), jnp.int32), params, jax.eval_shape(optimizer.init, params))
    step = compile_train_step(objective, optimizer, 1, mesh, state_shardings(init, optimizer, mesh))
    return step, (state, batch, jax.eval_shape(lambda: jax.random.key(0)))

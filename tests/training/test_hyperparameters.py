"""Learning rate, warm-up and alpha as arguments of the compiled step: the same training as with constants."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ag_jax.attention import guidance
from ag_jax.attention.config import GuidanceConfig
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.training.config import MeshConfig, OptimizerConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import decays, make_optimizer
from ag_jax.training.program import make_program
from ag_jax.training.sharding import make_mesh
from ag_jax.training.state import TrainState
from ag_jax.training.step import train_step
from tests import tiny

STEPS, WEIGHT_DECAY, CLIP_NORM = 6, 0.1, 0.5
MODEL = PretrainingModel(tiny.config(layers=1, attention_biases=False), next_sentence=False)
GUIDED = functools.partial(tiny.guided, MODEL, total_steps=STEPS, schedule="linear", mode="loss")
POINTS = ((0.03, 2, 5.0), (0.03, 0, 5.0), (0.002, 2, 5.0), (0.03, 2, 0.5))  # learning rate, warm-up, alpha


@pytest.fixture(scope="module")
def program():
    settings = OptimizerConfig(weight_decay=WEIGHT_DECAY, clip_norm=CLIP_NORM, epsilon=1e-4)

    def objective(hyperparameters):
        return GUIDED(alpha=hyperparameters.in_guidance(GUIDED().config).alpha)

    def optimizer(hyperparameters):
        return make_optimizer(hyperparameters.in_optimizer(settings), STEPS)

    def init(key):
        return MODEL.init(key, tiny.batch(), deterministic=True)["params"]

    return make_program(objective, optimizer, init, make_mesh(MeshConfig(data=1), jax.devices()[:1]))


def with_constants(learning_rate, warmup, alpha):
    """The step with optax's own schedules of Python numbers, and alpha (1 - t / T) written out."""
    fall = optax.linear_schedule(learning_rate, 0.0, STEPS - warmup)
    schedule = optax.join_schedules([optax.linear_schedule(0.0, learning_rate, warmup), fall], [warmup])
    adamw = optax.adamw(schedule, eps=1e-4, weight_decay=WEIGHT_DECAY, mask=decays)
    optimizer, guided = optax.chain(optax.clip_by_global_norm(CLIP_NORM), adamw), tiny.guided(MODEL)
    objective = type(guided)(
        guided.inner, guided.config, guided.assignment, 3, guided.special, lambda step: alpha * (1 - step / STEPS)
    )
    return jax.jit(functools.partial(train_step, objective=objective, optimizer=optimizer)), optimizer


def test_the_same_training_as_with_constants(program):
    point, state = POINTS[0], program.create(jax.random.key(0))
    step, optimizer = with_constants(*point)
    expected = TrainState(jnp.int32(0), jax.device_get(state.params), optimizer.init(jax.device_get(state.params)))
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    arguments = Hyperparameters.of(
        OptimizerConfig(learning_rate=point[0], warmup_steps=point[1]), GuidanceConfig(alpha=point[2])
    )
    for number in range(4):
        batch = tiny.batch(seed=number)
        state, metrics = program.train_step(state, batch, jax.random.key(1), arguments)
        expected, wanted = step(expected, batch, jax.random.key(1))
        np.testing.assert_allclose(metrics["loss"][0], wanted["loss"][0], rtol=1e-6)
    for found, of_constants in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, of_constants, rtol=1e-5, atol=1e-6)


def test_one_compilation_for_all_values(program):
    """Each of the three has an effect, and none of them compiles the step again."""
    losses = set()
    for learning_rate, warmup, alpha in POINTS:
        arguments = Hyperparameters(np.float32(learning_rate), np.int32(warmup), np.float32(alpha))
        state = program.create(jax.random.key(0))
        for number in range(3):
            state, metrics = program.train_step(state, tiny.batch(seed=number), jax.random.key(1), arguments)
        losses.add(float(metrics["loss"][0]))
    assert len(losses) == len(POINTS)
    assert program.train_step._cache_size() == 1


def test_hyperparameters_of_settings():
    optimizer, guided = (
        OptimizerConfig(learning_rate=0.25, warmup_steps=3, beta2=0.5),
        GuidanceConfig("loss", alpha=7.0),
    )
    found = Hyperparameters.of(optimizer, guided)
    assert found.in_optimizer(OptimizerConfig(beta2=0.5)) == optimizer
    assert found.in_guidance(GuidanceConfig("loss", alpha_rule="auto")) == guided
    assert float(guidance.coefficient_schedule(found.in_guidance(GuidanceConfig()), 10)(jnp.int32(0))) == 7
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype("float32"), np.dtype("int32")}

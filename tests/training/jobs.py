"""A tiny job on made-up batches that are a pure function of the step, for tests of the loop and its checkpoints."""

import functools

import jax
import numpy as np
from etils import epath

from ag_jax.attention import guidance
from ag_jax.attention.patterns import PatternTokens
from ag_jax.models.config import EncoderConfig
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.training import sharding, summary
from ag_jax.training.config import TrainingConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.job import Job, metrics_evaluator
from ag_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer
from ag_jax.training.program import Program, make_program

ROWS, LENGTH, MASKED, WORDS = 4, 11, 3, 37


def batch(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    tokens = random.integers(5, WORDS, (ROWS, LENGTH), dtype=np.int32)
    lengths = random.integers(5, LENGTH + 1, ROWS)
    weights = (random.random((ROWS, MASKED)) < 0.7).astype(np.float32)
    weights[0, 0] = 1
    return {
        "tokens": tokens,
        "original": tokens,
        "segment_ids": (np.arange(LENGTH)[None, :] < lengths[:, None]).astype(np.int32),
        "token_type_ids": np.zeros((ROWS, LENGTH), np.int32),
        "masked_positions": random.integers(0, 5, (ROWS, MASKED), dtype=np.int32),
        "masked_labels": random.integers(5, WORDS, (ROWS, MASKED), dtype=np.int32),
        "masked_weights": weights,
    }


def tiny_job(
    workdir,
    *,
    width: int = 12,
    batches=lambda start, stop: (batch(step) for step in range(start, stop)),
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-2),
    **training,
) -> Job:
    """A guided two-layer model with dropout; `training` changes fields of its `TrainingConfig`."""
    settings = {
        "steps": 12,
        "batch_size": ROWS,
        "log_every": 5,
        "evaluate_every": 6,
        "checkpoint_every": 4,
        "tensorboard": False,
    }
    config = TrainingConfig(**(settings | training))
    program = tiny_program(width, optimizer, config.steps)
    hyperparameters = Hyperparameters()
    metric = program.make_objective(hyperparameters).primary_metric.metric
    return Job(
        name="tiny",
        config=config,
        workdir=epath.Path(workdir),
        program=program,
        hyperparameters=hyperparameters,
        key=jax.random.key(5),
        create=lambda: program.create(jax.random.key(3)),
        learning_rate=learning_rate_schedule(optimizer, config.steps),
        batches=batches,
        evaluators=(metrics_evaluator(program, hyperparameters, lambda: [batch(1000), batch(1001)]),),
        describe=lambda evaluation: f"{metric} {evaluation.values[metric]:.3f}",
        finish=lambda state, progress, beat: summary.summarise(epath.Path(workdir), metric, progress),
    )


@functools.cache
def tiny_program(width: int, optimizer: OptimizerConfig, steps: int) -> Program:
    """Compiled once for all tests of a process."""
    model = PretrainingModel(EncoderConfig(vocabulary_size=WORDS, layers=2, heads=3, width=width, max_length=LENGTH))
    guided = guidance.GuidanceConfig(mode="loss", fraction=1.0)
    objective = Guided(
        Pretraining(model),
        guided,
        guidance.assign_heads(guided, 3),
        3,
        PatternTokens((0, 2), (5,)),
        guidance.coefficient_schedule(guided, steps),
    )

    def init(key):
        return model.init(key, batch(0), deterministic=True)["params"]

    mesh = sharding.make_mesh(sharding.MeshConfig(data=1), jax.devices()[:1])
    return make_program(lambda _: objective, lambda _: make_optimizer(optimizer, steps), init, mesh)

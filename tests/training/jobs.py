"""A tiny job on made-up batches that are a pure function of the step, for tests of the loop and its checkpoints."""

import contextlib
import functools

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.training import sharding, summary
from ag_jax.training.config import MeshConfig, OptimizerConfig, TrainingConfig
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.job import Job, metrics_evaluator
from ag_jax.training.optimizer import learning_rate_schedule, make_optimizer
from ag_jax.training.program import Program, make_program
from tests import tiny

ROWS, ASSIGNMENT = 4, (("next", 1), ("prev", 1), ("first", 1))
OPTIMIZER = OptimizerConfig(learning_rate=1e-2)


class WandbRun:
    """Stands in for a run at wandb.

    started: the arguments with which it was started, those without a name first.
    ended: whether it had failed, for each time it was ended.
    """

    def __init__(self, *started, **named):
        self.started, self.ended = (*started, *named.values()), []

    def log(self, step, values):
        pass

    def finish(self, failed):
        self.ended.append(failed)


@contextlib.contextmanager
def wandb_runs(module):
    """Replace the `WandbRun` of a module, and yield the list of the runs that are started meanwhile."""
    runs = []

    def start(*started, **named):
        runs.append(WandbRun(*started, **named))
        return runs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WandbRun", start)
        yield runs


def batch(seed: int) -> dict[str, np.ndarray]:
    lengths = np.random.default_rng(seed).integers(3, tiny.LENGTH + 1, ROWS)
    return tiny.batch(lengths.tolist(), seed=seed)


def tiny_job(workdir, *, batches=lambda start, stop: (batch(step) for step in range(start, stop)), **training) -> Job:
    """A guided model with dropout; `training` changes fields of its `TrainingConfig`."""
    settings = {"steps": 12, "batch_size": ROWS, "log_every": 5, "evaluate_every": 6, "checkpoint_every": 4}
    config = TrainingConfig(**({"tensorboard": False, "milestones": ()} | settings | training))
    program, hyperparameters = tiny_program(config.steps), Hyperparameters()
    metric = program.make_objective(hyperparameters).primary_metric.metric
    return Job(
        name="tiny",
        config=config,
        workdir=epath.Path(workdir),
        program=program,
        hyperparameters=hyperparameters,
        key=jax.random.key(5),
        create=lambda: program.create(jax.random.key(3)),
        learning_rate=learning_rate_schedule(OPTIMIZER, config.steps),
        batches=batches,
        evaluators=(metrics_evaluator(program, hyperparameters, lambda: [batch(1000), batch(1001)]),),
        describe=lambda evaluation: f"{metric} {evaluation.values[metric]:.3f}",
        finish=lambda state, progress, beat: summary.summarise(epath.Path(workdir), metric, progress),
    )


@functools.cache
def tiny_program(steps: int) -> Program:
    """Compiled once for all tests of a process; with few parameters, because checkpoints take time for each."""
    biases = {"attention_biases": False, "feedforward_biases": False, "norm_biases": False}
    model = PretrainingModel(tiny.config(dropout=0.1, attention_dropout=0.1, **biases), next_sentence=False)
    objective = tiny.guided(model, ASSIGNMENT, total_steps=steps)

    def init(key):
        return model.init(key, batch(0), deterministic=True)["params"]

    mesh = sharding.make_mesh(MeshConfig(data=1), jax.devices()[:1])
    return make_program(lambda _: objective, lambda _: make_optimizer(OPTIMIZER, steps), init, mesh)

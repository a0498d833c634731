"""A tiny trainee on made-up batches that are a pure function of the step, for tests of training and its checkpoints."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.training import journal, sharding, summary
from ag_jax.training.config import MeshConfig, OptimizerConfig, TrainingConfig
from ag_jax.training.criterion import Criterion
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import learning_rate_schedule, make_optimizer
from ag_jax.training.program import Program, make_program
from ag_jax.training.train import train
from ag_jax.training.trainee import mean_metrics
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
def wandb_runs():
    """Replace the runs at wandb that `train` starts, and yield the list of those that are started meanwhile."""
    runs = []

    def start(*started, **named):
        runs.append(WandbRun(*started, **named))
        return runs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "WandbRun", start)
        yield runs


def batch(seed: int) -> dict[str, np.ndarray]:
    lengths = np.random.default_rng(seed).integers(3, tiny.LENGTH + 1, ROWS)
    return tiny.batch(lengths.tolist(), seed=seed)


def evaluate(params, step, beat, steps=12):
    return mean_metrics(tiny_program(steps), Hyperparameters(), [batch(1000), batch(1001)], params, step, beat)


@dataclasses.dataclass
class Tiny:
    """A guided model with dropout, as `train` trains it; fields stand for what a test replaces."""

    workdir: epath.Path
    config: TrainingConfig
    program: Program
    key: jax.Array
    batches: Callable
    evaluate: Callable
    finish: Callable
    utilisation: Callable = lambda start, stop, seconds: None
    criterion: Criterion = Criterion("mlm_loss", is_lower_better=True)
    milestones: tuple[int, ...] = ()
    name = "tiny"
    settings: Any = dataclasses.field(default_factory=dict)
    identity: Any = dataclasses.field(default_factory=dict)
    hyperparameters = Hyperparameters()
    evaluation_batches = 2

    def init(self):
        return self.program.create(jax.random.key(3))

    def start(self, like):
        return None

    def check(self, progress):
        pass

    def learning_rate(self, step):
        return float(learning_rate_schedule(OPTIMIZER, self.config.steps)(step))

    def describe(self, evaluation):
        return f"mlm_loss {evaluation.values['mlm_loss']:.3f}"

    def remedy(self, checkpoint):
        return f"The last good checkpoint: {checkpoint}"


def of_steps(start, stop):
    return (batch(step) for step in range(start, stop))


def tiny_trainee(workdir, *, batches=of_steps, **training) -> Tiny:
    """A trainee; `training` changes fields of its `TrainingConfig`."""
    settings = {"steps": 12, "batch_size": ROWS, "log_every": 5, "evaluate_every": 6, "checkpoint_every": 4}
    config = TrainingConfig(**({"tensorboard": False, "milestones": ()} | settings | training))
    return Tiny(
        workdir=epath.Path(workdir),
        config=config,
        program=tiny_program(config.steps),
        key=jax.random.key(5),
        batches=batches,
        evaluate=functools.partial(evaluate, steps=config.steps),
        finish=lambda outcome, beat: summary.summarise(epath.Path(workdir), "mlm_loss", outcome.progress),
        milestones=config.milestone_steps(),
    )


def run(trainee: Tiny, **options):
    return train(trainee, trainee.workdir, **options)


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

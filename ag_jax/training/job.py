"""Job: the description of a pre-training run or fine-tuning trial that the training loop executes."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import jax
import numpy as np
from etils import epath

from ag_jax.objectives.base import Objective
from ag_jax.training import metrics as metric_sums
from ag_jax.training import sharding
from ag_jax.training.checkpoint import Checkpoint
from ag_jax.training.config import TrainingConfig
from ag_jax.training.criterion import Evaluation
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.metrics import Sums
from ag_jax.training.program import Program
from ag_jax.training.state import TrainState
from ag_jax.training.wandb_run import WandbRun

HostBatch = dict[str, np.ndarray]
Beat = Callable[[], None]  # reports progress to the watchdog


class Evaluator(Protocol):
    """Function that evaluates the model on held-out data during training and returns metrics, {name: value}.

    A value is a number or a list of numbers, one for each layer. The function calls `beat` after every batch. Every
    host calls an evaluator alike and gets the same values.
    """

    def __call__(self, params: Any, step: int, beat: Beat) -> dict[str, Any]: ...


@dataclasses.dataclass
class Progress:
    """The training loop's progress, saved in checkpoints beside the training state: metric sums, tokens, evaluations.

    interval: sums of the metrics since the last row in `metrics.jsonl`.
    since_evaluation: sums of the primary metric since the last evaluation.
    seconds: duration of the steps since the last evaluation.
    run: sums of the primary metric since the first step.
    tokens: number of tokens seen, without padding.
    history: the evaluations so far, in order.
    start_sha256: digest of what a fine-tuning started from; None for other jobs.
    settings: the settings of a pre-training run, as in its `config.json`; None for other jobs.
    rows: length and checksum of `metrics.jsonl` when the checkpoint was saved (`MetricWriter.digest`); None at the
        start of a job.
    """

    interval: Sums = dataclasses.field(default_factory=dict)
    since_evaluation: Sums = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    run: Sums = dataclasses.field(default_factory=dict)
    tokens: int = 0
    history: list[Evaluation] = dataclasses.field(default_factory=list)
    start_sha256: str | None = None
    settings: dict[str, Any] | None = None
    rows: list[int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the progress as a dict of JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Progress":
        """Return the progress that `to_json` turned into `stored`, or a new job's progress if `stored` is empty."""
        if not stored:
            return cls()
        return cls(**{**stored, "history": [Evaluation(**evaluation) for evaluation in stored["history"]]})

    def is_evaluated(self, step: int) -> bool:
        """Return whether the newest evaluation was done after the training step `step`."""
        return bool(self.history) and self.history[-1].step == step


def never(history: list[Evaluation]) -> bool:
    """Return False, the default of `Job.stop`: the job trains to its last step."""
    del history
    return False


def no_checkpoint(like: TrainState) -> Checkpoint | None:
    """Return None, the default of `Job.first`: the job begins at step 0."""
    del like
    return None


def keep_nothing(state: TrainState, history: list[Evaluation]) -> bool:
    """Save nothing and return False, the default of `Job.keep`: the job does not save its best model."""
    del state, history
    return False


@dataclasses.dataclass(frozen=True)
class Job:
    """Description of a pre-training run or fine-tuning trial: everything that the training loop needs.

    Jobs that differ only in seed and hyperparameters share their `program`.

    name: name in progress lines.
    config: number of steps, and how often to log, evaluate and save.
    workdir: directory of metrics and checkpoints.
    program: the compiled steps.
    hyperparameters: the settings of this job that are arguments of these steps.
    key: random key of dropout; each step folds its number into it.
    create: () -> state at step 0; called if there is no checkpoint, and `first` returns None.
    first: (shapes, types and shardings of a state) -> the checkpoint of another run that this one goes on from, or None
        if it begins at step 0; called if there is no checkpoint.
    learning_rate: step -> learning rate, for `metrics.jsonl`.
    batches: (start, stop) -> batches of these steps; of each batch, only the rows that this host feeds.
    evaluators: functions that measure the model every `config.evaluate_every` steps and after the last step.
    describe: evaluation -> text of its progress line.
    finish: (state, progress, beat) -> the result of `Loop.run`; called after the last step and its evaluation.
    stop: history -> whether to stop before the last step; called after each evaluation.
    keep: (state, history) -> whether it saved something; called after each evaluation, to save the best model so far.
        If it saved something, a checkpoint is saved next, so that both are of the same step.
    best: history -> step of the evaluation whose checkpoint is kept beside the newest ones; None keeps no other.
    read_progress: JSON values of a checkpoint, empty if there is none -> `Progress`.
    remedy: path of the last good checkpoint, or "none" -> advice for the error that the loss is not finite.
    wandb: () -> run at Weights & Biases that gets the metrics, or None.
    saved_steps: steps whose checkpoints are saved and never deleted, besides those that `config` names.
    kept_steps: steps whose checkpoints are never deleted, besides those that `config` names.
    utilisation: (first step, last step + 1, seconds of these steps) -> share of the devices' peak FLOP/s that the model
        uses (MFU), for `metrics.jsonl`; None if the peak or the FLOPs of a step are unknown.
    evaluation_batches: number of batches of an evaluation, for its progress; None if it is unknown.
    pause_at: step after which the loop saves the state and ends, without the evaluation and the result of the last
        step; the next loop goes on from there. None never pauses.
    pause: like `finish`, called instead of it after a pause.
    """

    name: str
    config: TrainingConfig
    workdir: epath.Path
    program: Program
    hyperparameters: Hyperparameters
    key: jax.Array
    create: Callable[[], TrainState]
    learning_rate: Callable[[int], float]
    batches: Callable[[int, int], Iterator[HostBatch]]
    evaluators: tuple[Evaluator, ...]
    describe: Callable[[Evaluation], str]
    finish: Callable[[TrainState, Progress, Beat], dict[str, Any]]
    first: Callable[[TrainState], Checkpoint | None] = no_checkpoint
    stop: Callable[[list[Evaluation]], bool] = never
    keep: Callable[[TrainState, list[Evaluation]], bool] = keep_nothing
    best: Callable[[list[Evaluation]], int | None] = lambda history: None
    read_progress: Callable[[dict[str, Any]], Progress] = Progress.from_json
    remedy: Callable[[str], str] = lambda path: f"The last good checkpoint: {path}"
    wandb: Callable[[], WandbRun | None] = lambda: None
    saved_steps: tuple[int, ...] = ()
    kept_steps: tuple[int, ...] = ()
    utilisation: Callable[[int, int, float], float | None] | None = None
    evaluation_batches: int | None = None
    pause_at: int | None = None
    pause: Callable[[TrainState, Progress, Beat], dict[str, Any]] = lambda state, progress, beat: {}

    @property
    def objective(self) -> Objective:
        """The training objective of the job, made with the job's hyperparameters."""
        return self.program.make_objective(self.hyperparameters)


def metrics_evaluator(
    program: Program, hyperparameters: Hyperparameters, batches: Callable[[], Iterable[HostBatch]]
) -> Evaluator:
    """Return an evaluator that computes the program's objective on held-out batches and returns its metrics.

    Loss terms are weighted with their coefficients at the training step after which the model is evaluated.

    batches: () -> the held-out batches; of each batch, only the rows that this host feeds.
    """

    def evaluate(params: Any, step: int, beat: Beat) -> dict[str, Any]:
        """Return the objective's metrics after a training step (see `Evaluator`)."""
        sums: Sums = {}
        for batch in batches():
            placed = sharding.place_batch(batch, program.mesh)
            metrics = program.evaluation_step(params, placed, np.int32(step), hyperparameters)
            sums = metric_sums.add(sums, jax.device_get(metrics))
            beat()
        return metric_sums.divide(sums)

    return evaluate

"""What `train` trains: the interface of a pre-training run and of a trial of fine-tuning, and a run's progress."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from ag_jax.training import metrics as metric_sums
from ag_jax.training import sharding
from ag_jax.training.checkpoint import Checkpoint, Checkpoints
from ag_jax.training.config import TrainingConfig
from ag_jax.training.criterion import Criterion, Evaluation
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.metrics import Sums
from ag_jax.training.program import Program
from ag_jax.training.state import TrainState

HostBatch = dict[str, np.ndarray]  # of a batch, the rows that this host feeds to its devices
Metrics = dict[str, Any]  # name -> a number, or a list of numbers, one for each layer
Beat = Callable[[], None]  # tells the watchdog that long work goes on


@dataclasses.dataclass
class Progress:
    """The progress of a run, saved in checkpoints beside the training state: metric sums, tokens, evaluations.

    interval: sums of the metrics since the last row in `metrics.jsonl`.
    since_evaluation: sums of the primary metric since the last evaluation.
    seconds: duration of the steps since the last evaluation.
    run: sums of the primary metric since the first step.
    tokens: number of tokens seen, without padding.
    history: the evaluations so far, in order.
    start_sha256: digest of what a trial of fine-tuning started from; None for pre-training.
    settings: the settings of a pre-training run, as in its `config.json`; None for fine-tuning.
    rows: length and checksum of `metrics.jsonl` when the checkpoint was saved (`MetricWriter.digest`); None at the
        start of a run.
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
        """Return the progress that `to_json` turned into `stored`."""
        return cls(**{**stored, "history": [Evaluation(**evaluation) for evaluation in stored["history"]]})

    def is_evaluated(self, step: int) -> bool:
        """Return whether the newest evaluation was done after the training step `step`."""
        return bool(self.history) and self.history[-1].step == step

    @property
    def total_seconds(self) -> float:
        """Seconds of training over all restarts, with compilation and without evaluations."""
        return sum(evaluation.seconds for evaluation in self.history) + self.seconds


@dataclasses.dataclass(frozen=True)
class Start:
    """Where training starts or resumes.

    state: the state of a checkpoint, or a new one.
    progress: the progress up to this state.
    is_resumed: whether a checkpoint of this run has them.
    end: why no further step is trained, as in `Outcome`; None if training goes on.
    """

    state: TrainState
    progress: Progress
    is_resumed: bool
    end: str | None

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return int(self.state.step)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What training has led to when it ends or pauses.

    state: the state after the last step.
    progress: the progress, with an evaluation of this state.
    end: why no further step is trained: `steps`, `time_limit` or `patience`; None at a pause.
    best: the best evaluation; None if the metric was never a finite number.
    checkpoints: the checkpoints of the run.
    like: shapes, types and shardings of the state.
    """

    state: TrainState
    progress: Progress
    end: str | None
    best: Evaluation | None
    checkpoints: Checkpoints
    like: TrainState

    def best_params(self) -> Any:
        """Return the parameters at the best evaluation: those of the last step, or else of its checkpoint.

        With `config.keep_best`, it has a checkpoint. Every host must call this.
        """
        if self.best is None or self.best.step == int(self.state.step):
            return self.state.params
        self.checkpoints.wait()
        return self.checkpoints.restore(self.best.step, self.like).state.params


class Trainee(Protocol):
    """A model with its data, objective and optimizer, as `train` trains it.

    Every host has an equal trainee, and calls its methods alike.

    name: name in progress lines and at Weights & Biases.
    config: number of steps, and how often to log, evaluate and save.
    settings: all settings, for Weights & Biases.
    identity: fields of `Progress` that say what is trained, for checkpoints: the settings, or the digest of the start.
    program: the compiled steps, which trainees share that differ only in seed and hyperparameters.
    hyperparameters: the settings that are arguments of these steps.
    key: random key of dropout; each step folds its number into it.
    criterion: which evaluation is the best, and when evaluations without a better one end the run.
    milestones: steps whose checkpoints are saved and never deleted.
    evaluation_batches: number of batches of an evaluation, for its progress; None if it is unknown.
    """

    name: str
    config: TrainingConfig
    settings: dict[str, Any]
    identity: dict[str, Any]
    program: Program
    hyperparameters: Hyperparameters
    key: jax.Array
    criterion: Criterion
    milestones: tuple[int, ...]
    evaluation_batches: int | None

    def init(self) -> TrainState:
        """Return the state at step 0."""

    def start(self, like: TrainState) -> Checkpoint | None:
        """Return the checkpoint of another run that this run, which has none, goes on from; None to begin with `init`.

        like: shapes, types and shardings of the state.
        """

    def check(self, progress: Progress) -> None:
        """Raise ValueError if a checkpoint with this progress is of another run: other settings, or another start."""

    def batches(self, start: int, stop: int) -> Iterator[HostBatch]:
        """Yield the training batches after step `start` up to step `stop`."""

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the update after `step` steps, for `metrics.jsonl`."""

    def evaluate(self, params: Any, step: int, beat: Beat) -> Metrics:
        """Return the metrics of held-out data for the parameters after a step; call `beat` after every batch."""

    def describe(self, evaluation: Evaluation) -> str:
        """Return the progress line of an evaluation."""

    def utilisation(self, start: int, stop: int, seconds: float) -> float | None:
        """Return the share of the devices' peak FLOP/s that the steps after `start` up to `stop` used (MFU).

        seconds: duration of these steps.

        None if the peak or the FLOPs of a step are unknown.
        """

    def remedy(self, checkpoint: str) -> str:
        """Return advice for a loss that is not finite; `checkpoint` is the path of the last good one, or `none`."""

    def finish(self, outcome: Outcome, beat: Beat) -> Any:
        """Write what the trainee leaves beside its checkpoints, such as predictions; return the result of training."""


def mean_metrics(
    program: Program,
    hyperparameters: Hyperparameters,
    batches: Iterable[HostBatch],
    params: Any,
    step: int,
    beat: Beat = lambda: None,
) -> Metrics:
    """Return the metrics of the program's objective over all batches, without dropout and attacks.

    Loss terms have their coefficients at the training step after which the model is evaluated.
    """
    sums: Sums = {}
    for batch in batches:
        placed = sharding.place_batch(batch, program.mesh)
        metrics = program.evaluation_step(params, placed, np.int32(step), hyperparameters)
        sums = metric_sums.add(sums, jax.device_get(metrics))
        beat()
    return metric_sums.divide(sums)

"""Jobs: what the training loop runs, such as a pre-training run or a fine-tuning trial."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import jax
import numpy as np
from etils import epath

from ag_jax.training import metrics as metric_sums
from ag_jax.training import sharding
from ag_jax.training.config import TrainingConfig
from ag_jax.training.metrics import Sums
from ag_jax.training.program import Program
from ag_jax.training.state import TrainState
from ag_jax.training.wandb_run import WandbRun

Batch = dict[str, np.ndarray]
Beat = Callable[[], None]  # tells the watchdog that something was done


class Evaluator(Protocol):
    """A measurement of the model during training: {name: value}, a number or a list of numbers, one for each layer.

    `beat` is called after every batch. Every host calls an evaluator alike and gets the same values.
    """

    def __call__(self, params: Any, step: int, beat: Beat) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The results of a job's evaluators after one of its steps.

    step: the number of updates done.
    train_loss: the mean of the primary metric over the steps since the evaluation before; None if they had no weight.
    seconds: the time of these steps.
    values: what the evaluators returned.
    """

    step: int
    train_loss: float | None
    seconds: float
    values: dict[str, Any]


@dataclasses.dataclass
class Progress:
    """What a checkpoint holds besides the state.

    interval: sums of the metrics since the last row in `metrics.jsonl`.
    since_evaluation: sums of the primary metric since the last evaluation; `seconds`: the time of these steps.
    run: sums of the primary metric since the first step.
    tokens: tokens seen, without padding.
    history: the evaluations so far, in order.
    """

    interval: Sums = dataclasses.field(default_factory=dict)
    since_evaluation: Sums = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    run: Sums = dataclasses.field(default_factory=dict)
    tokens: int = 0
    history: list[Evaluation] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it as values that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Progress":
        """Read what `to_json` returned, also of earlier versions, which saved no evaluations."""
        history = [Evaluation(**evaluation) for evaluation in stored.get("history", [])]
        return cls(**{**stored, "history": history})

    def is_evaluated(self, step: int) -> bool:
        """Whether the model was evaluated after `step`."""
        return bool(self.history) and self.history[-1].step == step


def never(history: list[Evaluation]) -> bool:
    """A stop rule that never stops a job before its last step."""
    del history
    return False


def keep_nothing(state: TrainState, history: list[Evaluation]) -> bool:
    """Save nothing after an evaluation."""
    del state, history
    return False


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that the loop needs. Jobs that differ only in seed or learning rate share their `program`.

    name: the name in progress lines.
    config: the number of steps, and how often to log, evaluate and save.
    workdir: the directory of metrics and checkpoints.
    program: the compiled steps.
    key: the random key of dropout.
    create: () -> the state at step 0; called if there is no checkpoint.
    learning_rate: step -> learning rate, for `metrics.jsonl`.
    batches: (start, stop) -> the batches of these steps, of each the rows that this host feeds.
    evaluators: measure the model every `config.evaluate_every` steps and after the last one.
    describe: evaluation -> the text of its progress line.
    finish: (state, progress, beat) -> what `Loop.run` returns; called after the last step and its evaluation.
    stop: history -> whether to stop before the last step; called after each evaluation.
    keep: (state, history) -> whether it saved something; called after each evaluation, to save the best model so far.
        A checkpoint follows what it saves, so the two go together.
    read_progress: the progress of a checkpoint, from JSON.
    remedy: path of the last good checkpoint, or "none" -> what to do if the loss is not finite, for the error.
    wandb: () -> a run at Weights & Biases that gets the metrics, or None.
    kept_steps: steps whose checkpoints stay, besides those that `config` names.
    """

    name: str
    config: TrainingConfig
    workdir: epath.Path
    program: Program
    key: jax.Array
    create: Callable[[], TrainState]
    learning_rate: Callable[[int], float]
    batches: Callable[[int, int], Iterator[Batch]]
    evaluators: tuple[Evaluator, ...]
    describe: Callable[[Evaluation], str]
    finish: Callable[[TrainState, Progress, Beat], dict[str, Any]]
    stop: Callable[[list[Evaluation]], bool] = never
    keep: Callable[[TrainState, list[Evaluation]], bool] = keep_nothing
    read_progress: Callable[[dict[str, Any]], Progress] = Progress.from_json
    remedy: Callable[[str], str] = lambda path: f"The last good checkpoint: {path}"
    wandb: Callable[[], WandbRun | None] = lambda: None
    kept_steps: tuple[int, ...] = ()


def metrics_evaluator(program: Program, batches: Callable[[], Iterable[Batch]]) -> Evaluator:
    """Return an evaluator of the objective's own metrics over `batches()`, at the loss coefficients of the step.

    batches: () -> the held-out batches, of each the rows that this host feeds.
    """

    def evaluate(params: Any, step: int, beat: Beat) -> dict[str, Any]:
        sums: Sums = {}
        for batch in batches():
            placed = sharding.place_batch(batch, program.mesh)
            metrics = program.evaluation_step(params, placed, np.int32(step))
            sums = metric_sums.add(sums, jax.device_get(metrics))
            beat()
        return metric_sums.divide(sums)

    return evaluate

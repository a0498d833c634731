"""The loop: batches in, steps, metrics and checkpoints out, until done or told to stop.

Every step is a function of (config, step number), and a checkpoint holds everything else: the state, and the sums of
metrics that are not written yet. So a run that is killed and started again ends as if nothing had happened.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
import optax
from etils import epath
from jax.sharding import Mesh

from ag_jax.distributed import hosts
from ag_jax.distributed.watchdog import Watchdog
from ag_jax.objectives.losses import Objective
from ag_jax.training import metrics as metric_sums
from ag_jax.training import sharding
from ag_jax.training import state as train_state
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.config import TrainingConfig
from ag_jax.training.metrics import MetricWriter, Sums
from ag_jax.training.progress import ProgressLine, Silence
from ag_jax.training.state import TrainState, create_state, state_shardings, with_params
from ag_jax.training.step import compile_evaluation_step, compile_train_step
from ag_jax.training.stopping import Interrupted, StopSignal
from ag_jax.training.wandb_run import WandbRun

Batch = dict[str, np.ndarray]
_POSITION = ("step", "split", "tokens_seen")  # fields of a row that say where it stands, not what was measured


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that the loop needs, ready made.

    init: makes fresh parameters, boxed with their axis names; key: of the run's dropout.
    given: the parameters to start from, as far as they are not to be fresh; called by a run that has no checkpoint.
    batches: (start, stop) -> the batches of those steps; validation: the held-out batches, anew at each call; of each
    batch those rows that this host feeds.
    learning_rate: of a step, to be reported; wandb: starts the run at wandb that gets the metrics, if there is to be one.
    """

    name: str
    config: TrainingConfig
    workdir: epath.Path
    objective: Objective
    optimizer: optax.GradientTransformation
    learning_rate: Callable[[int], float]
    init: Callable[[], Any]
    key: jax.Array
    mesh: Mesh
    batches: Callable[[int, int], Iterator[Batch]]
    validation: Callable[[], Iterable[Batch]]
    given: Callable[[], Any] = dict
    wandb: Callable[[], WandbRun | None] = lambda: None


class NonFiniteError(Exception):
    """The loss or the gradient stopped being a number."""


def job_shardings(job: Job) -> TrainState:
    """Where each piece of the job's state lies."""
    return state_shardings(job.init, job.optimizer, job.mesh)


def abstract_state(job: Job, shardings: TrainState) -> TrainState:
    """Shapes and shardings of the job's state, without making it: what a checkpoint is restored into."""
    return train_state.abstract_state(job.init, job.optimizer, shardings)


def evaluate(
    job: Job, params: Any, step: int, evaluation_step: Callable, done: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Metrics over all validation batches, at the coefficients of `step`; `done()` is called after each batch."""
    sums: Sums = {}
    for batch in job.validation():
        placed = sharding.place_batch(batch, job.mesh)
        sums = metric_sums.add(sums, jax.device_get(evaluation_step(params, placed, np.int32(step))))
        done()
    return metric_sums.divide(sums)


@dataclasses.dataclass
class _Progress:
    """What a checkpoint holds besides the state."""

    interval: Sums = dataclasses.field(default_factory=dict)  # since the last row of metrics
    run: Sums = dataclasses.field(default_factory=dict)  # since the first step
    tokens: int = 0


def no_progress() -> dict[str, Any]:
    """What a checkpoint of step 0 holds besides the state."""
    return dataclasses.asdict(_Progress())


class Loop:
    """One run of `job`, from its newest checkpoint or from the start."""

    def __init__(self, job: Job):
        self.job, config = job, job.config
        self.shardings = job_shardings(job)
        self.train_step = compile_train_step(
            job.objective, job.optimizer, config.microbatches, job.mesh, self.shardings
        )
        self.evaluation_step = compile_evaluation_step(job.objective, job.mesh, self.shardings)
        self.checkpoints = Checkpoints(
            job.workdir / "checkpoints",
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            milestones=config.milestone_steps(),
        )
        self.pending: list[tuple[int, Any]] = []  # metrics of steps, still on the device
        self.saved_step = -1
        self.watchdog = Watchdog(config.step_timeout)

    def run(self) -> dict[str, Any]:
        """Train to the last step; returns the summary (`summary.json` of the run directory).

        Raises NonFiniteError, or Interrupted after a signal, each with everything so far saved.
        """
        with self.watchdog:
            state, start = self._start()
            together, failed = hosts.count() == 1, True
            try:
                with StopSignal() as stop:
                    state = self._steps(state, start, stop)
                summary, together, failed = self._summary(state), True, False
            except (Interrupted, NonFiniteError) as stopped:
                together, failed = True, isinstance(stopped, NonFiniteError)
                raise
            finally:
                self.line.close()
                self.writer.close(failed)
                if together:  # else another host may be gone, for which Orbax would wait
                    self.checkpoints.close()
        return summary

    def _start(self) -> tuple[TrainState, int]:
        """The state to go on with, and its step."""
        job, config = self.job, self.job.config
        with self.watchdog.patience("the newest checkpoint, or fresh parameters"):
            found = self.checkpoints.restore_latest(abstract_state(job, self.shardings))
            if found:
                state, self.progress = found.state, _Progress(**found.progress)
                self.saved_step = int(state.step)
            else:
                state, self.progress = create_state(job.init, job.optimizer, self.shardings), _Progress()
                state = with_params(state, job.given(), self.shardings)
            start = int(state.step)
        self.writer = self.line = Silence()
        if hosts.is_first():
            self.writer = MetricWriter(job.workdir, start, tensorboard=config.tensorboard, wandb=job.wandb())
            self.line = ProgressLine(job.name, start, config.steps, job.objective.headline.metric)
            if found:
                self.line.say(f"resumed from the checkpoint of step {start}")
        return state, start

    def _steps(self, state: TrainState, start: int, stop: StopSignal) -> TrainState:
        job, config, milestones = self.job, self.job.config, self.job.config.milestone_steps()
        self.clock, self.clock_step, self.clock_tokens = time.perf_counter(), start, self.progress.tokens
        for step, batch in enumerate(job.batches(start, config.steps), start + 1):
            placed = sharding.place_batch(batch, job.mesh)
            if step == 1 and 0 in milestones:
                # Before the first checkpoint: a config that does not fit the devices must not leave one.
                with self.watchdog.compiling("the train step"):
                    self.train_step.lower(state, placed, job.key).compile()
                self._save(state)
            with self.watchdog.compiling("the train step"):
                state, step_metrics = self.train_step(state, placed, job.key)
            self.watchdog.follow(step, step_metrics["loss"][0])
            self.pending.append((step, step_metrics))
            stopped = stop.reached()
            if step % config.log_every == 0 or step == config.steps:
                self._log(step)
            if config.evaluate_every and step % config.evaluate_every == 0 and step < config.steps:
                self._evaluate(state, step)
            if step % config.checkpoint_every == 0 or step in milestones or step == config.steps or stopped:
                self._save(state)
            if stopped and step < config.steps:
                self.checkpoints.wait()
                raise Interrupted(f"{stopped}: stopped at step {step} of {config.steps}; everything is saved")
        return state

    def _collect(self) -> None:
        """Bring the steps' metrics from the device into the sums; raise at the first that is not finite."""
        steps, on_device = [step for step, _ in self.pending], [values for _, values in self.pending]
        self.pending, headline = [], self.job.objective.headline.metric
        for step, values in zip(steps, jax.device_get(on_device), strict=True):
            bad = metric_sums.not_finite(values)
            if bad:
                self.checkpoints.wait()
                saved = self.checkpoints.steps()
                path = self.job.workdir / "checkpoints" / str(saved[-1]) if saved else "none"
                raise NonFiniteError(
                    f"{bad[0]} is not finite at step {step}. The last good checkpoint: {path}. "
                    "Lower optimizer.learning_rate, lengthen optimizer.warmup_steps or set optimizer.clip_norm, and start "
                    "in another workdir"
                )
            self.progress.tokens += int(values["tokens"][0])
            self.progress.interval = metric_sums.add(self.progress.interval, values)
            self.progress.run = metric_sums.add(self.progress.run, {headline: values[headline]})

    def _log(self, step: int) -> None:
        self._collect()
        now = time.perf_counter()
        seconds, steps = now - self.clock, step - self.clock_step
        values = metric_sums.divide(self.progress.interval)
        self.progress.interval = {}
        values.pop("tokens")
        coefficients = self.job.objective.coefficients(np.float32(step - 1))
        row = {
            "step": step,
            "split": "train",
            "tokens_seen": self.progress.tokens,
            "learning_rate": float(self.job.learning_rate(step - 1)),
            **values,
            **{f"coefficient/{term}": float(value) for term, value in coefficients.items()},
            "seconds": seconds,
            "tokens_per_second": (self.progress.tokens - self.clock_tokens) / seconds,
        }
        self.writer.write(row)
        self.line.update(row, seconds / max(steps, 1) * (self.job.config.steps - step))
        self.clock, self.clock_step, self.clock_tokens = now, step, self.progress.tokens

    def _evaluate(self, state: TrainState, step: int) -> dict[str, Any]:
        self._collect()
        began = time.perf_counter()
        with self.watchdog.compiling("the evaluation step"):
            values = evaluate(self.job, state.params, step, self.evaluation_step, self.watchdog.beat)
        self.writer.write({"step": step, "split": "validation", "tokens_seen": self.progress.tokens, **values})
        headline = self.job.objective.headline
        self.line.say(f"step {step}: validation {headline.label} {values[headline.metric]:.3f}")
        self.clock += time.perf_counter() - began
        return values

    def _save(self, state: TrainState) -> None:
        self._collect()
        if int(state.step) != self.saved_step:
            self.writer.flush()  # a checkpoint must not know rows of metrics that could still be lost
            with self.watchdog.compiling("the first checkpoint"):
                self.checkpoints.save(state, dataclasses.asdict(self.progress))
            self.saved_step = int(state.step)
        self.watchdog.beat()

    def _summary(self, state: TrainState) -> dict[str, Any]:
        """Train, validation and average train loss, as in Table 3 of the paper; saved as `summary.json`."""
        steps, headline = self.job.config.steps, self.job.objective.headline.metric
        rows = hosts.from_first("the last rows of metrics", self._last_rows)
        validation = rows["validation"] or self._evaluate(state, steps)
        self.writer.flush()
        return {
            "steps": steps,
            "tokens_seen": self.progress.tokens,
            "headline": headline,
            "train_loss": sum(rows["train"]) / len(rows["train"]),
            "validation_loss": validation[headline],
            "average_train_loss": metric_sums.divide(self.progress.run)[headline],
            "validation": {name: value for name, value in validation.items() if name not in _POSITION},
        }

    def _last_rows(self) -> dict[str, Any]:
        """The validation after the last step, None if it is still to be done, and the last twentieth of train losses."""
        self.writer.flush()
        rows = metric_sums.read_metrics(self.job.workdir)
        validation = [row for row in rows if row["split"] == "validation" and row["step"] == self.job.config.steps]
        train = [row[self.job.objective.headline.metric] for row in rows if row["split"] == "train"]
        return {"validation": next(iter(validation), None), "train": train[-max(1, math.ceil(len(train) / 20)) :]}

"""What a run writes while it is trained: rows of metrics, evaluations, checkpoints, and its progress on standard error.

Metrics of steps stay on the device until a row, an evaluation or a checkpoint needs them, because fetching those of a
step waits for it.
"""

import time
from typing import Any

import jax
import numpy as np
from etils import epath

from ag_jax.distributed import hosts, terminal
from ag_jax.distributed.watchdog import Watchdog
from ag_jax.training import metrics as metric_sums
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.criterion import Evaluation
from ag_jax.training.metrics import MetricWriter
from ag_jax.training.progress import ProgressLine, Silence, ValidationProgress
from ag_jax.training.speed import Speedometer
from ag_jax.training.state import TrainState
from ag_jax.training.trainee import Start, Trainee
from ag_jax.training.wandb_run import Labels, WandbRun

LONG_WAIT = 1.0  # seconds of waiting for a save after which a line says so


class NonFiniteError(Exception):
    """Error for a loss, gradient or output of the model that is not finite."""


class Journal:
    """Writer of the metrics, evaluations and checkpoints of one run, from a step on.

    trainee: what is trained.
    workdir: directory of `metrics.jsonl`.
    checkpoints: the checkpoints of the run.
    watchdog: it waits longer while something is compiled, and is told of all progress.
    start: where the run starts or resumes.
    labels: group the run at Weights & Biases.
    """

    def __init__(
        self,
        trainee: Trainee,
        workdir: epath.Path,
        checkpoints: Checkpoints,
        watchdog: Watchdog,
        start: Start,
        labels: Labels,
    ):
        self.trainee, self.checkpoints, self.watchdog, self.progress = trainee, checkpoints, watchdog, start.progress
        self._workdir, self._saved_step = workdir, start.step if start.is_resumed else -1
        self._objective = trainee.program.make_objective(trainee.hyperparameters)
        self._metric = self._objective.primary_metric.metric
        self._pending: list[tuple[int, Any]] = []  # metrics of steps, still on the device
        self._has_logged = self._has_evaluated = False
        self.shapes: set[tuple[int, ...]] = set()  # of the batches for which the train step is compiled
        saved = hosts.from_first("the checkpoints", checkpoints.steps)
        self._deleted = {evaluation.step for evaluation in self.progress.history} - {*saved}
        self._protect_best()
        self.writer: MetricWriter | Silence = Silence()
        self.line: ProgressLine | Silence = Silence()
        if hosts.is_first():
            self._open(start, labels)
        self.speed, self._mark = Speedometer(start.step, self.progress.tokens), time.perf_counter()

    def _open(self, start: Start, labels: Labels) -> None:
        """Open the files of metrics, the run at Weights & Biases, and the progress line."""
        trainee, config, step = self.trainee, self.trainee.config, start.step
        at_wandb = None
        if config.wandb:
            at_wandb = WandbRun(config.wandb, self._workdir, trainee.settings, labels, trainee.name)
        is_evaluated_anew = config.is_evaluation_step(step) or start.end is not None
        self.writer = MetricWriter(
            self._workdir,
            step,
            # A row of this step stays in metrics.jsonl unless this process writes it again: an evaluation that was not
            # completed, or an interval of training whose losses are in the checkpoint.
            evaluated=self.progress.is_evaluated(step) or not is_evaluated_anew,
            logged=not self.progress.interval,
            tensorboard=config.tensorboard,
            wandb=at_wandb,
        )
        self.line = ProgressLine(trainee.name, step, config.steps, self._metric)
        if start.is_resumed:
            self.line.say(f"resumed from the checkpoint of step {step}")

    def add(self, step: int, metrics: Any) -> None:
        """Note the metrics of a training step, which may not be computed yet."""
        self.watchdog.follow(step, metrics["loss"][0])
        self._pending.append((step, metrics))

    def _collect(self) -> None:
        """Fetch the metrics of the steps since the last call from the device, and add them to the metric sums.

        Raises NonFiniteError at the first step with a metric that is not finite.
        """
        steps, on_device = [step for step, _ in self._pending], [values for _, values in self._pending]
        self._pending, progress = [], self.progress
        for step, values in zip(steps, jax.device_get(on_device), strict=True):
            if bad := metric_sums.not_finite(values):
                raise self._not_finite(bad[0], step)
            primary = {self._metric: values[self._metric]}
            progress.tokens += int(values["tokens"][0])
            progress.interval = metric_sums.add(progress.interval, values)
            progress.since_evaluation = metric_sums.add(progress.since_evaluation, primary)
            progress.run = metric_sums.add(progress.run, primary)

    def _not_finite(self, name: str, step: int) -> NonFiniteError:
        """Return the error that a metric is not finite at a step, which names the last checkpoint before the step."""
        self.checkpoints.wait()
        earlier = [before for before in self.checkpoints.steps() if before < step]
        path = str(self._workdir / "checkpoints" / str(earlier[-1])) if earlier else "none"
        return NonFiniteError(f"{name} is not finite at step {step}. {self.trainee.remedy(path)}")

    def log(self, step: int) -> None:
        """Write a row of training metrics: means since the last row, learning rate, loss coefficients and speed."""
        self._collect()
        began, config, progress = time.perf_counter(), self.trainee.config, self.progress
        values, progress.interval = metric_sums.divide(progress.interval), {}
        values.pop("tokens")
        schedule_step: Any = np.float32(step - 1)
        coefficients = {name: float(value) for name, value in self._objective.coefficients(schedule_step).items()}
        learning_rate = self.trainee.learning_rate(step - 1)
        if not self._has_logged:  # JAX compiles the schedules when they are first called
            self.speed.paused(time.perf_counter() - began)
            self._has_logged = True
        interval = self.speed.read(step, progress.tokens)
        row = {
            "step": step,
            "split": "train",
            "tokens_seen": progress.tokens,
            "learning_rate": learning_rate,
            **values,
            **{f"coefficient/{term}": value for term, value in coefficients.items()},
            "seconds": interval.seconds,
            "tokens_per_second": interval.tokens_per_second,
        }
        if interval.timed_steps:
            # Steps that were compiled are not timed. They are taken for the first of the interval, which they are but
            # where another batch size begins.
            mfu = self.trainee.utilisation(step - interval.timed_steps, step, interval.timed_seconds)
            row |= {} if mfu is None else {"mfu": mfu}
        self._write(row)
        seconds_left = self.speed.seconds_left(config.steps - step, config.evaluations_from(max(step, 1)))
        if seconds_left is not None and config.time_limit is not None:
            seconds_left = max(0.0, min(seconds_left, config.time_limit - self._total_seconds()))
        self.line.update(row, seconds_left)

    def _write(self, row: dict[str, Any]) -> None:
        self.writer.write(row)
        terminal.report({"run": self.trainee.name, **row})

    def evaluate(self, state: TrainState, step: int) -> bool:
        """Evaluate the state, and add the metrics to the history; return whether it is the best to be kept.

        Raises NonFiniteError if a loss is not finite.
        """
        self._collect()
        self._add_seconds()
        progress, began = self.progress, time.perf_counter()
        self.line.begin("validating ...")
        validation = ValidationProgress(self.trainee.evaluation_batches, self.line.show, self.watchdog.beat)
        with self.watchdog.compiling("the evaluation step"):
            values = self.trainee.evaluate(state.params, step, validation.count)
        for name in dict.fromkeys([self._metric, *metric_sums.losses(values)]):
            if values.get(name) is not None and not np.isfinite(values[name]).all():
                raise self._not_finite(f"{name} of the validation", step)
        self._write({"step": step, "split": "validation", "tokens_seen": progress.tokens, **values})
        train_loss = metric_sums.divide(progress.since_evaluation).get(self._metric)
        progress.history.append(Evaluation(step, train_loss, progress.seconds, values))
        progress.since_evaluation, progress.seconds = {}, 0.0
        self.line.say(self.trainee.describe(progress.history[-1]))
        self.line.begin(None)
        best = self._protect_best()
        self._mark = time.perf_counter()
        seconds = self._mark - began
        self.speed.evaluated(seconds, seconds if self._has_evaluated else validation.next_seconds(seconds))
        self._has_evaluated = True
        return best is progress.history[-1]

    def best(self) -> Evaluation | None:
        """Return the best evaluation so far; with `training.keep_best`, the best of those that have a checkpoint.

        A run may resume with `keep_best` when its first evaluations have none, or none any more.
        """
        deleted = self._deleted if self.trainee.config.keep_best else set()
        return self.trainee.criterion.best([one for one in self.progress.history if one.step not in deleted])

    def _protect_best(self) -> Evaluation | None:
        """With `training.keep_best`, keep the checkpoint of the best evaluation, which is returned."""
        best = self.best() if self.trainee.config.keep_best else None
        self.checkpoints.keep_best(None if best is None else best.step)
        return best

    def save(self, state: TrainState) -> None:
        """Save a checkpoint of the state in the background, unless its step has one."""
        self._collect()
        self._add_seconds()
        step = int(state.step)
        if step != self._saved_step:
            self.progress.rows = self.writer.digest
            self.writer.flush()  # rows before a checkpoint must not be lost, because a resumed run does not repeat them
            with self.watchdog.compiling("the first checkpoint"):
                waited = self.checkpoints.save(state, self.progress.to_json())
            if waited > LONG_WAIT:
                self.line.say(
                    f"checkpoint of step {step}: training waited {waited:.0f} seconds until that of step "
                    f"{self._saved_step} was saved; raise training.checkpoint_every, so that saves fit between them"
                )
            self._saved_step = step
        self.watchdog.beat()

    def is_time_up(self) -> bool:
        """Return whether the run has been trained for `training.time_limit` seconds, over all restarts."""
        limit = self.trainee.config.time_limit
        return limit is not None and self._total_seconds() >= limit

    def _total_seconds(self) -> float:
        return self.progress.total_seconds + time.perf_counter() - self._mark

    def _add_seconds(self) -> None:
        now = time.perf_counter()
        self.progress.seconds += now - self._mark
        self._mark = now

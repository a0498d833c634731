"""The training loop: it feeds batches to the train step, and writes metrics, evaluations and checkpoints.

Every step's batch and random numbers are a function of (config, step number), and a checkpoint holds everything else:
the state, and the sums of metrics that are not written yet. So a run that was killed and resumed ends with the same
result as an uninterrupted run.
"""

import time
from typing import Any

import jax
import numpy as np

from ag_jax.distributed import hosts
from ag_jax.distributed.watchdog import Watchdog
from ag_jax.training import metrics as metric_sums
from ag_jax.training import sharding
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.criterion import Evaluation
from ag_jax.training.job import Job, Progress
from ag_jax.training.metrics import MetricWriter
from ag_jax.training.profile import Profile
from ag_jax.training.progress import ProgressLine, Silence, ValidationProgress
from ag_jax.training.speed import Speedometer
from ag_jax.training.state import TrainState
from ag_jax.training.stopping import Interrupted, StopSignal

TIME_LIMIT = "training.time_limit"
LONG_WAIT = 1.0  # seconds of waiting for a save after which a line says so


class NonFiniteError(Exception):
    """Error for a loss, gradient or output of the model that is not finite."""


class Loop:
    """Training loop that runs `job` from its newest checkpoint, or from the start if there is none."""

    def __init__(self, job: Job):
        self.job, config, self.objective = job, job.config, job.objective
        self.train_step, self.metric = job.program.train_step, self.objective.primary_metric.metric
        self.checkpoints = Checkpoints(
            job.workdir / "checkpoints",
            keep_last=config.keep_last,
            checkpoint_every=config.checkpoint_every,
            keep_every=config.keep_every,
            milestones=config.milestone_steps() + job.saved_steps + job.kept_steps,
        )
        self.pending: list[tuple[int, Any]] = []  # metrics of steps, still on the device
        self.saved_step = -1
        self.watchdog = Watchdog(config.step_timeout)
        self.profile = Profile(config.profile, job.workdir)

    def run(self) -> dict[str, Any]:
        """Train to the last step, or until a stop rule or time limit ends the run; return the result of `job.finish`.

        A job that pauses is trained to `job.pause_at`, and the result is that of `job.pause`; a job that is past that
        step already is not trained.

        Raises NonFiniteError if a loss or gradient is not finite, with the checkpoints before that complete, and
        Interrupted after a signal, with everything saved.
        """
        with self.watchdog:
            state, start = self._start()
            together, failed = hosts.count() == 1, True
            try:
                with StopSignal() as stop:
                    state = self._steps(state, start, stop)
                self.writer.flush()
                if self._is_paused(int(state.step)):
                    with self.watchdog.compiling("the evaluation step"):
                        result = self.job.pause(state, self.progress, self.watchdog.beat)
                else:
                    result = self.job.finish(state, self.progress, self.watchdog.beat)
                together, failed = True, False
            except (Interrupted, NonFiniteError) as stopped:
                together, failed = True, isinstance(stopped, NonFiniteError)
                raise
            finally:
                if self.profile.abandon():
                    self.line.say(
                        "profile: the run ended before the last step of training.profile: no trace is written"
                    )
                self.line.close()
                try:
                    self.writer.close(failed)
                finally:  # a checkpoint that is being saved is not lost because metrics cannot be written
                    if together:  # otherwise another host may be gone, and Orbax would wait for it
                        self.checkpoints.close()
        return result

    def _start(self) -> tuple[TrainState, int]:
        """Return (training state, its step): from the newest checkpoint, from another run's, or newly created."""
        job, config = self.job, self.job.config
        with self.watchdog.patience("the newest checkpoint, or new parameters"):
            checkpoint = self.checkpoints.restore_latest(job.program.abstract)
            is_resumed = checkpoint is not None
            if checkpoint is None:
                checkpoint = job.first(job.program.abstract)
            state = checkpoint.state if checkpoint else job.create()
            self.progress = job.read_progress(checkpoint.progress if checkpoint else {})
            hosts.from_first("the metrics", lambda: metric_sums.check_rows(job.workdir, self.progress.rows))
            start = int(state.step)
            # An earlier process may have deleted checkpoints that the progress still lists.
            saved_steps = hosts.from_first("the checkpoints", self.checkpoints.steps)
            evaluated_steps = {evaluation.step for evaluation in self.progress.history if evaluation.step <= start}
            self.deleted = evaluated_steps - {*saved_steps}
            self.checkpoints.keep_best(self._best())
            self.saved_step = start if is_resumed else -1
        self.mark = time.perf_counter()
        # A run that has reached its time limit, or has lost its patience, takes no further step when it is resumed.
        self.is_over = config.time_limit is not None and hosts.from_first("the time limit", self._time_is_up)
        self.is_over = self.is_over or job.stop(self.progress.history)
        self.writer: MetricWriter | Silence = Silence()
        self.line: ProgressLine | Silence = Silence()
        if hosts.is_first():
            self.writer = MetricWriter(
                job.workdir,
                start,
                # A row of step `start` stays in metrics.jsonl unless this process writes it again: an evaluation that
                # was not completed, or an interval of training whose losses are in the checkpoint.
                evaluated=self.progress.is_evaluated(start) or not (self._is_evaluation_step(start) or self.is_over),
                logged=not self.progress.interval,
                tensorboard=config.tensorboard,
                wandb=job.wandb(),
            )
            self.line = ProgressLine(job.name, start, config.steps, self.metric)
            if is_resumed:
                self.line.say(f"resumed from the checkpoint of step {start}")
            if config.profile and start >= config.profile[1]:
                first, last = config.profile
                self.line.say(
                    f"training.profile={first},{last}: the run is at step {start} already, so no trace is written; "
                    "choose later steps"
                )
        return state, start

    def _steps(self, state: TrainState, start: int, stop: StopSignal) -> TrainState:
        """Train from step `start` to the last step; return the final state, which is saved and evaluated."""
        job, config = self.job, self.job.config
        milestones = config.milestone_steps() + job.saved_steps
        self.mark = time.perf_counter()
        self.speed = Speedometer(start, self.progress.tokens)
        self.has_logged = self.has_evaluated = False
        if self._is_evaluation_step(start) and not self.progress.is_evaluated(start):
            self._evaluate(state, start)  # the program ended between the checkpoint and its evaluation
        if start == config.steps or self._is_paused(start):
            return state
        if self.is_over or job.stop(self.progress.history):  # before the first step
            if self.progress.interval:
                self._log(start)
            if not self.progress.is_evaluated(start):
                self._evaluate(state, start)
            return state
        compiled: set[tuple[int, ...]] = set()  # shapes of batches; the step is compiled again for each of them
        for step, batch in enumerate(job.batches(start, config.steps), start + 1):
            placed = sharding.place_batch(batch, job.program.mesh)
            is_new, began = batch["tokens"].shape not in compiled, 0.0
            if is_new:
                compiled.add(batch["tokens"].shape)
                jax.block_until_ready(state)  # because the steps before are not to be left out
                began = time.perf_counter()
            if step == 1 and 0 in milestones:
                # Before the first checkpoint: a config that does not fit the devices must not leave one.
                with self.watchdog.compiling("the train step"):
                    self.train_step.lower(state, placed, job.key, job.hyperparameters).compile()
                self._save(state)
            what = f"the train step for batches of shape {batch['tokens'].shape}"
            with self.watchdog.compiling(what), self.profile.step(step, state):
                state, step_metrics = self.train_step(state, placed, job.key, job.hyperparameters)
            self.watchdog.follow(step, step_metrics["loss"][0])
            if is_new:
                tokens = int(jax.device_get(step_metrics["tokens"][0]))
                self.speed.compiled(time.perf_counter() - began, tokens)
            if self.profile.is_complete(step):
                self._write_profile(state)
            # Metrics are fetched in `_collect`: fetching them here would wait for the device in every step.
            self.pending.append((step, step_metrics))
            if self._time_is_up() and self.job.learning_rate(step - 1) > 0:  # 0 at the first step of a warm-up
                stop.request(TIME_LIMIT)
            stop_reason, has_saved_best, is_paused = stop.reached(), False, self._is_paused(step)
            is_last = step == config.steps or stop_reason == TIME_LIMIT
            if stop_reason == TIME_LIMIT and step < config.steps:
                self.line.say(f"{TIME_LIMIT}={config.time_limit} seconds: the run ends at step {step}")
            if step % config.log_every == 0 or is_last:
                self._log(step)
            if self._is_evaluation_step(step) and not is_last:
                has_saved_best = self._evaluate(state, step)
                is_last = job.stop(self.progress.history)
                if is_last:
                    if step % config.log_every:
                        self._log(step)
                    self.line.say(f"the last evaluations brought no improvement: the run ends at step {step}")
            is_due = step % config.checkpoint_every == 0 or step in milestones
            if is_due or is_last or stop_reason or has_saved_best or is_paused:
                self._save(state)
            if stop_reason and not is_last:
                self.checkpoints.wait()
                raise Interrupted(f"{stop_reason}: stopped at step {step} of {config.steps}; everything is saved")
            if is_paused:
                return state
            if is_last:
                break
        # The last step is saved before it is evaluated, because an evaluation may take long, or fail.
        if not self.progress.is_evaluated(step):
            self._evaluate(state, step)
        return state

    def _write_profile(self, state: TrainState) -> None:
        """End the profiler's trace of the steps in `training.profile`, and write it to the run directory."""
        with self.watchdog.patience("the profile"):
            folder, seconds = self.profile.finish(state)
        self.speed.paused(seconds)
        self.line.say(f"profile: {folder} (tensorboard --logdir={folder.parents[2]}, or ui.perfetto.dev)")

    def _time_is_up(self) -> bool:
        limit = self.job.config.time_limit
        return limit is not None and _seconds_so_far(self.progress, self.mark) >= limit

    def _is_paused(self, step: int) -> bool:
        """Return whether `Job.pause_at` is this or an earlier step, so that the run pauses; False at the last step."""
        return self.job.pause_at is not None and self.job.pause_at <= step < self.job.config.steps

    def _is_evaluation_step(self, step: int) -> bool:
        every = self.job.config.evaluate_every
        return step == self.job.config.steps or bool(every and step and step % every == 0)

    def _collect(self) -> None:
        """Fetch the metrics of the steps since the last call from the device, and add them to the metric sums.

        Raises NonFiniteError at the first step with a metric that is not finite.
        """
        steps, on_device = [step for step, _ in self.pending], [values for _, values in self.pending]
        self.pending, progress = [], self.progress
        for step, values in zip(steps, jax.device_get(on_device), strict=True):
            bad = metric_sums.not_finite(values)
            if bad:
                raise self._not_finite(bad[0], step)
            primary = {self.metric: values[self.metric]}
            progress.tokens += int(values["tokens"][0])
            progress.interval = metric_sums.add(progress.interval, values)
            progress.since_evaluation = metric_sums.add(progress.since_evaluation, primary)
            progress.run = metric_sums.add(progress.run, primary)

    def _not_finite(self, name: str, step: int) -> NonFiniteError:
        """Return the error that a metric is not finite at a step, which names the last checkpoint before the step."""
        self.checkpoints.wait()
        saved = [before for before in self.checkpoints.steps() if before < step]
        path = str(self.job.workdir / "checkpoints" / str(saved[-1])) if saved else "none"
        return NonFiniteError(f"{name} is not finite at step {step}. {self.job.remedy(path)}")

    def _log(self, step: int) -> None:
        """Write a row of training metrics: means since the last row, learning rate, loss coefficients and speed."""
        self._collect()
        began = time.perf_counter()
        values = metric_sums.divide(self.progress.interval)
        self.progress.interval = {}
        values.pop("tokens")
        schedule_step: Any = np.float32(step - 1)
        coefficients = {name: float(value) for name, value in self.objective.coefficients(schedule_step).items()}
        learning_rate = float(self.job.learning_rate(step - 1))
        if not self.has_logged:  # JAX compiles the schedules when they are first called
            self.speed.paused(time.perf_counter() - began)
            self.has_logged = True
        interval, config = self.speed.read(step, self.progress.tokens), self.job.config
        row = {
            "step": step,
            "split": "train",
            "tokens_seen": self.progress.tokens,
            "learning_rate": learning_rate,
            **values,
            **{f"coefficient/{term}": value for term, value in coefficients.items()},
            "seconds": interval.seconds,
            "tokens_per_second": interval.tokens_per_second,
        }
        if self.job.utilisation is not None and interval.timed_steps:
            # Steps that were compiled are not timed. They are taken for the first of the interval, which they are but
            # where another batch size begins.
            row["mfu"] = self.job.utilisation(step - interval.timed_steps, step, interval.timed_seconds)
        self.writer.write(row)
        seconds_left = self.speed.seconds_left(config.steps - step, config.evaluations_from(max(step, 1)))
        if seconds_left is not None and config.time_limit is not None:
            seconds_left = max(0.0, min(seconds_left, config.time_limit - _seconds_so_far(self.progress, self.mark)))
        self.line.update(row, seconds_left)

    def _evaluate(self, state: TrainState, step: int) -> bool:
        """Run the evaluators and add their values to the history; return whether `job.keep` saved the model.

        Raises NonFiniteError if a loss is not finite.
        """
        self._collect()
        self._add_seconds()
        began, progress = time.perf_counter(), self.progress
        values: dict[str, Any] = {}
        validating = ValidationProgress(self.job.evaluation_batches, self.line.show)
        self.line.begin("validating ...")

        batches_done: list[float] = []

        def beat() -> None:
            self.watchdog.beat()
            validating.count()
            batches_done.append(time.perf_counter())

        with self.watchdog.compiling("the evaluation step"):
            for evaluator in self.job.evaluators:
                values |= evaluator(state.params, step, beat)
        for name in dict.fromkeys([self.metric, *metric_sums.losses(values)]):
            if values.get(name) is not None and not np.isfinite(values[name]).all():
                raise self._not_finite(f"{name} of the validation", step)
        self.writer.write({"step": step, "split": "validation", "tokens_seen": progress.tokens, **values})
        train_loss = metric_sums.divide(progress.since_evaluation).get(self.metric)
        progress.history.append(Evaluation(step, train_loss, progress.seconds, values))
        progress.since_evaluation, progress.seconds = {}, 0.0
        self.line.say(self.job.describe(progress.history[-1]))
        has_saved_best = self.job.keep(state, progress.history)
        self.checkpoints.keep_best(self._best())
        self.line.begin(None)
        self.mark = time.perf_counter()
        next_seconds = self.mark - began
        if not self.has_evaluated and batches_done:  # the first batch waited for compilation, so the others count
            count = len(batches_done)
            next_seconds = (batches_done[-1] - batches_done[0]) / max(count - 1, 1) * count
        self.has_evaluated = True
        self.speed.evaluated(self.mark - began, next_seconds)
        return has_saved_best

    def _best(self) -> int | None:
        """Return the step of the best evaluation by `job.best`, among those whose checkpoint was not deleted, or None.

        A run may resume with `keep_best` when the checkpoints of its first evaluations are gone.
        """
        history = [evaluation for evaluation in self.progress.history if evaluation.step not in self.deleted]
        return self.job.best(history)

    def _add_seconds(self) -> None:
        now = time.perf_counter()
        self.progress.seconds += now - self.mark
        self.mark = now

    def _save(self, state: TrainState) -> None:
        self._collect()
        self._add_seconds()
        if int(state.step) != self.saved_step:
            self.progress.rows = self.writer.digest
            self.writer.flush()  # rows before a checkpoint must not be lost, because a resumed run does not repeat them
            with self.watchdog.compiling("the first checkpoint"):
                waited = self.checkpoints.save(state, self.progress.to_json())
            if waited > LONG_WAIT:
                self.line.say(
                    f"checkpoint of step {int(state.step)}: training waited {waited:.0f} seconds until that of step "
                    f"{self.saved_step} was saved; raise training.checkpoint_every, so that saves fit between them"
                )
            self.saved_step = int(state.step)
        self.watchdog.beat()


def _seconds_so_far(progress: Progress, mark: float) -> float:
    """Return the seconds of training so far, over all restarts, with compilation and without evaluations.

    mark: the time up to which `progress` counts them.
    """
    before = sum(evaluation.seconds for evaluation in progress.history)
    return before + progress.seconds + time.perf_counter() - mark

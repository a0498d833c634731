"""Training: one function that takes a pre-training run or a trial of fine-tuning from its start to its result.

Every step's batch and random numbers are a function of (settings, step number), and a checkpoint holds everything else:
the state, and the `Progress`, such as sums of metrics that are not written yet. So a run that was killed and resumed
ends with the same result as an uninterrupted run.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath

from ag_jax.distributed import hosts, interruption
from ag_jax.distributed.terminal import Bar
from ag_jax.distributed.watchdog import Watchdog
from ag_jax.training import metrics as metric_sums
from ag_jax.training import sharding
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.criterion import Evaluation
from ag_jax.training.journal import Journal, NonFiniteError
from ag_jax.training.profile import Profile
from ag_jax.training.state import TrainState
from ag_jax.training.stopping import Interrupted, StopSignal
from ag_jax.training.trainee import Outcome, Progress, Start, Trainee
from ag_jax.training.wandb_run import Labels

TIME_LIMIT = "training.time_limit"


def train(
    trainee: Trainee,
    workdir: epath.Path,
    *,
    until: int | None = None,
    kept_steps: tuple[int, ...] = (),
    labels: Labels = Labels(),
) -> Any:
    """Train from the newest checkpoint, or the start, to the last step; return the result of `trainee.finish`.

    A branch starts at the checkpoint of another run. A time limit or patience ends training before its last step.

    workdir: directory of metrics and checkpoints.
    until: step after which the run pauses: its state is saved, and the next call goes on as if it had never paused.
        Nothing is trained if it is past this step already. None pauses nowhere.
    kept_steps: steps whose checkpoints are never deleted, besides those that the trainee names.
    labels: group the run at Weights & Biases.

    Raises NonFiniteError if a loss or gradient is not finite, with the checkpoints before that complete, and
    Interrupted after a signal, with everything saved.
    """
    config, program = trainee.config, trainee.program
    pause = config.steps if until is None else min(until, config.steps)
    # The process of a notebook is not ours to end.
    end_process = hosts.leave_at_once if interruption.is_guarded() or hosts.count() > 1 else None
    with Watchdog(config.step_timeout, end_process) as watchdog:
        checkpoints = Checkpoints(
            workdir / "checkpoints",
            keep_last=config.keep_last,
            checkpoint_every=config.checkpoint_every,
            keep_every=config.keep_every,
            milestones=trainee.milestones + kept_steps,
        )
        preparing = Bar(f"{trainee.name}: preparing the training state", is_shown=hosts.is_first())
        with preparing, watchdog.patience("the newest checkpoint, or new parameters"):
            start = restore(trainee, workdir, checkpoints)
        journal = Journal(trainee, workdir, checkpoints, watchdog, start, labels)
        state, progress, step, end = start.state, start.progress, start.step, start.end
        del start  # its state, so that none but the newest is in memory
        profile = Profile(config.profile, workdir, step, journal.line.say)
        with _closing(journal, profile):
            with StopSignal() as stop:
                if config.is_evaluation_step(step) and not progress.is_evaluated(step):
                    journal.evaluate(state, step)  # the program ended between the checkpoint and its evaluation
                    end = end or _end_before_a_step(trainee, progress, step)
                if end and progress.interval:
                    journal.log(step)
                batches, first = () if end else trainee.batches(step, max(step, pause)), step + 1
                for step, batch in enumerate(batches, first):
                    placed = sharding.place_batch(batch, program.mesh)
                    if step == 1 and 0 in trainee.milestones:
                        # Compiled before it is saved: a config that does not fit the devices leaves no checkpoint.
                        with watchdog.compiling("the train step"):
                            program.train_step.lower(state, placed, trainee.key, trainee.hyperparameters).compile()
                        journal.save(state)
                    state = _update(state, placed, step, journal, profile)
                    if journal.is_time_up() and trainee.learning_rate(step - 1) > 0:  # 0 at the start of a warm-up
                        stop.request(TIME_LIMIT)
                    reason = stop.reached()  # the same on all hosts
                    if step == config.steps:
                        end = "steps"
                    elif reason == TIME_LIMIT:
                        end = "time_limit"
                        journal.line.say(f"{TIME_LIMIT}={config.time_limit} seconds: the run ends at step {step}")
                    if end or step % config.log_every == 0:
                        journal.log(step)
                    is_best = False
                    if config.is_evaluation_step(step) and not (end or reason):  # after a signal, when it resumes
                        is_best = journal.evaluate(state, step)
                        if trainee.criterion.is_over(progress.history):
                            end = "patience"
                            if step % config.log_every:
                                journal.log(step)
                            journal.line.say(
                                f"the last evaluations brought no improvement: the run ends at step {step}"
                            )
                    is_due = step % config.checkpoint_every == 0 or step in trainee.milestones
                    if is_due or end or reason or step == pause or is_best:
                        journal.save(state)
                    if reason and not end:
                        checkpoints.wait()
                        raise Interrupted(f"{reason}: stopped at step {step} of {config.steps}; everything is saved")
                    if end:
                        break
                # The last step is saved before it is evaluated, because an evaluation may take long, or fail.
                if end and not progress.is_evaluated(step):
                    journal.evaluate(state, step)
            journal.writer.flush()
            if not progress.is_evaluated(step):
                # The evaluation at a pause is in no checkpoint and no row: the run goes on as one that never paused.
                with watchdog.compiling("the evaluation step"):
                    values = trainee.evaluate(state.params, step, watchdog.beat)
                progress = dataclasses.replace(progress, history=[*progress.history, Evaluation(step, None, 0, values)])
            outcome = Outcome(state, progress, end, journal.best(), checkpoints, program.abstract)
            return trainee.finish(outcome, watchdog.beat)


def restore(trainee: Trainee, workdir: epath.Path, checkpoints: Checkpoints) -> Start:
    """Return where training starts: at the newest checkpoint, at that of the run that a branch goes on from, or at 0.

    Raises ValueError if the checkpoint, or the rows of `metrics.jsonl`, are those of another run.
    """
    resumed = checkpoints.restore_latest(trainee.program.abstract)
    checkpoint = resumed or trainee.start(trainee.program.abstract)
    progress = Progress.from_json(checkpoint.progress) if checkpoint else Progress()
    if checkpoint:
        trainee.check(progress)
    progress = dataclasses.replace(progress, **trainee.identity)
    hosts.from_first("the metrics", lambda: metric_sums.check_rows(workdir, progress.rows))
    state = checkpoint.state if checkpoint else trainee.init()
    return Start(state, progress, resumed is not None, _end_before_a_step(trainee, progress, int(state.step)))


def _end_before_a_step(trainee: Trainee, progress: Progress, step: int) -> str | None:
    """Return why a run takes no step after `step`, before it has taken one; None if it goes on."""
    limit = trainee.config.time_limit
    if step == trainee.config.steps:
        return "steps"
    if limit is not None and hosts.from_first("the time limit", lambda: progress.total_seconds >= limit):
        return "time_limit"
    return "patience" if trainee.criterion.is_over(progress.history) else None


def _update(
    state: TrainState, batch: dict[str, jax.Array], step: int, journal: Journal, profile: Profile
) -> TrainState:
    """Return the state after one training step on a batch; note its metrics, and the time if the step is compiled."""
    trainee, watchdog = journal.trainee, journal.watchdog
    shape = batch["tokens"].shape  # the step is compiled for each of them
    is_new, began = shape not in journal.shapes, 0.0
    if is_new:
        journal.shapes.add(shape)
        jax.block_until_ready(state)  # because the steps before are not to be left out
        began = time.perf_counter()
    with watchdog.compiling(f"the train step for batches of shape {shape}"), profile.step(step, state):
        state, metrics = trainee.program.train_step(state, batch, trainee.key, trainee.hyperparameters)
    journal.add(step, metrics)
    if is_new:
        tokens = int(jax.device_get(metrics["tokens"][0]))
        journal.speed.compiled(time.perf_counter() - began, tokens)
    if profile.is_complete(step):
        with watchdog.patience("the profile"):
            journal.speed.paused(profile.finish(state))
    return state


@contextlib.contextmanager
def _closing(journal: Journal, profile: Profile) -> Iterator[None]:
    """Context manager that closes the outputs of a run at its end, whatever ends it."""
    failed, together = True, hosts.count() == 1
    try:
        yield
        failed, together = False, True
    except (Interrupted, NonFiniteError) as stopped:  # on all hosts
        failed, together = isinstance(stopped, NonFiniteError), True
        raise
    finally:
        profile.abandon()
        journal.line.close()
        try:
            journal.writer.close(failed)
        finally:  # a checkpoint that is being saved is not lost because metrics cannot be written
            if together:  # otherwise another host may be gone, and Orbax would wait for it
                journal.checkpoints.close()

"""The loop: resumed runs equal uninterrupted ones, and nothing ends without a word."""

import dataclasses
import errno
import itertools
import json
import os
import shutil
import signal
import types

import jax
import numpy as np
import pytest
from etils import epath

import ag_jax.training.metrics as metrics_module
from ag_jax import config_reader
from ag_jax.training import loop, progress
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.config import TrainingConfig
from ag_jax.training.loop import Interrupted, NonFiniteError
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from ag_jax.training.optimizer import OptimizerConfig
from tests.cases import some
from tests.training.jobs import batch, tiny_job


def final_state(job):
    checkpoints = Checkpoints(job.workdir / "checkpoints", read_only=True)
    return checkpoints.restore(job.config.steps, job.program.abstract)


def progress_without_clock(job):
    progress = final_state(job).progress
    history = [{**evaluation, "seconds": 0.0} for evaluation in progress["history"]]
    return progress | {"seconds": 0.0, "history": history, "rows": None}  # rows have times


def rows_without_clock(job):
    return [{key: value for key, value in row.items() if key not in CLOCK_FIELDS} for row in read_metrics(job.workdir)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    job = tiny_job(tmp_path_factory.mktemp("uninterrupted"))
    return job, loop.Loop(job).run()


def signalled_at(step: int, number: int):
    """Batches that send this process a signal while those of `step` are made."""

    def batches(start, stop):
        for at in range(start, stop):
            if at == step:
                os.kill(os.getpid(), number)
            yield batch(at)

    return batches


def test_summary(uninterrupted):
    job, summary = uninterrupted
    rows = read_metrics(job.workdir)
    train = [row for row in rows if row["split"] == "train"]
    assert [row["step"] for row in train] == [5, 10, 12]
    assert [row["step"] for row in rows if row["split"] == "validation"] == [6, 12]
    assert summary["train_loss"] == train[-1]["mlm_loss"]
    assert summary["validation_loss"] == rows[-1]["mlm_loss"]
    totals = [batch(step)["masked_weights"].sum() for step in range(12)]
    by_interval = [sum(totals[:5]), sum(totals[5:10]), sum(totals[10:])]
    expected = np.average([row["mlm_loss"] for row in train], weights=by_interval)
    assert summary["average_train_loss"] == pytest.approx(expected, rel=1e-6)
    assert summary["tokens_seen"] == sum(int(batch(step)["segment_ids"].sum()) for step in range(12))


def test_rows_hold_coefficients_and_masses(uninterrupted):
    job, _ = uninterrupted
    row = read_metrics(job.workdir)[0]
    assert row["coefficient/ag"] == pytest.approx(10.0 * (12 - 4) / (12 - 2))
    assert row["learning_rate"] == pytest.approx(1e-2 * (1 - 4 / 12))
    assert all(len(row[f"mass/{name}"]) == 2 for name in ("next", "prev", "first"))


@pytest.mark.parametrize(
    ("step", "number"),
    some([(2, signal.SIGTERM), (6, signal.SIGINT), (9, signal.SIGTERM)], (6, signal.SIGINT)),
)
def test_a_signal_saves_and_the_next_run_ends_as_if_nothing_had_happened(uninterrupted, tmp_path, step, number):
    whole, summary = uninterrupted
    with pytest.raises(Interrupted, match=f"stopped at step {step + 1} of 12"):
        loop.Loop(tiny_job(tmp_path, batches=signalled_at(step, number))).run()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    job = tiny_job(tmp_path)
    assert loop.Loop(job).run() == summary
    assert rows_without_clock(job) == rows_without_clock(whole)
    jax.tree.map(np.testing.assert_array_equal, final_state(job).state, final_state(whole).state)
    assert progress_without_clock(job) == progress_without_clock(whole)


def test_a_finished_run_stays_as_it_is(uninterrupted):
    job, summary = uninterrupted
    before = rows_without_clock(job)
    assert loop.Loop(job).run() == summary
    assert rows_without_clock(job) == before


def test_a_stop_rule_ends_the_job_at_an_evaluation(tmp_path):
    job = dataclasses.replace(tiny_job(tmp_path), stop=lambda history: history[-1:] and history[-1].step == 6)
    summary = loop.Loop(job).run()
    assert summary["steps"] == 6 and steps_in(job.workdir / "checkpoints")[-1] == 6
    rows = rows_without_clock(job)
    assert [(row["step"], row["split"]) for row in rows] == [(5, "train"), (6, "validation"), (6, "train")]
    refused = dataclasses.replace(job, batches=lambda start, stop: pytest.fail("it is over"))
    assert loop.Loop(refused).run() == summary
    assert rows_without_clock(job) == rows


def test_what_an_evaluation_saved_has_a_checkpoint_beside_it(tmp_path):
    saved = []

    def keep(state, history):
        saved.append((int(state.step), [evaluation.step for evaluation in history]))
        return history[-1].step == 3

    loop.Loop(
        dataclasses.replace(tiny_job(tmp_path, evaluate_every=3, checkpoint_every=5, keep_last=9), keep=keep)
    ).run()
    assert saved == [(3, [3]), (6, [3, 6]), (9, [3, 6, 9]), (12, [3, 6, 9, 12])]
    assert steps_in(epath.Path(tmp_path / "checkpoints")) == [0, 1, 3, 5, 10, 12]


@pytest.mark.parametrize("step", [6, 12])
def test_an_evaluation_that_died_is_made_again(uninterrupted, tmp_path, step):
    """At step 6 the checkpoint is saved after the evaluation, at the last step before it."""
    whole, summary = uninterrupted
    job = tiny_job(tmp_path, checkpoint_every=6)
    (honest,) = job.evaluators

    def dies(params, at, beat):
        if at == step:
            raise OSError("no space left")
        return honest(params, at, beat)

    with pytest.raises(OSError, match="no space left"):
        loop.Loop(dataclasses.replace(job, evaluators=(dies,))).run()
    assert loop.Loop(job).run() == summary
    assert rows_without_clock(job) == rows_without_clock(whole)


def test_an_interrupted_run_keeps_the_checkpoints_of_an_uninterrupted_one(tmp_path):
    """The milestones 0, 1 and 12, and the three newest, which a translation may average."""
    for step in (5, 9):
        with pytest.raises(Interrupted):
            loop.Loop(tiny_job(tmp_path, keep_last=3, batches=signalled_at(step, signal.SIGTERM))).run()
    assert steps_in(epath.Path(tmp_path / "checkpoints"))[-1] not in (4, 8, 12)
    loop.Loop(tiny_job(tmp_path, keep_last=3)).run()
    assert steps_in(epath.Path(tmp_path / "checkpoints")) == [0, 1, 4, 8, 12]


def test_the_train_loss_of_an_evaluation_is_that_of_the_steps_since_the_one_before(tmp_path):
    job = tiny_job(tmp_path, log_every=6)
    progress = loop.Loop(dataclasses.replace(job, finish=lambda state, progress, beat: progress.to_json())).run()
    train = [row for row in read_metrics(job.workdir) if row["split"] == "train"]
    assert [row["train_loss"] for row in progress["history"]] == [row["mlm_loss"] for row in train]
    assert all(row["seconds"] > 0 for row in progress["history"])
    validation = [row for row in read_metrics(job.workdir) if row["split"] == "validation"]
    assert [row["values"]["mlm_loss"] for row in progress["history"]] == [row["mlm_loss"] for row in validation]


def poisoned_at(step: int):
    def batches(start, stop):
        for at in range(start, stop):
            poisoned = batch(at)
            if at == step:
                poisoned["masked_weights"] = np.full_like(poisoned["masked_weights"], np.nan)
            yield poisoned

    return batches


def test_a_loss_that_is_no_number_stops_the_run_with_the_last_good_checkpoint(tmp_path):
    job = tiny_job(tmp_path, batches=poisoned_at(6), log_every=12)
    with pytest.raises(
        NonFiniteError, match=r"mlm_loss is not finite at step 7\. The last good checkpoint: .*/checkpoints/4$"
    ):
        loop.Loop(job).run()
    assert Checkpoints(job.workdir / "checkpoints", read_only=True).steps() == [0, 1, 4]


@pytest.mark.parametrize(("step", "good"), [(6, 4), (12, 8)])
def test_an_evaluation_that_is_no_number_does_not_complete_a_run(tmp_path, step, good):
    """The last step is saved before it is evaluated, so its own checkpoint is not the good one."""
    job = tiny_job(tmp_path, keep_last=9)
    (honest,) = job.evaluators

    def poisoned(params, at, beat):
        return honest(params, at, beat) | ({"mlm_loss": float("nan")} if at == step else {})

    job = dataclasses.replace(job, evaluators=(poisoned,))
    message = rf"mlm_loss of the validation is not finite at step {step}\. The last good checkpoint: .*/{good}$"
    for _ in range(2):
        with pytest.raises(NonFiniteError, match=message):
            loop.Loop(job).run()
    validated = [row["step"] for row in read_metrics(job.workdir) if row["split"] == "validation"]
    assert validated == [at for at in (6,) if at < step]


class WandbRun:
    """Stands in for a run at wandb."""

    def __init__(self):
        self.rows, self.ended = [], []

    def log(self, step, values):
        self.rows.append(step)

    def finish(self, failed):
        self.ended.append(failed)


def test_a_diverging_run_is_stopped_too_and_has_failed_at_wandb(tmp_path):
    at_wandb = WandbRun()
    job = tiny_job(tmp_path, optimizer=OptimizerConfig(learning_rate=1e30, clip_norm=None))
    with pytest.raises(NonFiniteError, match="not finite at step"):
        loop.Loop(dataclasses.replace(job, wandb=lambda: at_wandb)).run()
    assert at_wandb.ended == [True]


def test_a_full_disk_loses_nothing_that_was_saved(uninterrupted, tmp_path, monkeypatch):
    whole, summary = uninterrupted
    write = metrics_module.MetricWriter.write

    def full_after_step_5(self, row):
        if row["step"] > 5:
            raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
        write(self, row)

    monkeypatch.setattr(metrics_module.MetricWriter, "write", full_after_step_5)
    with pytest.raises(OSError, match="No space left on device"):
        loop.Loop(tiny_job(tmp_path)).run()
    monkeypatch.undo()
    job = tiny_job(tmp_path)
    assert loop.Loop(job).run() == summary
    assert rows_without_clock(job) == rows_without_clock(whole)


def test_if_all_checkpoints_are_damaged_nothing_begins_anew(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted[0].workdir, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink(missing_ok=True)
    for path in (tmp_path / "run" / "checkpoints").glob("*/state/_METADATA"):
        path.write_text("{}")
    before = read_metrics(tmp_path / "run")
    with pytest.raises(ValueError, match=r"all checkpoints of .* are damaged(.*\n)*.*To start anew"):
        loop.Loop(tiny_job(tmp_path / "run")).run()
    assert read_metrics(tmp_path / "run") == before
    assert len([*(tmp_path / "run" / "checkpoints").glob("*/state")]) > 1


def test_a_step_that_cannot_be_compiled_leaves_no_checkpoint(tmp_path):
    """So another config, with a smaller batch, may be tried in the same directory."""

    def too_large(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory")

    training = loop.Loop(tiny_job(tmp_path))
    training.train_step = types.SimpleNamespace(lower=too_large)
    with pytest.raises(jax.errors.JaxRuntimeError, match="Ran out of memory"):
        training.run()
    assert steps_in(epath.Path(tmp_path / "checkpoints")) == []


def test_jobs_with_the_same_program_are_compiled_once(uninterrupted, tmp_path):
    compiled = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            compiled.append(seconds)

    job = dataclasses.replace(tiny_job(tmp_path), key=jax.random.key(7))
    assert job.program is uninterrupted[0].program
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        loop.Loop(job).run()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []


def test_the_key_of_the_run_matters(uninterrupted, tmp_path):
    whole, _ = uninterrupted
    job = dataclasses.replace(tiny_job(tmp_path), key=jax.random.key(6))
    loop.Loop(job).run()
    assert rows_without_clock(job) != rows_without_clock(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "training.steps must be at least 1"),
        ({"batch_size": 10, "microbatches": 3}, "training.microbatches=3 must divide"),
        ({"milestones": (2.0,)}, "training.milestones must be at least 0 and at most 1, got 2.0"),
        ({"keep_every": 0}, "training.keep_every must be at least 1, or none, got 0"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(TrainingConfig(**changes), "training")


def test_milestones_are_steps():
    assert TrainingConfig(steps=1000).milestone_steps() == (0, 100, 1000)


def test_progress_is_json(uninterrupted):
    job, _ = uninterrupted
    assert json.loads(json.dumps(final_state(job).progress)) == final_state(job).progress
    assert list(itertools.islice(job.batches(0, 2), 2))[1]["tokens"].shape == (4, 11)


def test_a_long_validation_shows_its_progress(tmp_path, monkeypatch, capsys):
    clock = iter(range(0, 1000, 4))  # every look at the clock is four seconds after the one before
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    texts = []
    for total in (8, None):
        validating = progress.ValidationProgress(total, texts.append)
        for _ in range(8):
            validating.count()
    assert texts == [
        "validating: 3 of 8 batches, 0:20 left",
        "validating: 6 of 8 batches, 0:08 left",
        "validating: 3 batches so far",
        "validating: 6 batches so far",
    ]
    job = dataclasses.replace(tiny_job(tmp_path, steps=6), evaluation_batches=2)
    monkeypatch.setattr(progress, "SHOW_EVERY", 0)
    loop.Loop(job).run()
    assert "tiny: validating: 1 of 2 batches, 0:04 left\ntiny: validating: 2 of 2 batches, 0:00 left\n" in (
        capsys.readouterr().err
    )

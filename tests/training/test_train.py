"""Training: resumed runs equal uninterrupted ones, and no number that is not finite passes unnoticed."""

import dataclasses
import errno
import gzip
import json
import os
import signal
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.distributed import storage
from ag_jax.settings import schema
from ag_jax.training import progress
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.config import TrainingConfig
from ag_jax.training.criterion import Criterion
from ag_jax.training.journal import NonFiniteError
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from ag_jax.training.stopping import Interrupted
from tests.training.trainees import batch, evaluate, run, tiny_trainee, wandb_runs


def ending(trainee):
    """The state at the last step, and the progress without what depends on the clock."""
    restored = Checkpoints(trainee.workdir / "checkpoints", read_only=True).restore(12, trainee.program.abstract)
    history = [{**evaluation, "seconds": 0.0} for evaluation in restored.progress["history"]]
    return restored.state, restored.progress | {"seconds": 0.0, "history": history, "rows": None}  # rows have times


def rows(trainee, split=None):
    """The rows of metrics without what depends on the clock."""
    return [
        {key: value for key, value in row.items() if key not in CLOCK_FIELDS}
        for row in read_metrics(trainee.workdir)
        if split in (None, row["split"])
    ]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    trainee = tiny_trainee(tmp_path_factory.mktemp("uninterrupted"))
    return trainee, run(trainee)


def signalled_at(step: int, number: int):
    """Batches that send this process a signal while those of `step` are made."""

    def batches(start, stop):
        for at in range(start, stop):
            if at == step:
                os.kill(os.getpid(), number)
            yield batch(at)

    return batches


def test_rows_and_summary(uninterrupted):
    trainee, summary = uninterrupted
    train, validation = rows(trainee, "train"), rows(trainee, "validation")
    assert [row["step"] for row in train] == [5, 10, 12] and [row["step"] for row in validation] == [6, 12]
    assert summary["train_loss"] == train[-1]["mlm_loss"]
    assert summary["validation_loss"] == validation[-1]["mlm_loss"]
    totals = [batch(step)["masked_weights"].sum() for step in range(12)]
    by_interval = [sum(totals[:5]), sum(totals[5:10]), sum(totals[10:])]
    expected = np.average([row["mlm_loss"] for row in train], weights=by_interval)
    assert summary["average_train_loss"] == pytest.approx(expected, rel=1e-6)
    seen = np.cumsum([int(batch(step)["segment_ids"].sum()) for step in range(12)])
    assert [row["tokens_seen"] for row in train] == [seen[4], seen[9], seen[11]] and summary["tokens_seen"] == seen[11]
    assert [row["tokens_seen"] for row in validation] == [seen[5], seen[11]]
    assert train[0]["coefficient/ag"] == pytest.approx(3.0 * (12 - 4) / (12 - 2))
    assert train[0]["learning_rate"] == pytest.approx(1e-2 * (1 - 4 / 12))
    assert all(len(train[0][f"mass/{name}"]) == 2 for name in ("next", "prev", "first"))


def test_an_interrupted_run_ends_as_an_uninterrupted_one(uninterrupted, tmp_path):
    """Checkpoints are the same, too: milestones 0, 1 and 12, and the three newest, which a translation may average."""
    whole, summary = uninterrupted
    saving, directory = {"milestones": (0.0, 0.1, 1.0), "keep_last": 3}, epath.Path(tmp_path / "checkpoints")
    for step, number in ((6, signal.SIGINT), (9, signal.SIGTERM)):
        with pytest.raises(Interrupted, match=f"step {step + 1} of 12"):
            run(tiny_trainee(tmp_path, **saving, batches=signalled_at(step, number)))
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and steps_in(directory)[-1] == step + 1
    trainee = tiny_trainee(tmp_path, **saving)
    for _ in range(2):  # the second time, it is finished and stays as it is
        assert run(trainee) == summary
        assert rows(trainee) == rows(whole)
    assert steps_in(directory) == [0, 1, 4, 8, 12]
    (state, progress), (expected, expected_progress) = ending(trainee), ending(whole)
    jax.tree.map(np.testing.assert_array_equal, state, expected)
    assert progress == expected_progress


def test_patience_ends_training_at_an_evaluation(tmp_path):
    never_better = Criterion("no such metric", is_lower_better=True, patience=1)
    trainee = dataclasses.replace(tiny_trainee(tmp_path), criterion=never_better)
    summary = run(trainee)
    assert summary["steps"] == 6 and steps_in(trainee.workdir / "checkpoints")[-1] == 6
    made = rows(trainee)
    assert [(row["step"], row["split"]) for row in made] == [(5, "train"), (6, "validation"), (6, "train")]
    refused = dataclasses.replace(trainee, batches=lambda start, stop: pytest.fail("it is over"))
    assert run(refused) == summary
    assert rows(trainee) == made


def test_a_signal_at_an_evaluation_saves_first_and_the_evaluation_follows(tmp_path):
    """The resumed run evaluates the step that was saved, and loses its patience there."""
    never_better = Criterion("no such metric", is_lower_better=True, patience=1)
    stopped = tiny_trainee(tmp_path, batches=signalled_at(5, signal.SIGTERM))
    stopped = dataclasses.replace(stopped, evaluate=lambda *_: pytest.fail("the program should end soon"))
    with pytest.raises(Interrupted, match="step 6 of 12"):
        run(stopped)
    resumed = dataclasses.replace(tiny_trainee(tmp_path), criterion=never_better)
    resumed = dataclasses.replace(resumed, batches=lambda start, stop: pytest.fail("it is over"))
    assert run(resumed)["steps"] == 6
    made = [(row["step"], row["split"]) for row in rows(resumed)]
    assert made == [(5, "train"), (6, "validation"), (6, "train")]


def test_the_best_evaluation_has_a_checkpoint_and_its_parameters_are_handed_on(tmp_path):
    """And the train loss of an evaluation is that of the steps since the one before."""
    values = {3: 2.0, 6: 1.0, 9: 1.5, 12: 1.2}
    trainee = tiny_trainee(tmp_path, log_every=3, evaluate_every=3, checkpoint_every=5, keep_last=9, keep_best=True)

    def finish(outcome, beat):
        return {"best": outcome.best.step, "params": outcome.best_params(), "history": outcome.progress.history}

    trainee = dataclasses.replace(
        trainee,
        evaluate=lambda params, step, beat: evaluate(params, step, beat) | {"score": values[step]},
        criterion=Criterion("score", is_lower_better=True),
        finish=finish,
    )
    result = run(trainee)
    directory = epath.Path(tmp_path / "checkpoints")
    assert result["best"] == 6 and steps_in(directory) == [3, 5, 6, 10, 12]
    saved = Checkpoints(directory, read_only=True).restore(6, trainee.program.abstract).state.params
    jax.tree.map(np.testing.assert_array_equal, result["params"], saved)
    history = result["history"]
    assert [row.train_loss for row in history] == [row["mlm_loss"] for row in rows(trainee, "train")]
    assert [row.values["mlm_loss"] for row in history] == [row["mlm_loss"] for row in rows(trainee, "validation")]
    assert all(row.seconds > 0 for row in history)


@pytest.mark.parametrize("step", [6, 12])
def test_an_evaluation_that_died_is_made_again(uninterrupted, tmp_path, step):
    """At step 6 the checkpoint is saved after the evaluation, at the last step before it."""
    whole, summary = uninterrupted
    trainee = tiny_trainee(tmp_path, checkpoint_every=6)
    honest = trainee.evaluate

    def dies(params, at, beat):
        if at == step:
            raise OSError("no space left")
        return honest(params, at, beat)

    with pytest.raises(OSError, match="no space left"):
        run(dataclasses.replace(trainee, evaluate=dies))
    assert run(trainee) == summary
    assert rows(trainee) == rows(whole)


def test_a_loss_that_is_no_number_stops_the_run_with_the_last_good_checkpoint(tmp_path):
    """And the run has failed at wandb."""

    def poisoned(start, stop):
        for at in range(start, stop):
            of_step = batch(at)
            if at == 6:
                of_step["masked_weights"] = np.full_like(of_step["masked_weights"], np.nan)
            yield of_step

    trainee = tiny_trainee(tmp_path, batches=poisoned, log_every=12, wandb="a project")
    with (
        wandb_runs() as runs,
        pytest.raises(NonFiniteError, match=r"mlm_loss is not finite at step 7\. .*/checkpoints/4$"),
    ):
        run(trainee)
    assert Checkpoints(trainee.workdir / "checkpoints", read_only=True).steps() == [4]
    assert [at_wandb.ended for at_wandb in runs] == [[True]]


@pytest.mark.parametrize(("step", "good"), [(6, 4), (12, 8)])
def test_an_evaluation_that_is_no_number_does_not_complete_a_run(tmp_path, step, good):
    """The last step is saved before it is evaluated, so its own checkpoint is not the good one."""
    trainee = tiny_trainee(tmp_path, keep_last=9)
    honest = trainee.evaluate

    def poisoned(params, at, beat):
        return honest(params, at, beat) | ({"mlm_loss": float("nan")} if at == step else {})

    trainee = dataclasses.replace(trainee, evaluate=poisoned)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match=rf"mlm_loss of the validation .* step {step}\. .*/{good}$"):
            run(trainee)
    assert [row["step"] for row in rows(trainee, "validation")] == [at for at in (6,) if at < step]


def test_a_full_disk_loses_nothing_that_was_saved(uninterrupted, tmp_path, monkeypatch):
    whole, summary = uninterrupted
    add, lines = storage.GrowingFile.add, []

    def full_after_a_line(self, text):
        lines.append(text)
        if len(lines) > 1:
            raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
        add(self, text)

    with monkeypatch.context() as patch:
        patch.setattr(storage.GrowingFile, "add", full_after_a_line)
        with pytest.raises(OSError, match=f"{tmp_path}: No space left on device"):
            run(tiny_trainee(tmp_path))
    trainee = tiny_trainee(tmp_path)
    assert run(trainee) == summary
    assert rows(trainee) == rows(whole)


def test_the_key_of_the_run_matters(uninterrupted, tmp_path):
    trainee = dataclasses.replace(tiny_trainee(tmp_path), key=jax.random.key(7))
    run(trainee)
    assert trainee.program is uninterrupted[0].program and rows(trainee) != rows(uninterrupted[0])


def test_a_step_that_cannot_be_compiled_leaves_no_checkpoint(tmp_path):
    """So another config, with a smaller batch, may be tried in the same directory."""

    def too_large(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory")

    trainee = tiny_trainee(tmp_path, milestones=(0.0,))
    program = dataclasses.replace(trainee.program, train_step=types.SimpleNamespace(lower=too_large))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Ran out of memory"):
        run(dataclasses.replace(trainee, program=program))
    assert steps_in(epath.Path(tmp_path / "checkpoints")) == []


def test_a_long_validation_shows_its_progress(monkeypatch):
    clock = iter(range(0, 1000, 4))  # every look at the clock is four seconds after the one before
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    texts = []
    for total in (8, None):
        validating = progress.ValidationProgress(total, texts.append)
        for _ in range(8):
            validating.count()
    assert [text.removeprefix("validating: ") for text in texts] == [
        *("3 of 8 batches, 0:20 left", "6 of 8 batches, 0:08 left"),
        *("3 batches so far", "6 batches so far"),
    ]


def steps_of(folder):
    """The numbers of the training steps in a trace."""
    [trace] = folder.glob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sorted(int(event["args"]["step_num"]) for event in events if "step_num" in event.get("args", {}))


def test_the_trace_has_the_steps_of_the_setting(uninterrupted, tmp_path):
    trainee = tiny_trainee(tmp_path / "run", profile=(3, 4))
    run(trainee)
    folder = tmp_path / "run" / "profile" / "plugins" / "profile" / "steps_3-4"
    assert steps_of(folder) == [3, 4] and len(list(folder.glob("*.xplane.pb"))) == 1
    assert rows(trainee) == rows(uninterrupted[0])


def test_a_run_that_is_interrupted_ends_the_trace(tmp_path):
    """Otherwise the next trace in the process, such as that of the resumed run, is an error."""
    trainee = tiny_trainee(tmp_path / "run", profile=(3, 6))
    with pytest.raises(Interrupted):
        run(dataclasses.replace(trainee, batches=signalled_at(3, signal.SIGTERM)))
    assert not (tmp_path / "run" / "profile").exists()
    run(trainee)
    [folder] = (tmp_path / "run" / "profile" / "plugins" / "profile").iterdir()
    assert folder.name == f"steps_{steps_of(folder)[0]}-6" and steps_of(folder)[-1] == 6
    assert steps_of(folder)[0] in (4, 5, 6)


@pytest.mark.parametrize("steps", [(3,), (5, 3), (3, 13), (1, 2, 3), (0, 3)])
def test_other_steps_are_rejected(steps):
    with pytest.raises(ValueError, match="training.profile"):
        schema.check(TrainingConfig(steps=12, profile=steps), "training")

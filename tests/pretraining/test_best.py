"""Early stopping, and the checkpoint of the best evaluation, with validation losses that the tests choose."""

import json
import os
import shutil
import signal
import sys
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import cli
from ag_jax.command_line import verbs
from ag_jax.data import pipeline
from ag_jax.pretraining import run
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.config import TrainingConfig
from ag_jax.training.criterion import Criterion
from ag_jax.training.job import Evaluation
from ag_jax.training.loop import Interrupted
from tests.cases import some
from tests.pretraining.test_extended_runs import params, rows, settings, text  # noqa: F401

# The best but one is at step 4, and lower only at step 12.
LOSSES = {2: 5.0, 4: 4.0, 6: 4.5, 8: 4.25, 9: 4.5, 10: 4.0, 12: 3.0, 14: 3.5}
SETTINGS = {
    "training.evaluate_every": 2,
    "training.checkpoint_every": 1,
    "training.milestones": (1.0,),
    "training.keep_best": True,
}


def script(monkeypatch):
    """Replace the validation losses by LOSSES."""
    honest = run.metrics_evaluator

    def metrics_evaluator(*arguments):
        evaluate = honest(*arguments)
        return lambda params, step, beat: evaluate(params, step, beat) | {"mlm_loss": LOSSES[step]}

    monkeypatch.setattr(run, "metrics_evaluator", metrics_evaluator)


@pytest.fixture
def scripted(monkeypatch):
    script(monkeypatch)


def config(text, steps=14, **changed):  # noqa: F811
    return settings(text, steps, **SETTINGS | changed)


@pytest.fixture(scope="module")
def stopped(text, tmp_path_factory):  # noqa: F811
    """A run that ends at step 8, after two evaluations that are not better than that of step 4."""
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    script(patch)
    workdir = epath.Path(tmp_path_factory.mktemp("stopped") / "run")
    summary = run.train(config(text, **{"training.patience": 2}), workdir)
    patch.undo()
    return workdir, summary


def test_the_run_ends_and_its_best_checkpoint_stays(stopped):
    workdir, summary = stopped
    assert (summary["steps"], summary["patience"], summary["best"]) == (8, 2, {"step": 4, "mlm_loss": 4.0})
    assert json.loads((workdir / "summary.json").read_text()) == summary
    assert steps_in(workdir / "checkpoints") == [4, 8]
    assert run.best_step(workdir) == 4 and run.open_run(workdir, 4).step == 4


def test_a_run_that_ended_is_complete(stopped, text, tmp_path, scripted, one_device, monkeypatch):  # noqa: F811
    shutil.copytree(stopped[0], tmp_path / "run")
    monkeypatch.setattr(run, "make_job", lambda *_: pytest.fail("it is over"))
    for patience in (1, 2):
        assert run.train(config(text, **{"training.patience": patience}), tmp_path / "run") == stopped[1]
    with pytest.raises(ValueError, match="training.steps: there 14, now 16"):
        run.train(config(text, 16, **{"training.patience": 2}), tmp_path / "run")


@pytest.mark.parametrize("step", some([4, 6, 7, 8], 7, 8))
def test_a_run_that_died_decides_as_an_uninterrupted_one(
    step,
    stopped,
    text,  # noqa: F811
    tmp_path,
    scripted,
    one_device,
    monkeypatch,
):
    """It dies before the checkpoint of a step, at 4, 6 and 8 after the evaluation of that step."""
    save = Checkpoints.save

    def dies(self, state, progress):
        if int(state.step) == step:
            raise OSError("no space left")
        return save(self, state, progress)

    monkeypatch.setattr(Checkpoints, "save", dies)
    workdir = epath.Path(tmp_path / "run")
    with pytest.raises(OSError, match="no space left"):
        run.train(config(text, **{"training.patience": 2}), workdir)
    assert step == 4 or 4 in steps_in(workdir / "checkpoints")
    monkeypatch.setattr(Checkpoints, "save", save)
    assert run.train(config(text, **{"training.patience": 2}), workdir) == stopped[1]
    assert rows(workdir) == rows(stopped[0]) and steps_in(workdir / "checkpoints") == [4, 8]
    jax.tree.map(np.testing.assert_array_equal, params(workdir, 4), params(stopped[0], 4))


@pytest.mark.exhaustive
def test_more_patience_goes_on(stopped, text, tmp_path, scripted, one_device):  # noqa: F811
    workdir, whole = epath.Path(tmp_path / "run"), epath.Path(tmp_path / "whole")
    shutil.copytree(stopped[0], workdir)
    summary = run.train(config(text, **{"training.patience": 5}), workdir)
    assert (summary["steps"], summary["best"]) == (14, {"step": 12, "mlm_loss": 3.0}) and "patience" not in summary
    assert summary == run.train(config(text), whole)
    assert steps_in(workdir / "checkpoints") == steps_in(whole / "checkpoints") == [12, 14]
    jax.tree.map(np.testing.assert_array_equal, params(workdir, 12), params(whole, 12))


def test_the_best_of_those_that_are_there(text, tmp_path, scripted, one_device, monkeypatch):  # noqa: F811
    """A run goes on with `keep_best` at step 6, when the checkpoint of its best evaluation, of step 2, is gone."""
    losses = {2: 3.0, 4: 4.0, 6: 4.5, 8: 4.25, 10: 4.4, 12: 4.5, 14: 4.6}
    monkeypatch.setattr(sys.modules[__name__], "LOSSES", losses)
    workdir = epath.Path(tmp_path / "run")
    run.train(config(text, **{"training.keep_best": False}), workdir, pause_at=6)
    assert steps_in(workdir / "checkpoints") == [6]
    summary = run.train(config(text), workdir)
    assert steps_in(workdir / "checkpoints") == [8, 14]
    assert summary["best"] == {"step": 8, "mlm_loss": 4.25} and run.best_step(workdir) == 8


@pytest.mark.exhaustive
def test_less_patience_ends_an_unfinished_run(text, tmp_path, scripted, one_device, monkeypatch):  # noqa: F811
    honest = pipeline.batches

    def batches(*arguments):
        found = honest(*arguments)

        def iterate(start, stop, **more):
            for step, batch in enumerate(found.iterate(start, stop, **more), start):
                if step == 8:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

        return types.SimpleNamespace(iterate=iterate)

    monkeypatch.setattr(pipeline, "batches", batches)
    with pytest.raises(Interrupted, match="stopped at step 9"):
        run.train(config(text), tmp_path / "run")
    monkeypatch.setattr(pipeline, "batches", honest)
    summary = run.train(config(text, **{"training.patience": 2}), tmp_path / "run")
    assert (summary["steps"], summary["patience"], summary["best"]["step"]) == (9, 2, 4)
    assert [row["step"] for row in rows(tmp_path / "run") if row["split"] == "validation"] == [2, 4, 6, 8, 9]


def test_the_metric_may_be_another_one(text, tmp_path, scripted, one_device):  # noqa: F811
    """The highest accuracy is the best; the loss is not asked."""
    named = {"training.best_metric": "mlm_accuracy"}
    found = run.train(config(text, 4, **named), tmp_path / "run")["best"]
    evaluated = {row["step"]: row["mlm_accuracy"] for row in rows(tmp_path / "run") if row["split"] == "validation"}
    assert found == {"step": max(evaluated, key=evaluated.get), "mlm_accuracy": max(evaluated.values())}
    assert run.best_step(tmp_path / "run") == found["step"]
    with pytest.raises(ValueError, match="best_metric=accuracy is no metric .* one of .*mlm_accuracy, mlm_loss"):
        run.train(config(text, 4, **{"training.best_metric": "accuracy"}), tmp_path / "other")
    assert not steps_in(epath.Path(tmp_path / "other" / "checkpoints"))


def test_the_best_checkpoint_is_chosen_on_the_command_line(stopped, tmp_path, one_device, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(stopped[0], workdir)
    verb, fields = verbs.parse(["evaluate", f"--workdir={workdir}", "--step=best"])
    cli.run_verb(verb, cli.Request(**fields))
    assert f"the best checkpoint of {workdir} is that of step 4" in capsys.readouterr().err
    assert json.loads((workdir / "evaluation.json").read_text())["step"] == 4
    assert verbs.parse(["evaluate", "--step=8"])[1]["step"] == 8
    with pytest.raises(Exception, match="expected the number of a step, or best"):
        verbs.parse(["evaluate", "--step=worst"])
    shutil.rmtree(workdir / "checkpoints" / "4")  # of the one that is left, only the evaluation is missing
    (workdir / "checkpoints" / "8").rename(workdir / "checkpoints" / "7")
    with pytest.raises(FileNotFoundError, match="has no checkpoint with an evaluation: .* of the steps 7; give"):
        run.best_step(workdir)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"patience": 2, "evaluate_every": None},
            "training.patience=2 counts evaluations, but training.eval",
        ),
        (
            {"keep_best": True, "evaluate_every": 1500},
            "checkpoint_every=1000 must divide .*evaluate_every=1500",
        ),
    ],
)
def test_settings_that_contradict_each_other(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**changes)


def history(values):
    return [Evaluation(10 * number, None, 0.0, {"m": value}) for number, value in enumerate(values, 1)]


@pytest.mark.parametrize("lower", [True, False])
def test_the_best_is_that_of_a_plain_search(lower):
    random = np.random.default_rng(5)
    for _ in range(50):
        values = random.integers(0, 4, random.integers(0, 9)).astype(float).tolist()
        chosen = Criterion("m", lower)
        expected = (min if lower else max)(values) if values else None
        found = chosen.evaluation(history(values))
        assert (found and found.values["m"]) == expected
        assert chosen.number(history(values)) == (values.index(expected) + 1 if values else 0)
        for patience in (1, 2, 3):
            late = values[-patience:]
            early = values[:-patience]
            improved = (
                any((v < w) if lower else (v > w) for v in late for w in [(min if lower else max)(early)])
                if (early)
                else bool(late)
            )
            assert chosen.is_over(history(values), patience) == (len(values) >= patience and not improved)
        assert not chosen.is_over(history(values), None)


def test_values_that_are_no_numbers_are_never_the_best():
    chosen = Criterion.of_objective("mlm_loss")
    assert chosen.index([None, float("nan"), 3.0, float("inf"), 2.0, [1.0]]) == 4 and chosen.index([None]) is None
    assert [Criterion.of_objective(name).is_lower_better for name in ("nll", "loss", "rtd_accuracy")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("metric", "ordered"), [("nll", [1.0, 2.0, None]), ("rtd_accuracy", [2.0, 1.0, None])])
def test_a_value_that_was_not_measured_costs_the_most(metric, ordered):
    assert sorted([None, 1.0, 2.0], key=Criterion.of_objective(metric).cost) == ordered

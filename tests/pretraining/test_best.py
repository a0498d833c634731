"""Early stopping, and the checkpoint of the best evaluation, with validation losses that the tests choose."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.command_line import cli, parser
from ag_jax.pretraining import run, run_directory
from ag_jax.pretraining.open_run import open_run
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.criterion import Criterion, Evaluation
from tests import results as stored
from tests.pretraining.tiny_runs import LONG, SHORT, on_one_device, params, rows, settings

pytestmark = pytest.mark.usefixtures("one_device")
# The best but one is at step 4, and lower only at step 10.
LOSSES = {2: 5.0, 4: 4.0, 6: 4.5, 8: 4.25, 9: 4.5, 10: 3.0, 11: 3.5}
SETTINGS = {
    "training.evaluate_every": 2,
    "training.checkpoint_every": 1,
    "training.milestones": (1.0,),
    "training.keep_best": True,
}
PATIENT = {"training.patience": 2}


def script(monkeypatch, losses=LOSSES):
    """Replace the validation losses by LOSSES."""
    honest = run.PretrainingRun.evaluate

    def evaluate(self, params, step, beat):
        return honest(self, params, step, beat) | {"mlm_loss": losses[step]}

    monkeypatch.setattr(run.PretrainingRun, "evaluate", evaluate)


@pytest.fixture
def scripted(monkeypatch):
    script(monkeypatch)


def config(text, steps=LONG, **changed):
    return settings(text, steps, **SETTINGS | changed)


@pytest.fixture(scope="module")
def stopped(text, tmp_path_factory):
    """A run that ends at step 8, after two evaluations that are not better than that of step 4."""
    workdir = epath.Path(tmp_path_factory.mktemp("stopped") / "run")
    with on_one_device(), pytest.MonkeyPatch.context() as patch:
        script(patch)
        return workdir, run.train(config(text, **PATIENT), workdir)


def test_the_run_ends_and_its_best_checkpoint_stays(stopped, text, tmp_path, scripted, monkeypatch):
    workdir, summary = stopped
    assert (summary["steps"], summary["patience"], summary["best"]) == (8, 2, {"step": 4, "mlm_loss": 4.0})
    assert stored.facts(workdir) == summary
    assert steps_in(workdir / "checkpoints") == [4, 8]
    assert run_directory.best_step(workdir) == 4 and open_run(workdir, 4).step == 4
    shutil.copytree(workdir, tmp_path / "run")
    monkeypatch.setattr(run, "PretrainingRun", lambda *_: pytest.fail("it is over"))
    for patience in (1, 2):
        assert run.train(config(text, **{"training.patience": patience}), tmp_path / "run") == summary
    with pytest.raises(ValueError, match="training.steps: there 11, now 16"):
        run.train(config(text, 16, **PATIENT), tmp_path / "run")


def test_a_run_that_dies_twice_decides_as_an_uninterrupted_one(stopped, text, tmp_path, scripted, monkeypatch):
    """It dies before the checkpoints of steps 7 and 8, of which that of 8 comes after an evaluation."""
    save, workdir = Checkpoints.save, epath.Path(tmp_path / "run")
    for step in (7, 8):

        def dies(self, state, progress, step=step):
            if int(state.step) == step:
                raise OSError("no space left")
            return save(self, state, progress)

        monkeypatch.setattr(Checkpoints, "save", dies)
        with pytest.raises(OSError, match="no space left"):
            run.train(config(text, **PATIENT), workdir)
        assert 4 in steps_in(workdir / "checkpoints")
    monkeypatch.setattr(Checkpoints, "save", save)
    assert run.train(config(text, **PATIENT), workdir) == stopped[1]
    assert rows(workdir) == rows(stopped[0]) and steps_in(workdir / "checkpoints") == [4, 8]
    jax.tree.map(np.testing.assert_array_equal, params(workdir, 4), params(stopped[0], 4))


def test_more_patience_goes_on(stopped, text, tmp_path, scripted):
    workdir, whole = epath.Path(tmp_path / "run"), epath.Path(tmp_path / "whole")
    shutil.copytree(stopped[0], workdir)
    summary = run.train(config(text, **{"training.patience": 5}), workdir)
    assert (summary["steps"], summary["best"]) == (LONG, {"step": 10, "mlm_loss": 3.0}) and "patience" not in summary
    assert summary == run.train(config(text), whole)
    assert steps_in(workdir / "checkpoints") == steps_in(whole / "checkpoints") == [10, LONG]
    jax.tree.map(np.testing.assert_array_equal, params(workdir, 10), params(whole, 10))


def test_the_best_of_those_that_are_there(text, tmp_path, monkeypatch):
    """A run goes on with `keep_best` at step 6, when the checkpoint of its best evaluation, of step 2, is gone."""
    script(monkeypatch, {2: 3.0, 4: 4.0, 6: 4.5, 8: 4.25, 10: 4.4, 11: 4.6})
    workdir = epath.Path(tmp_path / "run")
    run.train(config(text, **{"training.keep_best": False}), workdir, until=6)
    assert steps_in(workdir / "checkpoints") == [6]
    summary = run.train(config(text), workdir)
    assert steps_in(workdir / "checkpoints") == [8, LONG]
    assert summary["best"] == {"step": 8, "mlm_loss": 4.25} and run_directory.best_step(workdir) == 8


def test_less_patience_ends_an_unfinished_run(text, tmp_path, scripted):
    assert run.train(config(text), tmp_path / "run", until=9)["steps"] == 9
    summary = run.train(config(text, **PATIENT), tmp_path / "run")
    assert (summary["steps"], summary["patience"], summary["best"]["step"]) == (9, 2, 4)
    assert [row["step"] for row in rows(tmp_path / "run", "validation")] == [2, 4, 6, 8, 9]


def test_the_metric_may_be_another_one(text, tmp_path, scripted):
    """The highest accuracy is the best; the loss is not asked."""
    named = {"training.best_metric": "mlm_accuracy"}
    found = run.train(config(text, SHORT, **named), tmp_path / "run")["best"]
    evaluated = {row["step"]: row["mlm_accuracy"] for row in rows(tmp_path / "run", "validation")}
    assert found == {"step": max(evaluated, key=evaluated.get), "mlm_accuracy": max(evaluated.values())}
    assert run_directory.best_step(tmp_path / "run") == found["step"]
    with pytest.raises(ValueError, match="best_metric=accuracy .*mlm_accuracy, mlm_loss"):
        run.train(config(text, SHORT, **{"training.best_metric": "accuracy"}), tmp_path / "other")
    assert not steps_in(epath.Path(tmp_path / "other" / "checkpoints"))


def test_the_best_checkpoint_is_chosen_on_the_command_line(stopped, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(stopped[0], workdir)
    cli.run_verb(parser.parse(["evaluate", f"--workdir={workdir}", "--step=best"]))
    assert "that of step 4" in capsys.readouterr().err
    assert json.loads((workdir / "evaluation.json").read_text())["step"] == 4
    assert parser.parse(["evaluate", "--workdir=w", "--step=8"]).step == 8
    with pytest.raises(Exception, match="or best"):
        parser.parse(["evaluate", "--workdir=w", "--step=worst"])
    shutil.rmtree(workdir / "checkpoints" / "4")  # of the one that is left, only the evaluation is missing
    (workdir / "checkpoints" / "8").rename(workdir / "checkpoints" / "7")
    with pytest.raises(FileNotFoundError, match="steps 7"):
        run_directory.best_step(workdir)


def history(values):
    return [Evaluation(10 * number, None, 0.0, {"m": value}) for number, value in enumerate(values, 1)]


@pytest.mark.parametrize("lower", [True, False])
def test_the_best_is_that_of_a_plain_search(lower):
    random, best_of = np.random.default_rng(5), min if lower else max
    for _ in range(50):
        values = random.integers(0, 4, random.integers(0, 9)).astype(float).tolist()
        chosen = Criterion("m", lower)
        expected = best_of(values) if values else None
        found = chosen.best(history(values))
        assert (found and found.values["m"]) == expected
        assert found is None or found.step == 10 * (values.index(expected) + 1)
        for patience in (1, 2, 3):
            early, late = values[:-patience], values[-patience:]
            improved = best_of(values) not in early if early else bool(late)
            patient = dataclasses.replace(chosen, patience=patience)
            assert patient.is_over(history(values)) == (len(values) >= patience and not improved)
        assert not chosen.is_over(history(values))


def test_values_that_are_no_numbers_are_never_the_best():
    chosen = Criterion.of_objective("mlm_loss")
    assert chosen.index([None, float("nan"), 3.0, float("inf"), 2.0, [1.0]]) == 4 and chosen.index([None]) is None
    lower = {name: Criterion.of_objective(name).is_lower_better for name in ("nll", "loss", "rtd_accuracy")}
    assert lower == {"nll": True, "loss": True, "rtd_accuracy": False}
    for metric, ordered in (("nll", [1.0, 2.0, None]), ("rtd_accuracy", [2.0, 1.0, None])):
        assert sorted([None, 1.0, 2.0], key=Criterion.of_objective(metric).cost) == ordered

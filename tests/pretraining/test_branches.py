"""Runs that go on from a checkpoint of another run with another schedule of the learning rate."""

import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run
from ag_jax.pretraining.branch import begin
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.job import Evaluation
from tests.pretraining.test_extended_runs import params, rows, settings, text  # noqa: F401

SETTINGS = {
    "training.keep_every": 2,
    "guidance.mode": "loss",
    "guidance.heads": "next:1",
    "guidance.alpha_rule": "auto",
    "guidance.schedule": "constant",
    "optimizer.decay": "one_minus_sqrt",
    "optimizer.decay_steps": 4,
    "optimizer.final_share": 0.1,
}


@pytest.fixture(scope="module")
def stable(text, tmp_path_factory):  # noqa: F811
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    workdir = epath.Path(tmp_path_factory.mktemp("stable") / "run")
    run.train(settings(text, 12, **SETTINGS), workdir, pause_at=6)  # its learning rate falls from step 8 on
    patch.undo()
    return workdir


def branch(text, origin, **changed):  # noqa: F811
    return settings(text, 8, **{**SETTINGS, "training.branch_from": f"{origin}:4", **changed})


def test_a_branch_equals_a_run_with_its_schedule(stable, text, tmp_path, one_device, capsys):  # noqa: F811
    """With all rows of metrics; also if it was stopped, and when the other run is gone.

    Not to the bit, because the numbers of steps are constants of the compiled programs, which round differently.
    """
    whole, branched = epath.Path(tmp_path / "whole"), epath.Path(tmp_path / "branched")
    expected = run.train(settings(text, 8, **SETTINGS), whole)
    origin = epath.Path(tmp_path / "origin")
    shutil.copytree(stable, origin)
    config = branch(text, origin)
    run.train(config, branched, pause_at=5)
    assert f"going on from step 4 of {origin}\n" in capsys.readouterr().err
    assert min(steps_in(branched / "checkpoints")) > 4
    shutil.rmtree(origin)
    found = run.train(config, branched)
    assert len(rows(whole)) > 5
    for one, other in zip(rows(branched), rows(whole), strict=True):
        assert one.keys() == other.keys() and one.pop("split") == other.pop("split")
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-4, err_msg=name)
    for one, other in zip(jax.tree.leaves(params(branched, 8)), jax.tree.leaves(params(whole, 8)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)  # of updates of 1e-4
    assert found["steps"] == expected["steps"] == 8
    assert found["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)


def test_a_branch_killed_before_its_first_checkpoint(stable, text, tmp_path, one_device, capsys):  # noqa: F811
    """The branch begins again; a learning rate that differs at its first step is printed."""
    workdir = epath.Path(tmp_path / "run")
    config = branch(text, stable, **{"optimizer.decay_steps": None, "optimizer.decay": "linear"})
    run.train(config, workdir, pause_at=5)
    expected = rows(workdir)
    shutil.rmtree(workdir / "checkpoints")
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, "split": "train", "loss": 1e9}) + "\n")
    run.train(config, workdir, pause_at=5)
    assert rows(workdir) == expected
    assert (
        capsys.readouterr().err.count("; the learning rate jumps from 0.0001 in that run to 5.5e-05 in this one\n") == 2
    )


def test_time_patience_and_best_checkpoint_of_a_branch_are_its_own(stable, text, one_device):  # noqa: F811
    """A branch of a run that took long, and whose evaluations got worse, does not end before its first step."""
    ends = {"training.patience": 2, "training.time_limit": 3600, "training.keep_best": True}
    config = branch(text, f"{stable}", **ends, **{"training.checkpoint_every": 1})
    corpus = pretraining_corpus.prepare(config, stable)
    job = run.make_job(config, stable, corpus)
    metric = job.program.make_objective(job.hyperparameters).primary_metric.metric

    def history(*losses):
        return [Evaluation(step, None, 0.0, {metric: loss}) for step, loss in losses]

    theirs = [(1, 3.0), (2, 4.0), (4, 5.0)]
    assert not job.stop(history(*theirs)) and not job.stop(history(*theirs, (6, 3.5)))
    assert job.stop(history(*theirs, (6, 3.5), (8, 3.2))), "never better than the run before it"
    assert not job.stop(history(*theirs, (6, 3.5), (8, 2.9)))
    assert job.best(history(*theirs)) is None
    assert job.best(history(*theirs, (6, 3.5), (8, 3.2))) == 8, "the best of those whose checkpoints it has"
    found = job.first(job.program.abstract)
    assert found.progress["seconds"] == 0 and {one["seconds"] for one in found.progress["history"]} == {0}
    before = Checkpoints(stable / "checkpoints", read_only=True).restore(4, job.program.abstract).progress
    assert before["seconds"] > 0 and before["history"][0]["seconds"] > 0
    assert job.read_progress(found.progress).tokens == before["tokens"] > 0


def test_a_branch_whose_words_end_before_it_begins(stable, text, tmp_path):  # noqa: F811
    workdir = epath.Path(tmp_path / "run")
    with pytest.raises(ValueError, match="is not before the last step, training.steps=3 of training.words=150, which"):
        run.train(branch(text, stable, **{"training.words": 150, "optimizer.decay_steps": None}), workdir)
    assert not (workdir / "config.json").exists()


def test_milestones_in_words_that_lie_before_a_branch(stable, text, tmp_path):  # noqa: F811
    workdir = epath.Path(tmp_path / "run")
    changed = {"training.milestone_words": (150, 350)}  # at steps 3 and 7 or so
    message = f"milestone_words has 150, which the other run had seen at training.branch_from={stable}:4, so that"
    with pytest.raises(ValueError, match=message):
        run.train(branch(text, stable, **changed), workdir)
    assert not (workdir / "config.json").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"training.branch_from": "runs/stable"},
            "branch_from=runs/stable must be the directory of a run and the step",
        ),
        (
            {"training.branch_from": "{}:3"},
            "that run has no checkpoint of step 3; it has 0, 2, 4, 6. training.keep_every",
        ),
        ({"training.branch_from": "{}:6", "training.steps": 6}, "is not before the last step, training.steps=6"),
        ({"training.branch_from": "{}x:4"}, "x:4: that run has no checkpoint of step 4; it has none"),
        (
            {"training.batch_size": 2, "seed": 1},
            "another config:\n  seed: there 0, now 1\n  training.batch_size: there 4",
        ),
    ],
)
def test_branches_that_cannot_begin(stable, text, tmp_path, changed, message):  # noqa: F811
    changed = {key: value.format(stable) if isinstance(value, str) else value for key, value in changed.items()}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run.train(branch(text, stable, **changed), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_jump_of_guidance_whose_alpha_was_chosen(stable, text, tmp_path, capsys):  # noqa: F811
    """The coefficient is that of `alpha.json`, not that of the setting `guidance.alpha`, which the rule replaces."""
    origin, workdir = epath.Path(tmp_path / "origin"), epath.Path(tmp_path / "run")
    shutil.copytree(stable, origin)
    workdir.mkdir()
    (origin / "alpha.json").write_text('{"alpha": 10.0}')
    falls = {"guidance.schedule": "linear", "guidance.alpha": 3.0}
    stored = json.loads((origin / "config.json").read_text())
    stored["guidance"].update(schedule="linear", alpha=3.0)
    (origin / "config.json").write_text(json.dumps(stored))
    begin(branch(text, origin, **falls), workdir)
    jump = "the coefficient of guidance jumps from 6.67 in that run to 5 in this one"  # after 4 of 12, and of 8 steps
    assert f"; {jump}\n" in capsys.readouterr().err

"""Runs that go on from a checkpoint of another run with another schedule of the learning rate."""

import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run, run_directory
from ag_jax.pretraining.branch import begin
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.criterion import Evaluation
from tests.pretraining import tiny_runs
from tests.pretraining.tiny_runs import LONG, SHORT, on_one_device, params, rows

pytestmark = pytest.mark.usefixtures("one_device")


def settings(text, steps, **changed):
    guided = {**tiny_runs.GUIDED, "guidance.alpha_rule": "auto", "training.keep_every": 2}
    return tiny_runs.settings(text, steps, **guided | changed)


@pytest.fixture(scope="module")
def stable(text, tmp_path_factory):
    workdir = epath.Path(tmp_path_factory.mktemp("stable") / "run")
    with on_one_device():
        run.train(settings(text, LONG), workdir, until=6)  # its learning rate falls from step 9 on
    return workdir


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    workdir = epath.Path(tmp_path_factory.mktemp("whole") / "run")
    with on_one_device():
        run.train(settings(text, SHORT), workdir)  # its learning rate falls from step 4 on
    return workdir


def branch(text, origin, **changed):
    return settings(text, SHORT, **{"training.branch_from": f"{origin}:4", **changed})


def test_a_branch_equals_a_run_with_its_schedule(stable, whole, text, tmp_path, capsys):
    """With all rows of metrics; also if it was stopped, and when the other run is gone.

    Not to the bit, because the numbers of steps are constants of the compiled programs, which round differently.
    """
    branched, origin = (epath.Path(tmp_path / name) for name in ("branched", "origin"))
    shutil.copytree(stable, origin)
    config = branch(text, origin)
    run.train(config, branched, until=5)
    assert "jumps" not in capsys.readouterr().err
    assert min(steps_in(branched / "checkpoints")) > 4
    shutil.rmtree(origin)
    found, expected = run.train(config, branched), run_directory.read_summary(whole)
    assert len(rows(whole)) == 5
    for one, other in zip(rows(branched), rows(whole), strict=True):
        assert one.keys() == other.keys() and one.pop("split") == other.pop("split")
        for name, value in one.items():
            np.testing.assert_allclose(value, other[name], rtol=1e-4, err_msg=name)
    for one, other in zip(jax.tree.leaves(params(branched, SHORT)), jax.tree.leaves(params(whole, SHORT)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)  # of updates of 1e-4
    assert found["steps"] == expected["steps"] == SHORT
    assert found["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)


def test_the_learning_rate_of_an_extended_run_is_that_of_the_longer_one(whole, text, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    run.train(settings(text, LONG), tmp_path / "run")
    rates = {row["step"]: row["learning_rate"] / 1e-4 for row in rows(tmp_path / "run", "train")}
    fall = 0.1 + 0.9 * (1 - 0.5**0.5)  # half of it
    assert rates == pytest.approx({2: 1, 4: 1, 6: fall, 8: 1, 10: 1, 11: fall}, rel=1e-6)


def test_a_branch_killed_before_its_first_checkpoint(stable, text, tmp_path, capsys):
    """The branch begins again; a learning rate that differs at its first step is printed."""
    workdir = epath.Path(tmp_path / "run")
    config = branch(text, stable, **{"optimizer.decay_steps": 3})
    run.train(config, workdir, until=5)
    expected = rows(workdir)
    shutil.rmtree(workdir / "checkpoints")
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 5, "split": "train", "loss": 1e9}) + "\n")
    run.train(config, workdir, until=5)
    assert rows(workdir) == expected
    jump = 1e-4 * (0.1 + 0.9 * (1 - (1 / 3) ** 0.5))
    assert capsys.readouterr().err.count(f"jumps from 0.0001 in that run to {jump:.3g} in this one") == 2


def test_time_patience_and_best_checkpoint_of_a_branch_are_its_own(stable, text):
    """A branch of a run that took long, and whose evaluations got worse, does not end before its first step."""
    ends = {"training.patience": 2, "training.time_limit": 3600, "training.keep_best": True}
    config = branch(text, f"{stable}", **ends, **{"training.checkpoint_every": 1})
    corpus = pretraining_corpus.prepare(config, stable)
    pretraining = run.PretrainingRun(config, stable, corpus)
    criterion = pretraining.criterion

    def history(*losses):
        return [Evaluation(step, None, 0.0, {criterion.metric: loss}) for step, loss in losses]

    theirs = [(1, 3.0), (2, 4.0), (4, 5.0)]
    assert not criterion.is_over(history(*theirs)) and not criterion.is_over(history(*theirs, (5, 3.5)))
    assert criterion.is_over(history(*theirs, (5, 3.5), (6, 3.2))), "never better than the run before it"
    assert not criterion.is_over(history(*theirs, (5, 3.5), (6, 2.9)))
    assert criterion.best(history(*theirs)) is None
    assert criterion.best(history(*theirs, (5, 3.5), (6, 3.2))).step == 6, "the best of those whose checkpoints it has"
    found = pretraining.start(pretraining.program.abstract)
    assert found.progress["seconds"] == 0 and {one["seconds"] for one in found.progress["history"]} == {0}
    before = Checkpoints(stable / "checkpoints", read_only=True).restore(4, pretraining.program.abstract).progress
    assert before["seconds"] > 0 and before["history"][0]["seconds"] > 0
    assert found.progress["tokens"] == before["tokens"] > 0


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"training.branch_from": "runs/stable"}, "branch_from=runs/stable"),
        ({"training.branch_from": "{}:3"}, "step 3; it has 0, 2, 4, 6"),
        ({"training.branch_from": "{}:6"}, "training.steps=6"),
        ({"training.branch_from": "{}x:4"}, "x:4: .* step 4; it has none"),
        ({"training.batch_size": 2, "seed": 1}, "\n  seed: there 0, now 1\n  training.batch_size: there 4"),
        ({"training.words": 150, "optimizer.decay_steps": None}, "training.steps=3 of training.words=150"),
        ({"training.milestone_words": (150, 250)}, "milestone_words has 150, .*:4"),  # at steps 3 and 5 or so
    ],
)
def test_branches_that_cannot_begin(stable, text, tmp_path, changed, named):
    changed = {key: value.format(stable) if isinstance(value, str) else value for key, value in changed.items()}
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        run.train(branch(text, stable, **changed), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_jump_of_guidance_whose_alpha_was_chosen(stable, text, tmp_path, capsys):
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
    steps = {LONG: 10 * 7 / 11, SHORT: 10 * 2 / 6}
    assert f"jumps from {steps[LONG]:.3g} in that run to {steps[SHORT]:.3g} in" in capsys.readouterr().err

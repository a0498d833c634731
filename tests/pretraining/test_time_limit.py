"""Runs that end at `training.time_limit`, before their last step."""

import json
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.pretraining import comparison, run
from ag_jax.training.checkpoint import steps_in
from ag_jax.training.job import Evaluation, Progress
from ag_jax.training.loop import Loop
from tests.pretraining.test_extended_runs import SHORT, params, rows, settings, short, text  # noqa: F401

ENDED = 4  # step


@pytest.fixture
def up(monkeypatch):
    """Let the time be up after a number of steps, counted over all runs of the test."""
    asked = []
    monkeypatch.setattr(Loop, "_time_is_up", lambda self: asked.append(1) or len(asked) >= up.after)
    up = types.SimpleNamespace(after=ENDED + 1, asked=asked)  # the first question is before the first step
    return up


def test_a_run_ends_at_the_limit_and_goes_on_with_a_longer_one(up, text, short, tmp_path, one_device):  # noqa: F811
    workdir, expected = epath.Path(tmp_path / "run"), short[1]
    limited = settings(text, SHORT, **{"training.time_limit": 60})
    found = run.train(limited, workdir)
    assert (found["steps"], found["time_limit"]) == (ENDED, 60)
    assert steps_in(workdir / "checkpoints")[-1] == ENDED
    assert [row["step"] for row in rows(workdir) if row["split"] == "validation"] == [3, ENDED]
    assert [run.milestone_step(limited, workdir, fraction) for fraction in (0.0, 0.5, 1.0)] == [0, 3, ENDED]
    labels = [label for label, _ in comparison._maps_during_training(workdir, limited)]
    assert labels == ["step 0, 0 % of training", "step 3, 50 % of training", "step 4, the last one"]

    asked = len(up.asked)
    assert run.train(limited, workdir) == found, "the run is complete"
    assert len(up.asked) == asked
    with pytest.raises(ValueError, match="training.steps"):  # it did not train all of its steps
        run.train(settings(text, SHORT + 2, **{"training.time_limit": 60}), workdir)
    up.after = 1000
    whole = run.train(settings(text, SHORT), workdir)
    assert "time_limit" not in whole and whole["validation_loss"] == expected["validation_loss"]
    jax.tree.map(np.testing.assert_array_equal, params(workdir, SHORT), params(short[0], SHORT))


def test_a_run_does_not_end_before_a_step_that_trains(up, text, tmp_path, one_device):  # noqa: F811
    up.after = 2  # after the first step, whose learning rate is 0
    limited = settings(text, SHORT, **{"training.time_limit": 60, "optimizer.warmup_steps": 3})
    assert run.train(limited, epath.Path(tmp_path))["steps"] == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_that_died_at_its_last_evaluation(when, up, text, tmp_path, one_device, monkeypatch):  # noqa: F811
    limited = settings(text, SHORT, **{"training.time_limit": 60})
    honest = Loop._evaluate

    def evaluate(self, state, step):
        done = honest(self, state, step) if step < ENDED or when == "after" else False
        return done if step < ENDED else 1 / 0

    monkeypatch.setattr(Loop, "_evaluate", evaluate)
    with pytest.raises(ZeroDivisionError):
        run.train(limited, tmp_path)
    assert not (tmp_path / "summary.json").exists()
    monkeypatch.setattr(Loop, "_evaluate", honest)
    found = run.train(limited, tmp_path)
    assert (found["steps"], found["time_limit"]) == (ENDED, 60)
    assert found == json.loads((tmp_path / "summary.json").read_text())
    assert [row["step"] for row in rows(tmp_path) if row["split"] == "validation"] == [3, ENDED]


@pytest.mark.parametrize(("limit", "up"), [(None, False), (9, True), (10, False)])
def test_seconds_of_all_restarts_count(limit, up, monkeypatch):
    """4 seconds before the last evaluation, 2 before the last checkpoint, and 3.5 since."""
    history = [Evaluation(3, None, 1.0, {}), Evaluation(6, None, 3.0, {})]
    loop = types.SimpleNamespace(
        job=types.SimpleNamespace(config=types.SimpleNamespace(time_limit=limit)),
        progress=Progress(history=history, seconds=2.0),
        mark=100.0,
    )
    monkeypatch.setattr("ag_jax.training.loop.time.perf_counter", lambda: 103.5)
    assert Loop._time_is_up(loop) is up

"""Runs that are extended by a larger `training.steps`, and runs that end at `training.time_limit`."""

import functools
import itertools
import json
import shutil
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.data.text import batching
from ag_jax.pretraining import comparison, extension, run, run_directory
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.training.checkpoint import steps_in
from ag_jax.training.config import TrainingConfig
from ag_jax.training.criterion import Evaluation
from ag_jax.training.journal import Journal
from ag_jax.training.trainee import Progress, mean_metrics
from tests.pretraining.tiny_runs import LONG, SHORT, params, rows, settings

pytestmark = pytest.mark.usefixtures("one_device")
ENDED = 4  # step at which the time is up


@pytest.fixture
def copy(short, tmp_path):
    shutil.copytree(short[0], tmp_path / "run")
    return epath.Path(tmp_path / "run")


def test_with_a_constant_learning_rate_it_is_the_longer_run(text, short, copy, tmp_path):
    """Includes a kill between the two files that an extension writes."""
    extension.begin(SHORT, settings(text, LONG), copy)
    assert run_directory.read_config(copy).training.steps == SHORT and run_directory.read_summary(copy) is None
    summary, whole = run.train(settings(text, LONG), copy), epath.Path(tmp_path / "whole")
    assert summary == run.train(settings(text, LONG), whole) == run.train(settings(text, LONG), copy)
    jax.tree.map(np.testing.assert_array_equal, params(copy, LONG), params(whole, LONG))
    assert rows(copy) == rows(whole)
    assert steps_in(copy / "checkpoints") == [0, 3, 6, 11] and steps_in(whole / "checkpoints") == [0, 6, 11]
    assert run_directory.read_config(copy).training.steps == LONG


def test_an_extension_that_was_given_up_is_finished_as_it_was(text, short, copy):
    extension.begin(SHORT, settings(text, LONG), copy)
    assert run.train(settings(text), copy) == short[1]
    assert run.train(settings(text, LONG), copy)["steps"] == LONG


@pytest.mark.parametrize(
    ("steps", "changed", "is_finished", "named"),
    [
        (SHORT - 1, {}, True, "training.steps: there 6, now 5"),
        (LONG, {"optimizer.weight_decay": 0.5}, True, "weight_decay"),
        (LONG, {}, False, "training.steps: there 6, now 11"),
    ],
)
def test_what_is_no_extension_is_an_error(text, copy, steps, changed, is_finished, named):
    if not is_finished:
        shutil.rmtree(copy / "checkpoints" / str(SHORT))
    with pytest.raises(ValueError, match=named):
        run.train(settings(text, steps, **changed), copy)
    assert (copy / "result.json").exists() and run_directory.read_config(copy).training.steps == SHORT


def test_milestones_stay_when_a_longer_run_has_others(tmp_path):
    def config(steps, *milestones):
        return ExperimentConfig(training=TrainingConfig(steps=steps, milestones=milestones))

    directory, lengths = epath.Path(tmp_path), [(1000, (0.0, 0.3)), (2000, (0.25,)), (4000, (1.0,))]
    for (before, milestones), (steps, others) in itertools.pairwise(lengths):
        (directory / "config.json").write_text(json.dumps({"training": {"milestones": milestones}}))
        extension.begin(before, config(steps, *others), directory)
    (directory / "config.json").write_text('{"training": {"milestones": [1.0]}}')
    assert extension.kept_steps(config(4000, 0.01), directory) == (
        *(0, 40, 300, 500, 4000),  # 0 and 300 of the first, 500 of the second, and 0.01 and 1.0 of the length now
    )
    assert extension.kept_steps(config(4000, 0.01), directory / "not_begun") == ()
    (directory / "kept_steps.json").write_text('{"steps": [0, "300"]}')
    with pytest.raises(ValueError, match="kept_steps.json"):
        extension.kept_steps(config(4000, 1.0), directory)


def test_changed_files_of_a_run_are_named(text, copy):
    config, metrics, result = (copy / name for name in ("config.json", "metrics.jsonl", "result.json"))
    whole = result.read_text()
    result.write_text(whole.replace(f'"steps": {SHORT}', f'"steps": {SHORT - 1}'))
    with pytest.raises(ValueError, match=r"result\.json has another content"):
        run.train(settings(text), copy)
    result.write_text(whole)
    whole = metrics.read_text()
    metrics.write_text(whole.replace("1", "2", 1))
    with pytest.raises(ValueError, match=r"metrics\.jsonl was changed"):
        run.train(settings(text, LONG), copy)
    metrics.write_text(whole)
    config.write_text(config.read_text().replace('"activation": "gelu"', '"activation": "relu"'))
    relu = settings(text, LONG, **{"model.activation": "relu"})
    for use in (open_run, run.evaluate, lambda _: run.train(relu, copy)):
        with pytest.raises(ValueError, match=r"config\.json .*\n  model.activation: there 'gelu', now 'relu'"):
            use(copy)


@pytest.fixture
def up(monkeypatch):
    """Let the time be up after a number of steps, counted over all runs of the test."""
    asked = []
    monkeypatch.setattr(Journal, "is_time_up", lambda self: asked.append(1) or len(asked) >= up.after)
    up = types.SimpleNamespace(after=ENDED, asked=asked)
    return up


def test_a_run_ends_at_the_limit_and_goes_on_with_a_longer_one(up, text, short, tmp_path):
    workdir = epath.Path(tmp_path / "run")
    limited = settings(text, **{"training.time_limit": 60})
    found = run.train(limited, workdir)
    assert (found["steps"], found["time_limit"]) == (ENDED, 60)
    assert steps_in(workdir / "checkpoints")[-1] == ENDED
    assert [row["step"] for row in rows(workdir, "validation")] == [3, ENDED]
    assert [run_directory.milestone_step(limited, workdir, fraction) for fraction in (0.0, 0.5, 1.0)] == [0, 3, ENDED]
    assert len(comparison._maps_during_training(workdir, limited)) == 3

    asked = len(up.asked)
    assert run.train(limited, workdir) == found, "the run is complete"
    assert len(up.asked) == asked
    with pytest.raises(ValueError, match="training.steps"):  # it did not train all of its steps
        run.train(settings(text, LONG, **{"training.time_limit": 60}), workdir)
    up.after = 1000
    whole = run.train(settings(text), workdir)
    assert "time_limit" not in whole and whole["validation_loss"] == short[1]["validation_loss"]
    jax.tree.map(np.testing.assert_array_equal, params(workdir, SHORT), params(short[0], SHORT))


def test_a_run_does_not_end_before_a_step_that_trains(up, text, tmp_path):
    up.after = 1  # after the first step, whose learning rate is 0
    limited = settings(text, **{"training.time_limit": 60, "optimizer.warmup_steps": 3})
    assert run.train(limited, epath.Path(tmp_path))["steps"] == 2


@pytest.mark.parametrize(("limit", "up"), [(None, False), (9, True), (10, False)])
def test_seconds_of_all_restarts_count(limit, up, monkeypatch):
    """4 seconds before the last evaluation, 2 before the last checkpoint, and 3.5 since."""
    history = [Evaluation(3, None, 1.0, {}), Evaluation(6, None, 3.0, {})]
    config = types.SimpleNamespace(time_limit=limit)
    trainee, progress = types.SimpleNamespace(config=config), Progress(history=history, seconds=2.0)
    monkeypatch.setattr("ag_jax.training.journal.time.perf_counter", lambda: 103.5)
    journal = types.SimpleNamespace(trainee=trainee, progress=progress, _mark=100.0)
    journal._total_seconds = functools.partial(Journal._total_seconds, journal)
    assert Journal.is_time_up(journal) is up


def test_a_validation_without_a_masked_token_is_rejected_before_training(text, tmp_path):
    more, workdir = {"data.masking.evaluation_rate": 1e-9, "data.validation_rows": 3}, epath.Path(tmp_path / "run")
    with pytest.raises(ValueError, match="masked token .* validation"):
        run.train(settings(text, **more), workdir)
    assert not run_directory.is_begun(workdir)


def test_training_validates_on_some_rows_and_evaluate_on_all(text, short, tmp_path):
    more = {"data.validation_fraction": 0.2, "data.validation_rows": 3}
    more["data.tokenizer.path"] = str(short[0] / "tokenizer")  # so that its programs are those of the other run
    config, workdir = settings(text, **more), epath.Path(tmp_path / "run")
    summary = run.train(config, workdir)
    corpus = pretraining_corpus.prepare(config, workdir)
    opened, count = open_run(workdir), len(corpus.validation)
    assert count > 8
    pretraining = run.PretrainingRun(config, workdir, corpus)
    assert pretraining.evaluation_batches == 1

    def loss(numbers):
        """The loss over the rows with these numbers, in batches of four rows, of which -1 is empty."""
        filled = np.array([*numbers, *[-1] * (-len(numbers) % 4)])
        batches = [
            batching.make_batch(
                config.data, corpus.validation, corpus.tokenizer, example_B=part, epoch_B=np.zeros_like(part), seed=0
            )
            for part in filled.reshape(-1, 4)
        ]
        program, hyperparameters = pretraining.program, pretraining.hyperparameters
        return mean_metrics(program, hyperparameters, batches, opened.params, SHORT)["mlm_loss"]

    assert summary["validation_loss"] == pytest.approx(loss([0, count // 3, 2 * count // 3]), rel=1e-6)
    found = run.evaluate(workdir)
    assert found["mlm_loss"] == pytest.approx(loss(range(count)), rel=1e-6)
    assert found["mlm_loss"] != pytest.approx(summary["validation_loss"], rel=1e-4)
    assert found["evaluated_on"]["rows"] == count


def test_tokens_that_a_run_had_seen(short, tmp_path):
    seen = {row["step"]: row["tokens_seen"] for row in rows(short[0], "train")}
    assert [run_directory.tokens_seen(short[0], step) for step in (0, 4, SHORT, 5)] == [0, seen[4], seen[SHORT], None]
    assert (
        run_directory.tokens_seen(epath.Path(tmp_path), 4) is None and seen[4] < seen[SHORT] == short[1]["tokens_seen"]
    )

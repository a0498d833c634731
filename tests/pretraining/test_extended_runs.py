"""Finished runs whose `training.steps` is raised."""

import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import extension, run
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.config import TrainingConfig
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics

SHORT, LONG = 6, 11


def settings(text, steps, **changed):
    values = pretraining_config.default_config()
    values.update_from_flattened_dict(
        {
            "data.source": str(text),
            "data.sequence_length": 16,
            "data.tokenizer.vocabulary_size": 300,
            "model.layers": 1,
            "model.width": 16,
            "model.heads": 2,
            "model.max_length": 16,
            "optimizer.decay": "constant",
            "training.steps": steps,
            "training.batch_size": 4,
            "training.log_every": 2,
            "training.evaluate_every": 3,
            "training.checkpoint_every": 2,
            "training.milestones": (0.0, 0.5, 1.0),
            "training.keep_last": 1,
            "training.tensorboard": False,
            **changed,
        }
    )
    return pretraining_config.parse(values)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(f"The union is strong, and number {number} builds a road." for number in range(60)))
    return path


@pytest.fixture(scope="module")
def short(text, tmp_path_factory):
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    workdir = epath.Path(tmp_path_factory.mktemp("short") / "run")
    summary = run.train(settings(text, SHORT), workdir)
    patch.undo()
    return workdir, summary


@pytest.fixture
def copy(short, tmp_path):
    shutil.copytree(short[0], tmp_path / "run")
    return epath.Path(tmp_path / "run")


def params(workdir, step):
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    restored = checkpoints.restore_params(step)
    checkpoints.close()
    return restored


def rows(workdir):
    return [{key: value for key, value in row.items() if key not in CLOCK_FIELDS} for row in read_metrics(workdir)]


def test_with_a_constant_learning_rate_it_is_the_longer_run(text, short, copy, tmp_path, one_device, capsys):
    summary = run.train(settings(text, LONG), copy)
    assert f"extending the run of {SHORT} steps to {LONG}" in capsys.readouterr().err
    whole = epath.Path(tmp_path / "whole")
    assert summary == run.train(settings(text, LONG), whole)
    jax.tree.map(np.testing.assert_array_equal, params(copy, LONG), params(whole, LONG))
    assert rows(copy) == rows(whole)
    assert steps_in(copy / "checkpoints") == [0, 3, 6, 11] and steps_in(whole / "checkpoints") == [0, 6, 11]
    assert json.loads((copy / f"summary-{SHORT}.json").read_text()) == short[1]
    assert run.read_config(copy).training.steps == LONG
    assert run.train(settings(text, LONG), copy) == summary


def test_the_schedules_are_those_of_the_longer_run_from_there_on(text, tmp_path, one_device):
    workdir = epath.Path(tmp_path / "run")
    changed = {
        "optimizer.decay": "linear",
        "optimizer.learning_rate": 1e-2,
        "guidance.mode": "loss",
        "guidance.fraction": 1.0,
    }
    run.train(settings(text, SHORT, **changed), workdir)
    run.train(settings(text, LONG, **changed), workdir)
    found = {row["step"]: row for row in rows(workdir) if row["split"] == "train"}
    assert found[6]["learning_rate"] == pytest.approx(1e-2 * (1 - 5 / SHORT))
    assert found[8]["learning_rate"] == pytest.approx(1e-2 * (1 - 7 / LONG))
    assert found[8]["coefficient/ag"] > found[6]["coefficient/ag"]
    assert [row["step"] for row in rows(workdir) if row["split"] == "validation"] == [3, 6, 9, 11]


def test_a_kill_between_the_two_files_loses_nothing(text, short, copy, one_device):
    extension.begin(SHORT, settings(text, LONG), copy)
    assert run.read_config(copy).training.steps == SHORT and run.read_summary(copy) is None
    assert run.train(settings(text, LONG), copy)["steps"] == LONG
    assert run.read_config(copy).training.steps == LONG


def test_an_extension_that_was_given_up_is_finished_as_it_was(text, short, copy, one_device):
    extension.begin(SHORT, settings(text, LONG), copy)
    assert run.train(settings(text, SHORT), copy) == short[1]


@pytest.mark.parametrize(
    ("steps", "changed", "named"),
    [(SHORT - 1, {}, "training.steps: there 6, now 5"), (LONG, {"optimizer.weight_decay": 0.5}, "weight_decay")],
    ids=["fewer steps", "another setting"],
)
def test_what_is_no_extension_is_an_error(text, copy, steps, changed, named):
    with pytest.raises(ValueError, match=f"{named}(.*\n)*Use that config"):
        run.train(settings(text, steps, **changed), copy)
    assert (copy / "summary.json").exists() and run.read_config(copy).training.steps == SHORT


def test_an_unfinished_run_is_not_extended(text, copy):
    (copy / "summary.json").unlink()
    with pytest.raises(ValueError, match="training.steps: there 6, now 11\nUse that config.*Only a finished run"):
        run.train(settings(text, LONG), copy)


def test_milestones_of_a_run_are_kept_when_it_goes_on(tmp_path):
    """Those of its earlier lengths and of its stored config, also with a profile of steps that only the longer has."""
    config = ExperimentConfig(training=TrainingConfig(steps=2000, milestones=(0.0, 0.1, 1.0), profile=(1500, 1504)))
    directory = epath.Path(tmp_path)
    (directory / "summary-1000.json").write_text("{}")
    assert extension.kept_steps(config, directory) == (0, 100, 1000)
    assert extension.kept_steps(config, directory / "not_begun") == ()
    (directory / "config.json").write_text('{"training": {"milestones": [0.0, 0.01, 1.0]}}')
    assert extension.kept_steps(config, directory) == (0, 10, 20, 100, 200, 1000, 2000)


def test_milestones_stay_when_a_longer_run_has_others(tmp_path):
    def config(steps, *milestones):
        return ExperimentConfig(training=TrainingConfig(steps=steps, milestones=milestones))

    directory, lengths = epath.Path(tmp_path), [(1000, (0.0, 0.3)), (2000, (0.25,)), (4000, (1.0,))]
    for (before, milestones), (steps, others) in itertools.pairwise(lengths):
        (directory / "config.json").write_text(json.dumps({"training": {"milestones": milestones}}))
        (directory / "summary.json").write_text("{}")
        extension.begin(before, config(steps, *others), directory)
    (directory / "config.json").write_text('{"training": {"milestones": [1.0]}}')
    kept = extension.kept_steps(config(4000, 1.0), directory)
    assert {0, 300, 250, 500, 1000, 2000, 4000} == set(kept)
    (directory / "kept_steps.json").write_text('{"steps": [0, "300"]}')
    with pytest.raises(ValueError, match="kept_steps.json: expected a JSON whole number under the key '1', got .300."):
        extension.kept_steps(config(4000, 1.0), directory)


def test_changed_files_of_a_run_are_named(text, short, tmp_path, one_device):
    workdir = epath.Path(tmp_path / "run")
    shutil.copytree(short[0], workdir)
    config, metrics = workdir / "config.json", workdir / "metrics.jsonl"
    summary = json.loads((workdir / "summary.json").read_text())
    (workdir / "summary.json").write_text(json.dumps(summary | {"steps": SHORT - 1}))
    with pytest.raises(ValueError, match=rf"summary\.json: expected a summary of {SHORT} steps.* got {SHORT - 1}"):
        run.train(settings(text, SHORT), workdir)
    (workdir / "summary.json").write_text(json.dumps(summary))
    whole = metrics.read_text()
    for damaged in ("", whole[: len(whole) // 2], whole.replace("1", "2", 1)):
        metrics.write_text(damaged)
        with pytest.raises(ValueError, match=r"metrics\.jsonl was changed"):
            run.train(settings(text, LONG), workdir)
    metrics.write_text(whole)
    config.write_text(config.read_text().replace('"activation": "gelu"', '"activation": "relu"'))
    relu = settings(text, LONG, **{"model.activation": "relu"})
    for use in (run.open_run, run.evaluate, lambda _: run.train(relu, workdir)):
        with pytest.raises(ValueError, match=r"config\.json .*\n  model.activation: there 'gelu', now 'relu'"):
            use(workdir)

"""Run directories: when they are claimed, by which config, and by one process at a time."""

import dataclasses
import json
import os

import pytest
from etils import epath

from ag_jax.data.config import DataConfig
from ag_jax.distributed import lock
from ag_jax.pretraining import run, run_directory
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import open_run
from ag_jax.settings import schema

FIRST = ExperimentConfig()
CORRECTED = dataclasses.replace(FIRST, seed=5)


@pytest.fixture
def workdir(tmp_path) -> epath.Path:
    """What a first attempt leaves that ended before its first checkpoint and its first row of metrics."""
    workdir = epath.Path(tmp_path / "run")
    run_directory.claim(FIRST, workdir)
    for name in ("corpus.json", "trace.json"):
        (workdir / name).write_text("{}")
    (workdir / "metrics.jsonl").write_text("")
    (workdir / "checkpoints" / "0.orbax-checkpoint-tmp").mkdir(parents=True)
    return workdir


def test_an_attempt_that_left_nothing_may_be_corrected(workdir):
    (workdir / "notes.txt").write_text("my own")
    run_directory.claim(CORRECTED, workdir)
    assert run_directory.read_config(workdir) == CORRECTED
    assert sorted(path.name for path in workdir.iterdir()) == ["config.json", "notes.txt"]


@pytest.mark.parametrize("kept", ["checkpoints/0/", "corrupt_checkpoints/4/", "metrics.jsonl"])
def test_what_is_worth_keeping_keeps_its_config(workdir, kept):
    if kept.endswith("/"):
        (workdir / kept).mkdir(parents=True)
    else:
        (workdir / kept).write_text('{"step": 1, "split": "train"}\n')
    with pytest.raises(ValueError, match="config.json:\n  seed: there 0, now 5\n"):
        run_directory.claim(CORRECTED, workdir)
    assert run_directory.read_config(workdir) == FIRST and (workdir / "corpus.json").exists()
    run_directory.claim(dataclasses.replace(FIRST, title="another title"), workdir)


def test_another_limit_of_validation_rows_is_accepted_only_if_both_read_all_rows(workdir):
    settings = schema.to_dict(FIRST)
    settings["data"]["validation_rows"] = None
    (workdir / "checkpoints" / "0").mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(settings))
    for rows in (None, 16_385, 16_384):
        counts = {"files": {}, "train rows": 9, "validation rows": rows}
        (workdir / "corpus.json").write_text(json.dumps(counts)) if rows else (workdir / "corpus.json").unlink()
        if rows == 16_384:
            run_directory.claim(FIRST, workdir)
        else:
            with pytest.raises(ValueError, match="data.validation_rows: there None, now 16384"):
                run_directory.claim(FIRST, workdir)
        run_directory.claim(dataclasses.replace(FIRST, data=DataConfig(validation_rows=None)), workdir)


@pytest.mark.parametrize(("average", "more", "may_differ"), [(1, 0, True), (2, 0, False), (2, 9, True)])
def test_checkpoints_that_are_averaged_stay_equally_far_apart(tmp_path, average, more, may_differ):
    """Unless a finished run is extended."""
    values = schema.to_dict(FIRST)
    values["translation"]["average"] = average
    (tmp_path / "checkpoints" / "0").mkdir(parents=True)
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "checkpoints" / str(FIRST.training.steps)).mkdir()
    training = dataclasses.replace(FIRST.training, checkpoint_every=7, steps=FIRST.training.steps + more)
    changed = dataclasses.replace(FIRST, training=training)
    if may_differ:
        assert run_directory.check(changed, epath.Path(tmp_path)) == FIRST.training.steps
    else:
        with pytest.raises(ValueError, match="training.checkpoint_every: there 1000, now 7"):
            run_directory.check(changed, epath.Path(tmp_path))


def test_the_config_of_another_program_is_left_alone(tmp_path):
    theirs = '{"model_type": "bert", "hidden_size": 12}'
    (tmp_path / "config.json").write_text(theirs)
    with pytest.raises(ValueError, match="config.json"):
        run_directory.claim(FIRST, epath.Path(tmp_path))
    assert (tmp_path / "config.json").read_text() == theirs


def test_one_process_at_a_time(tmp_path):
    workdir = epath.Path(tmp_path / "run")
    with lock.hold(workdir / lock.FILE):
        with pytest.raises(ValueError, match=f"{workdir} is in use by process {os.getpid()} on "):
            run.train(dataclasses.replace(FIRST, data=DataConfig(source="/not/there.txt")), workdir)
        assert [path.name for path in workdir.iterdir()] == [lock.FILE]


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_directory.claim(FIRST, epath.Path(tmp_path / "runs" / "a"))
    assert run_directory.read_config("runs/a") == FIRST
    for read in (run_directory.read_config, open_run, run.evaluate):
        with pytest.raises(FileNotFoundError, match=f"{tmp_path}/runs/b is"):
            read("runs/b")

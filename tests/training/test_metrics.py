"""Metrics as sums, and what is on disk."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from etils import epath

from ag_jax.training import metrics
from ag_jax.training.metrics import MetricWriter, read_metrics
from ag_jax.training.wandb_run import Labels, WandbRun, check_installed


def test_sums_add_and_divide_once():
    sums = metrics.add(
        {}, {"loss": (np.float32(6.0), np.float32(2.0)), "mass": (np.array([1.0, 2.0]), np.array([2.0, 0.0]))}
    )
    sums = metrics.add(
        sums, {"loss": (np.float32(2.0), np.float32(6.0)), "mass": (np.array([3.0, 0.0]), np.array([2.0, 0.0]))}
    )
    assert metrics.divide(sums) == {"loss": 1.0, "mass": [1.0, None]}


def test_sums_survive_json():
    sums = metrics.add({}, {"loss": (np.float32(1 / 3), np.float32(7)), "mass": (np.array([0.1]), np.array([1.0]))})
    again = json.loads(json.dumps(sums))
    more = {"loss": (np.float32(0.3), np.float32(1)), "mass": (np.array([0.7]), np.array([1.0]))}
    assert metrics.divide(metrics.add(sums, more)) == metrics.divide(metrics.add(again, more))


def test_rows_before_a_checkpoint_must_be_there(tmp_path, capsys):
    workdir, path = epath.Path(tmp_path), tmp_path / "metrics.jsonl"
    writer = MetricWriter(workdir, 0, tensorboard=False)
    for step in (1, 2):
        writer.write({"step": step, "split": "train", "loss": 1.0 / step})
    digest, whole = writer.digest, path.read_text()
    writer.write({"step": 3, "split": "train", "loss": 1 / 3})
    metrics.check_rows(workdir, digest)  # what a killed run wrote after the checkpoint
    assert MetricWriter(workdir, 2, tensorboard=False).digest == digest
    for damaged in ("", whole[:-1], whole.replace("0.5", "0.7")):
        path.write_text(damaged)
        with pytest.raises(ValueError, match=r"metrics\.jsonl was changed"):
            metrics.check_rows(workdir, digest)
    path.unlink()
    metrics.check_rows(workdir, digest)
    assert "metrics.jsonl is missing" in capsys.readouterr().err


def test_rows_after_the_resumed_step_are_dropped(tmp_path):
    workdir = epath.Path(tmp_path)
    writer = MetricWriter(workdir, 0, tensorboard=False)
    for step in (1, 2, 3, 4):
        writer.write({"step": step, "split": "train", "loss": 1.0 / step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "spl')
    MetricWriter(workdir, 2, tensorboard=False)
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2]
    # The checkpoint of step 2 was saved before that row, whose steps are a part of the next row.
    MetricWriter(workdir, 2, logged=False, tensorboard=False)
    assert [row["step"] for row in read_metrics(workdir)] == [1]


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"step": 1, "spl', '{"step": "1", "split": "train"}', "[" * 3000, "\0" * 9]
)
def test_a_damaged_row_is_named_unless_a_kill_cut_it_off(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    row = '{"step": 1, "split": "train"}'
    path.write_text(f"{row}\n{line}")
    assert [row["step"] for row in read_metrics(tmp_path)] == [1]
    path.write_text(f"{row}\n{line}\n{row}\n")
    with pytest.raises(ValueError, match=f"line 2 of {path} is damaged"):
        read_metrics(tmp_path)


def test_tensorboard_events_are_written(tmp_path):
    writer = MetricWriter(epath.Path(tmp_path), 0)
    writer.write({"step": 1, "split": "train", "loss": 2.0, "mass/next": [0.5, None]})
    writer.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"train/loss" in content and b"train/mass/next/layer_01" in content and b"layer_02" not in content


def test_wandb_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"ag_jax\[wandb\]"):
        check_installed("project")


def test_wandb_gets_settings_labels_and_rows_and_resumes_the_same_run(tmp_path, monkeypatch):
    """wandb itself, offline: it writes what it would send into the run directory."""
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install 'ag_jax[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    workdir, settings = epath.Path(tmp_path / "quickstart" / "ag-seed3"), {"model": {"layers": 2}, "seed": 3}
    workdir.mkdir(parents=True)
    seen = []
    for start, rows in ((0, (1, 2, 3)), (1, (2, 3, 4))):  # killed after step 3, resumed from a checkpoint of step 1
        started = WandbRun("a_project", workdir, settings, Labels("quickstart", ("ag", "seed3")))
        writer = MetricWriter(workdir, start, tensorboard=False, wandb=started)
        for step in rows:
            writer.write({"step": step, "split": "train", "loss": 1.0 / step, "mass/next": [0.5, None]})
        active = wandb.run
        seen.append((active.id, active.project, active.name, active.group, active.tags, active.config.as_dict()))
        newest = active.summary
        assert (newest["step"], newest["train/loss"], newest["train/mass/next/layer_01"]) == (
            rows[-1],
            1.0 / rows[-1],
            0.5,
        )
        writer.close()
        assert wandb.run is None
    identity = (tmp_path / "quickstart" / "ag-seed3" / "wandb_id").read_text()
    assert len(identity) == 8
    assert seen == 2 * [(identity, "a_project", "ag-seed3", "quickstart", ("ag", "seed3"), settings)]
    assert len(list(workdir.glob(f"wandb/offline-run-*/run-{identity}.wandb"))) == 2


class FailingWandb:
    """Stands in for wandb: `init` works or not, and the connection is lost at the second row."""

    class Settings(dict):
        pass

    def __init__(self, starts=True):
        self.starts, self.rows, self.ended = starts, [], []

    def init(self, **_):
        if not self.starts:
            raise RuntimeError("No API key configured")
        return self

    def define_metric(self, *_, **__):
        pass

    def log(self, values):
        if self.rows:
            raise ConnectionResetError("Connection lost")
        self.rows.append(values)

    def finish(self, exit_code):
        self.ended.append(exit_code)

    def teardown(self):
        self.ended.append("torn down")


def test_a_failure_of_wandb_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    failing = FailingWandb()
    monkeypatch.setitem(sys.modules, "wandb", failing)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    workdir = epath.Path(tmp_path)
    writer = MetricWriter(workdir, 0, tensorboard=False, wandb=WandbRun("project", workdir, {}))
    for step in (1, 2, 3):
        writer.write({"step": step, "split": "train", "loss": 1.0})
    writer.close(failed=True)
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2, 3]
    assert failing.rows == [{"step": 1, "train/loss": 1.0}] and failing.ended == ["torn down"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: wandb failed (ConnectionResetError: Connection lost)")


def test_wandb_is_told_how_the_run_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    for failed in (True, False):
        stand_in = FailingWandb()
        monkeypatch.setitem(sys.modules, "wandb", stand_in)
        MetricWriter(epath.Path(tmp_path), 0, tensorboard=False, wandb=WandbRun("p", epath.Path(tmp_path), {})).close(
            failed
        )
        assert stand_in.ended == [int(failed)]


def test_wandb_that_cannot_start_is_an_error_of_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", FailingWandb(starts=False))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(
        ValueError, match=r"did not start \(No API key configured\). Log in with `wandb login`, set WANDB_MODE=off"
    ):
        WandbRun("project", epath.Path(tmp_path), {})


def test_no_metrics(tmp_path):
    with pytest.raises(FileNotFoundError, match="metrics.jsonl"):
        read_metrics(epath.Path(tmp_path))


def test_a_full_disk_is_named_at_once():
    """A file size limit stands in for it; rows are longer than it at once, events after some."""
    for settings, file in (("tensorboard=False", "metrics.jsonl"), ("", "tensorboard")):
        script = f"""
import tempfile
from etils import epath
from ag_jax.training.metrics import MetricWriter
workdir = epath.Path(tempfile.mkdtemp())
writer = MetricWriter(workdir, 0, {settings})
for step in range(1, 10000):
    if {file == "tensorboard"}:
        (workdir / "metrics.jsonl").write_text("")
    writer.write({{"step": step, "split": "train", "loss": 1.0}})
"""
        limited = ["bash", "-c", 'trap "" XFSZ; ulimit -f 2; exec "$@"', "limited", sys.executable, "-c", script]
        done = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1 and "OSError: cannot write metrics to" in done.stderr, done.stderr
        assert "File too large\nComplete checkpoints are not affected. Free some disk space" in done.stderr

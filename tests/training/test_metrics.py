"""Metrics as sums, and what is on disk."""

import json
import subprocess
import sys

import numpy as np
import pytest
from etils import epath

from ag_jax.training import metrics
from ag_jax.training.metrics import MetricWriter, read_metrics


def test_sums_add_and_divide_once():
    sums = metrics.add({}, {"loss": (np.float32(6.0), np.float32(2.0)), "mass": (np.array([1.0, 2.0]), np.array([2.0, 0.0]))})
    sums = metrics.add(sums, {"loss": (np.float32(2.0), np.float32(6.0)), "mass": (np.array([3.0, 0.0]), np.array([2.0, 0.0]))})
    assert metrics.divide(sums) == {"loss": 1.0, "mass": [1.0, None]}


def test_sums_survive_json():
    sums = metrics.add({}, {"loss": (np.float32(1 / 3), np.float32(7)), "mass": (np.array([0.1]), np.array([1.0]))})
    again = json.loads(json.dumps(sums))
    more = {"loss": (np.float32(0.3), np.float32(1)), "mass": (np.array([0.7]), np.array([1.0]))}
    assert metrics.divide(metrics.add(sums, more)) == metrics.divide(metrics.add(again, more))


def test_rows_after_the_resumed_step_are_dropped(tmp_path):
    workdir = epath.Path(tmp_path)
    writer = MetricWriter(workdir, 0, tensorboard=False)
    for step in (1, 2, 3, 4):
        writer.write({"step": step, "split": "train", "loss": 1.0 / step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "spl')
    MetricWriter(workdir, 2, tensorboard=False)
    assert [row["step"] for row in read_metrics(workdir)] == [1, 2]


def test_tensorboard_events_are_written(tmp_path):
    writer = MetricWriter(epath.Path(tmp_path), 0)
    writer.write({"step": 1, "split": "train", "loss": 2.0, "mass/next": [0.5, None]})
    writer.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"train/loss" in content and b"train/mass/next/layer_01" in content and b"layer_02" not in content


def test_wandb_is_asked_for_by_name_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ValueError, match=r"ag_jax\[wandb\]"):
        MetricWriter(epath.Path(tmp_path), 0, tensorboard=False, wandb="project")


def test_no_metrics(tmp_path):
    with pytest.raises(FileNotFoundError, match="is .* the directory of a run"):
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
        assert "File too large\nCheckpoints that are whole stay so. Free some disk space" in done.stderr

"""Metrics as sums, and what is on disk."""

import importlib.util
import json
import math
import sys

import numpy as np
import pytest
from etils import epath
from tensorboardX.proto import event_pb2

from ag_jax.training import metrics, summary
from ag_jax.training.metrics import MetricWriter, read_metrics
from ag_jax.training.wandb_run import Labels, WandbRun, check_installed


def row(step, loss=1.0):
    return {"step": step, "split": "train", "loss": loss}


def written(workdir, *steps, **options) -> MetricWriter:
    writer = MetricWriter(epath.Path(workdir), 0, **{"tensorboard": False} | options)
    for step in steps:
        writer.write(row(step, 1.0 / step))
    return writer


def test_sums_add_and_divide_once():
    """This includes sums that were stored as JSON in between."""
    first = {"loss": (np.float32(6.0), np.float32(2.0)), "mass": (np.array([1.0, 2.0]), np.array([2.0, 0.0]))}
    other = {"loss": (np.float32(2.0), np.float32(6.0)), "mass": (np.array([3.0, 0.0]), np.array([2.0, 0.0]))}
    sums = metrics.add({}, first)
    assert metrics.add(json.loads(json.dumps(sums)), other) == (both := metrics.add(sums, other))
    assert metrics.divide(both) == {"loss": 1.0, "mass": [1.0, None]}
    thirds = metrics.add({}, {"loss": (np.float32(1 / 3), np.float32(7))})
    more = {"loss": (np.float32(0.3), np.float32(1))}
    assert metrics.add(thirds, more)["loss"][0] == float(np.float32(1 / 3)) + float(np.float32(0.3))


def test_losses_and_norms_that_are_not_finite():
    pair = (np.float32(np.nan), np.float32(1))
    found = {"b_loss": pair, "loss": pair, "accuracy": pair, "gradient_norm": pair, "a_loss": (np.float32(1), 1)}
    assert metrics.not_finite(found) == ["b_loss", "loss", "gradient_norm"]
    assert metrics.not_finite({"adversary_gradient_norm": (np.float32(np.inf), 1)}) == ["adversary_gradient_norm"]
    assert metrics.losses(["x", "a_loss", "b_loss", "loss"], "b_loss") == ["b_loss", "a_loss"]


def test_rows_before_a_checkpoint_must_be_there(tmp_path, capsys):
    workdir, path = epath.Path(tmp_path), tmp_path / "metrics.jsonl"
    writer = written(workdir, 1, 2)
    digest, whole = writer.digest, path.read_text()
    writer.write(row(3))
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
    writer = written(tmp_path, 1, 2, 3, 4)
    writer.write({"step": 2, "split": "validation", "loss": 3.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "spl')

    def resumed(**options):
        MetricWriter(epath.Path(tmp_path), 2, tensorboard=False, **options)
        return [(one["step"], one["split"][0]) for one in read_metrics(tmp_path)]

    assert resumed(evaluated=True) == [(1, "t"), (2, "t"), (2, "v")]
    assert resumed() == [(1, "t"), (2, "t")]
    # The checkpoint of step 2 was saved before that row, whose steps are a part of the next row.
    assert resumed(logged=False) == [(1, "t")]


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"step": "1", "split": "train"}', '{"step": 1}', "[" * 3000])
def test_a_damaged_row_is_named_unless_a_kill_cut_it_off(tmp_path, line):
    path, whole = tmp_path / "metrics.jsonl", json.dumps(row(1))
    path.write_text(f"{whole}\n{line}")
    assert [one["step"] for one in read_metrics(tmp_path)] == [1]
    path.write_text(f"{whole}\n{line}\n{whole}\n")
    with pytest.raises(ValueError, match=f"line 2 of {path}"):
        read_metrics(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="metrics.jsonl"):
        read_metrics(tmp_path)


def test_tensorboard_events_are_written(tmp_path):
    writer = written(tmp_path, tensorboard=True)
    writer.write(row(1) | {"mass/next": [0.5, None], "none": None, "infinite": float("inf")})
    writer.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"train/loss" in content and b"train/mass/next/layer_00" in content
    assert not any(name in content for name in (b"layer_01", b"none", b"infinite"))


def test_tensorboard_forgets_what_a_killed_run_wrote_after_its_checkpoint(tmp_path):
    """A file that begins with a session at step n makes TensorBoard discard events of earlier files from n on."""
    written(tmp_path, 1, 2, 3).close()
    MetricWriter(epath.Path(tmp_path), 2, tensorboard=True).close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    content, steps = events.read_bytes(), []
    while content:  # 8 bytes of length and 4 of checksum, the event, 4 of checksum
        end = 12 + int.from_bytes(content[:8], "little")
        event = event_pb2.Event.FromString(content[12:end])
        if event.HasField("session_log"):
            steps.append((event.step, event.session_log.status == event_pb2.SessionLog.START))
        content = content[end + 4 :]
    assert steps == [(3, True)]


def test_wandb_gets_settings_labels_and_rows_and_resumes_the_same_run(tmp_path, monkeypatch):
    """wandb itself, offline: it writes what it would send into the run directory."""
    wandb = pytest.importorskip("wandb", reason="needs wandb: pip install 'ag_jax[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    workdir, settings = epath.Path(tmp_path / "quickstart" / "ag-seed3"), {"model": {"layers": 2}, "seed": 3}
    workdir.mkdir(parents=True)
    seen = []
    for start, steps in ((0, (1, 2, 3)), (1, (2, 3, 4))):  # killed after step 3, resumed from a checkpoint of step 1
        started = WandbRun("a_project", workdir, settings, Labels("quickstart", ("ag", "seed3")), "ag-seed3")
        writer = MetricWriter(workdir, start, tensorboard=False, wandb=started)
        for step in steps:
            writer.write(row(step, 1.0 / step) | {"mass/next": [0.5, None]})
        active = wandb.run
        seen.append((active.id, active.project, active.name, active.group, active.tags, active.config.as_dict()))
        last = [active.summary[name] for name in ("step", "train/loss", "train/mass/next/layer_00")]
        assert last == [steps[-1], 1.0 / steps[-1], 0.5]
        writer.close()
        assert wandb.run is None
    identity = (tmp_path / "quickstart" / "ag-seed3" / "wandb_id").read_text()
    assert len(identity) == 8
    assert seen == 2 * [(identity, "a_project", "ag-seed3", "quickstart", ("ag", "seed3"), settings)]
    assert len(list(workdir.glob(f"wandb/offline-run-*/run-{identity}.wandb"))) == 2


class FailingWandb:
    """Stands in for wandb: `init` works or not, and the connection is lost at the second row."""

    Settings = dict

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


@pytest.mark.parametrize(
    ("steps", "failed", "ended"), [((1,), True, [1]), ((1,), False, [0]), ((1, 2, 3), True, ["torn down"])]
)
def test_a_failure_of_wandb_does_not_end_the_run(tmp_path, monkeypatch, capsys, steps, failed, ended):
    stand_in = FailingWandb()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    writer = written(tmp_path, *steps, wandb=WandbRun("project", epath.Path(tmp_path), {}, Labels(), "run"))
    writer.close(failed=failed)
    assert [one["step"] for one in read_metrics(tmp_path)] == [*steps]
    assert stand_in.rows == [{"step": 1, "train/loss": 1.0}] and stand_in.ended == ended
    assert ("Connection lost" in capsys.readouterr().err) == (len(steps) > 1)


def test_wandb_that_cannot_start_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", FailingWandb(starts=False))
    with pytest.raises(ValueError, match="wandb='project'.*No API key"):
        WandbRun("project", epath.Path(tmp_path), {}, Labels(), "run")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"ag_jax\[wandb\]"):
        check_installed("project")


def train_loss(folder, losses, steps):
    """`losses`: {last step of a row: its loss}."""
    rows = (row(step) | {"mlm_loss": loss} for step, loss in losses.items())
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return summary._last_loss(epath.Path(folder), "mlm_loss", steps)


@pytest.mark.parametrize(("steps", "log_every"), [(1100, 10), (100, 2), (8, 2), (6, 2), (1000, 1)])
def test_of_rows_of_equally_many_steps_it_is_the_mean_of_the_last_twentieth(steps, log_every, tmp_path):
    values = np.random.default_rng(0).uniform(2, 9, steps // log_every).tolist()
    last = values[-math.ceil(len(values) / 20) :]
    losses = dict(zip(range(log_every, steps + 1, log_every), values, strict=True))
    assert train_loss(tmp_path, losses, steps) == sum(last) / len(last)


def test_a_row_counts_with_its_steps(tmp_path):
    """A time limit may end a run one step after a row: that step must not count as much as the 100 before it."""
    losses = dict.fromkeys(range(100, 1001, 100), 3.0) | {1001: 9.0}
    assert train_loss(tmp_path, losses, 1001) == pytest.approx((100 * 3.0 + 9.0) / 101)


def test_rows_without_a_masked_token_do_not_count(tmp_path):
    losses = {step: float(step) for step in range(1, 41)}
    assert train_loss(tmp_path, losses | {40: None}, 40) == 39.0
    assert train_loss(tmp_path, losses | {39: None, 40: None}, 40) == 38.0
    with pytest.raises(ValueError, match="mlm_loss"):
        train_loss(tmp_path, {1: None}, 1)

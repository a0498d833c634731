"""Runs on several hosts: as one host would do it, stopped together, killed, hung, resumed on fewer and on more.

Every host is a real process. What they train may differ from what one process trains by the order in which gloo adds
numbers.
"""

import dataclasses
import random
import signal

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.distributed.interruption import AGAIN
from ag_jax.pretraining import build
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests.multihost.launch import STEPS, Host, command, finish, start, unexpected_lines

WORDS = "the house of our union is strong and we will build roads . they said no ; he went home early .".split()
# float32 sums in another order; Adam makes steps of 2e-3, also of a gradient that is noise
CLOSE = {"rtol": 3e-5, "atol": 3e-5}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    chosen = random.Random(1)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(" ".join(chosen.choices(WORDS, k=9)).capitalize() + "." for _ in range(330)))
    return path


@pytest.fixture(scope="module")
def alone(text, tmp_path_factory):
    """The run of one process with four devices."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    host = Host(command(text, workdir), 4)
    assert host.wait().returncode == 0, host.output
    return workdir


@pytest.fixture(scope="module")
def pair(text, tmp_path_factory):
    """The run of two processes with two devices each, and what they printed."""
    workdir = tmp_path_factory.mktemp("pair") / "run"
    return workdir, finish(start(2, command(text, workdir), 2))


def content(workdir):
    """Rows of metrics without their clock, and the parameters and the progress of the last checkpoint."""
    checkpoints = Checkpoints(epath.Path(workdir) / "checkpoints", read_only=True)
    assert checkpoints.steps()[-1] == STEPS
    params = checkpoints.restore_params(STEPS)
    checkpoints.close()
    rows = read_metrics(workdir)
    return [{key: value for key, value in row.items() if key not in CLOCK_FIELDS} for row in rows], params


def assert_close(left, right):
    (rows, params), (other_rows, other_params) = content(left), content(right)
    assert [(row["step"], row["split"], row["tokens_seen"]) for row in rows] == [
        (row["step"], row["split"], row["tokens_seen"]) for row in other_rows
    ]
    for row, other in zip(rows, other_rows, strict=True):
        assert row.keys() == other.keys()
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), drop(row), drop(other))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), params, other_params)


def drop(row):
    return {key: value for key, value in row.items() if key != "split" and value is not None}


def resumed_at(output):
    return int(output.split("resumed from the checkpoint of step ")[1].split()[0])


def test_two_hosts_train_and_evaluate_as_one(alone, pair, started):
    workdir, (first, second) = pair
    assert_close(workdir, alone)
    assert "all 2 have joined" in first and f"step {STEPS}/{STEPS}" in first and not unexpected_lines(second)
    assert (workdir / "result.json").exists() and len(list((workdir / "tensorboard").iterdir())) == 1
    started += start(2, ["evaluate", f"--workdir={workdir}"], 2)
    first, second = finish(started)
    assert f'"mlm_loss": {read_metrics(alone)[-1]["mlm_loss"]:.4f}'[:-1] in first and "mlm_loss" not in second


def test_sigterm_on_one_host_stops_both_at_one_step_and_the_run_ends_as_if_never_stopped(text, pair, tmp_path, started):
    workdir = tmp_path / "run"
    arguments = command(text, workdir)
    started += start(2, arguments, 2)
    started[0].wait_for("step 3/")
    started[1].send_signal(signal.SIGTERM)
    statuses = {host.wait(240).returncode for host in started}
    outputs = [host.output for host in started]
    if not (workdir / "result.json").exists():  # it may have been faster than the signal
        assert statuses == {AGAIN} and "SIGTERM on host 1: stopped at step" in outputs[0], outputs
        stopped = int(outputs[0].split("stopped at step ")[1].split()[0])
        assert (workdir / "checkpoints" / str(stopped)).is_dir()
        started += (again := start(2, arguments, 2))
        assert resumed_at(finish(again)[0]) == stopped
    (rows, params), (other_rows, other_params) = content(workdir), content(pair[0])
    assert rows == other_rows
    jax.tree.map(np.testing.assert_array_equal, params, other_params)


def test_a_killed_host_ends_the_other_and_four_hosts_with_another_mesh_go_on(text, alone, tmp_path, started):
    workdir = tmp_path / "run"
    started += start(2, command(text, workdir), 2)
    started[0].wait_for("step 15/")
    started[1].kill()
    assert started[0].wait(60).returncode == AGAIN, started[0].output
    assert "host 1 is gone" in started[0].output
    four = start(4, command(text, workdir, "--config.mesh.fsdp=2", "--config.mesh.tensor=2"), 1)
    started += four
    assert resumed_at(finish(four)[0]) >= 7
    assert_close(workdir, alone)


@pytest.mark.exhaustive
def test_hosts_that_share_a_bucket(bucket, text, pair, started):
    """One is killed, and both are started again."""
    arguments = command(text, "gs://bucket/run")
    started += start(2, arguments, 2)
    started[0].wait_for("step 15/")
    started[1].kill()
    assert started[0].wait(90).returncode == AGAIN, started[0].output
    started += (again := start(2, arguments, 2))
    assert resumed_at(finish(again)[0]) >= 7
    (rows, params), (expected_rows, expected_params) = content("gs://bucket/run"), content(pair[0])
    assert rows == expected_rows
    jax.tree.map(np.testing.assert_array_equal, params, expected_params)
    left = {path.split("/")[1] for path in bucket.buckets["bucket"]}
    # Another test may have evaluated the pair.
    assert left == {path.name for path in pair[0].iterdir()} - {"evaluation.json"}


@pytest.mark.exhaustive
def test_a_hung_host_wakes_the_watchdog_and_one_host_goes_on(text, alone, tmp_path, started):
    workdir = tmp_path / "run"
    started += start(2, command(text, workdir, "--config.training.step_timeout=10"), 2)
    started[0].wait_for("step 15/")  # the checkpoint of step 7 is whole when that of step 14 is begun
    started[1].send_signal(signal.SIGSTOP)
    assert started[0].wait(60).returncode == AGAIN, started[0].output
    assert "watchdog: host 0" in started[0].output and "step_timeout=10" in started[0].output
    started[1].kill()
    host = Host(command(text, workdir), 4)
    started.append(host)
    assert host.wait().returncode == 0, host.output
    assert resumed_at(host.output) >= 7
    assert_close(workdir, alone)


def choose_another_attention():
    choose = build.choose_attention
    build.choose_attention = lambda *given: dataclasses.replace(choose(*given), name="cudnn")


def test_hosts_whose_kernels_fail_alone_are_refused(text, tmp_path, started):
    """Each host tests the attention kernel for itself; with different programs they would wait for each other."""
    started += start(2, command(text, tmp_path / "run"), 1, but=(1,))
    coordinator = next(flag for flag in started[0].arguments if flag.startswith("--coordinator"))
    other = [*command(text, tmp_path / "run"), coordinator, "--hosts=2", "--host=1"]
    started.append(Host(other, 1, choose_another_attention))
    for output in finish(started, 1):
        assert "model.attention is 'cudnn', on host 0 'reference'" in output and "Traceback" not in output

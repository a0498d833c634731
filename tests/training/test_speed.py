"""Speed, utilisation and time left: what is counted, and what the progress line shows."""

import dataclasses
import re
import time
import types

import pytest

from ag_jax.training import loop, progress, speed
from ag_jax.training.config import TrainingConfig
from ag_jax.training.metrics import read_metrics
from tests.training.jobs import tiny_job


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a test sets `now`."""
    at = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(speed, "time", types.SimpleNamespace(perf_counter=lambda: at.now))
    return at


def test_compilation_and_evaluations_are_left_out(clock):
    found = speed.Speedometer(10, 1_000)
    assert found.seconds_left(5, 2) is None
    clock.now += 60  # a step of 40 tokens that is compiled, then four more in 8 seconds
    found.compiled(60.0, 40)
    clock.now += 8
    first = found.read(15, 1_200)
    assert first == speed.Interval(68.0, 8.0, 4, 160) and first.tokens_per_second == 20
    assert found.seconds_left(5, 2) == 10
    clock.now += 30
    found.evaluated(30.0, 3.0)
    clock.now += 2
    second = found.read(19, 1_300)
    assert second == speed.Interval(2.0, 2.0, 4, 100) and second.tokens_per_second == 50
    assert found.seconds_left(4, 2) == 4 * (8 + 2) / (4 + 4) + 2 * 3
    for number in range(speed.AVERAGED):
        clock.now += 3
        found.read(20 + number, 1_300)
    assert found.seconds_left(4, 0) == 4 * 3


def test_an_interval_of_compilation_alone_has_no_speed(clock):
    found = speed.Speedometer(0, 0)
    clock.now += 5
    found.compiled(5.0, 7)
    assert found.read(1, 7).tokens_per_second is None and found.seconds_left(3, 0) is None
    clock.now += 2
    assert found.read(2, 11).tokens_per_second == 2 and found.seconds_left(3, 0) == 6


def test_the_compilation_of_the_first_evaluation_is_not_expected_again(tmp_path):
    job = tiny_job(tmp_path, log_every=2, evaluate_every=2, checkpoint_every=100, milestones=())
    slept = []

    def evaluate(params, step, beat):
        for number in range(3):
            slept.append(1.5 if (step, number) == (2, 0) else 0.02)
            time.sleep(slept[-1])
            beat()
        return {"mlm_loss": 1.0}

    training = loop.Loop(dataclasses.replace(job, evaluators=(evaluate,)))
    shown = []
    honest = speed.Speedometer.seconds_left

    def seconds_left(self, steps, evaluations):
        left = honest(self, steps, evaluations)
        shown.append((steps, evaluations, honest(self, 0, evaluations)))
        return left

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed.Speedometer, "seconds_left", seconds_left)
        training.run()
    assert [(steps, evaluations) for steps, evaluations, _ in shown[:3]] == [(10, 6), (8, 5), (6, 4)]
    assert shown[0][2] in (None, 0.0) and 5 * 0.06 <= shown[1][2] < 1.5 and 4 * 0.06 <= shown[2][2] < 1.5


@pytest.mark.parametrize(
    ("steps", "every", "step", "expected"),
    [(10, None, 1, 1), (10, None, 10, 1), (10, 5, 5, 2), (10, 5, 6, 1), (10, 4, 3, 3), (10, 4, 8, 2), (10, 20, 1, 1)],
)
def test_evaluations_to_come(steps, every, step, expected):
    assert TrainingConfig(steps=steps, evaluate_every=every).evaluations_from(step) == expected


def test_a_slow_first_step_does_not_lower_the_speed(tmp_path, capsys):
    """The first step stands for one that takes long to compile; each step waits 20 ms."""
    job = tiny_job(tmp_path, log_every=3, checkpoint_every=100, milestones=(), evaluate_every=None)
    job = dataclasses.replace(job, utilisation=lambda start, stop, seconds: (stop - start) / (100 * seconds))
    training = loop.Loop(job)
    step, calls = training.train_step, []

    def slow(*arguments):
        calls.append(1)
        time.sleep(2.0 if len(calls) == 1 else 0.02)
        return step(*arguments)

    training.train_step = slow
    training.run()
    rows = [row for row in read_metrics(job.workdir) if row["split"] == "train"]
    assert rows[0]["seconds"] > 2 and rows[1]["seconds"] < 2
    for row in rows:
        assert 0 < row["tokens_per_second"] < 44 / 0.02  # a batch has at most 44 tokens
        assert row["mfu"] == pytest.approx(0.5, rel=0.9)
    # Three steps with the compilation would have at most 3 * 44 tokens in 2 seconds.
    assert rows[0]["tokens_per_second"] > 3 * 44 / 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tiny: step 3/")]
    assert re.search(r"lr \d\.\d\de-\d\d  [\d,]+ tokens/s  MFU \d+\.\d%  0:0[01] left$", lines[0]), lines


def row(**changes):
    return {"step": 3, "mlm_loss": 2.5, "learning_rate": 1e-4, "tokens_per_second": 1234.5} | changes


def test_the_line_shows_what_is_known(capsys):
    line = progress.ProgressLine("run", 0, 9, "mlm_loss")
    line.update(row(mfu=0.3333), 4000.4)
    line.begin("validating ...")
    line.update(row(tokens_per_second=None), None)
    line.update(row(mlm_loss=None, ag_loss=0.5), None)  # no token was masked
    assert capsys.readouterr().err.splitlines() == [
        "run: step 0 of 9, compiling the step ...",
        "run: step 3/9  mlm_loss 2.500  lr 1.00e-04  1,234 tokens/s  MFU 33.3%  1:06:40 left",
        "run: step 3/9  mlm_loss 2.500  lr 1.00e-04",
        "run: step 3/9  ag_loss 0.500  lr 1.00e-04  1,234 tokens/s",
    ]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (200, "mlm_loss 2.500  ag_loss 0.500  lr 1.00e-04  1,234 tokens/s  MFU 33.3%  1:06:40 left"),
        (95, "mlm_loss 2.500  lr 1.00e-04  1,234 tokens/s  MFU 33.3%  1:06:40 left"),
        (80, "mlm_loss 2.500  1,234 tokens/s  MFU 33.3%  1:06:40 left"),
        (50, "mlm_loss 2.500  1:06:40 left"),
    ],
)
def test_a_narrow_terminal_keeps_the_steps_and_the_time(columns, shown, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    line = progress.ProgressLine("run", 0, 1100, "mlm_loss")
    line.update(row(step=330, ag_loss=0.5, mfu=0.3333), 4000.4)
    line.close()
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err).rstrip().splitlines()[-1]
    assert re.search(r"330/1100 (.*)$", last)[1].strip() == shown


def test_the_bar_says_that_it_validates(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    line = progress.ProgressLine("run", 0, 9, "mlm_loss")

    def status():
        return line._bar.tasks[0].fields["status"]

    try:
        assert status() == "compiling ..."
        line.update(row(), 61)
        shown = status()
        line.begin("validating ...")
        assert status() == "validating ..."
        line.show("validating: 3 of 9 batches, 0:20 left")
        line.begin(None)
        assert status() == shown == "mlm_loss 2.500  lr 1.00e-04  1,234 tokens/s  1:01 left"
    finally:
        line.close()

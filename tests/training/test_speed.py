"""Speed, utilisation and time left: what is counted, and what the progress line shows."""

import dataclasses
import re
import types

import pytest

from ag_jax.training import journal, progress, speed, train
from ag_jax.training.config import TrainingConfig
from ag_jax.training.metrics import read_metrics
from tests.training.trainees import batch, run, tiny_trainee


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless a test changes `now`."""
    at = types.SimpleNamespace(now=100.0)
    clock = types.SimpleNamespace(perf_counter=lambda: at.now, monotonic=lambda: at.now)
    for module in (speed, journal, progress, train):
        monkeypatch.setattr(module, "time", clock)
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


def test_the_speed_of_a_run(clock, tmp_path, monkeypatch):
    """The first step takes 60 seconds, the others 2; the first batch of the first evaluation 30, and the others 4."""
    trainee = tiny_trainee(tmp_path, log_every=3, evaluate_every=6, checkpoint_every=100, milestones=())
    evaluated, left = [], []

    def evaluate(params, step, beat):
        for _ in range(3):
            clock.now += 4 if evaluated else 30
            evaluated.append(step)
            beat()
        return {"mlm_loss": 1.0}

    def utilisation(start, stop, seconds):
        return 1e6 * start + 1e3 * stop + seconds

    step, honest = trainee.program.train_step, progress.ProgressLine.update

    def timed(state, *arguments):
        clock.now += 2 if int(state.step) else 60
        return step(state, *arguments)

    def update(self, row, seconds_left):
        left.append(seconds_left)
        honest(self, row, seconds_left)

    monkeypatch.setattr(progress.ProgressLine, "update", update)
    program = dataclasses.replace(trainee.program, train_step=timed)
    run(dataclasses.replace(trainee, program=program, evaluate=evaluate, utilisation=utilisation))
    rows = [row for row in read_metrics(trainee.workdir) if row["split"] == "train"]
    tokens = [int(batch(step)["segment_ids"].sum()) for step in range(12)]
    assert [row["seconds"] for row in rows] == [64, 6, 6, 6]
    assert [row["tokens_per_second"] for row in rows] == pytest.approx(
        [sum(tokens[1:3]) / 4, sum(tokens[3:6]) / 6, sum(tokens[6:9]) / 6, sum(tokens[9:]) / 6]
    )
    assert [row["mfu"] for row in rows] == [1_003_004, 3_006_006, 6_009_006, 9_012_006]
    # After step 6 nothing of evaluations is known; of the first, the two last batches count, for all three.
    assert left == pytest.approx([9 * 2, 6 * 2, 3 * 2 + 12, 12])


@pytest.mark.parametrize(
    ("steps", "every", "step", "expected"),
    [(10, None, 1, 1), (10, None, 10, 1), (10, 5, 5, 2), (10, 5, 6, 1), (10, 4, 3, 3), (10, 4, 8, 2), (10, 20, 1, 1)],
)
def test_evaluations_to_come(steps, every, step, expected):
    assert TrainingConfig(steps=steps, evaluate_every=every).evaluations_from(step) == expected


def row(**changes):
    return {"step": 330, "mlm_loss": 2.5, "learning_rate": 1e-4, "tokens_per_second": 1234.5} | changes


def test_the_line_shows_what_is_known(capsys):
    line = progress.ProgressLine("run", 0, 900, "mlm_loss")
    line.update(row(mfu=0.3333), 4000.4)
    line.update(row(tokens_per_second=None), 61)
    line.update(row(mlm_loss=None, ag_loss=0.5), None)  # no token was masked
    assert [shown.split("  ", 1)[1] for shown in capsys.readouterr().err.splitlines()[1:]] == [
        "mlm_loss 2.500  lr 1.00e-04  1,234 tokens/s  MFU 33.3%  1:06:40 left",
        "mlm_loss 2.500  lr 1.00e-04  1:01 left",
        "ag_loss 0.500  lr 1.00e-04  1,234 tokens/s",
    ]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (200, "mlm_loss 2.500  ag_loss 0.500  lr 1.00e-04  1,234 tokens/s  MFU 33.3%  1:06:40 left"),
        (98, "mlm_loss 2.500  ag_loss 0.500  1,234 tokens/s  MFU 33.3%  1:06:40 left"),
        (80, "mlm_loss 2.500  ag_loss 0.500  MFU 33.3%  1:06:40 left"),
        (60, "mlm_loss 2.500  ag_loss 0.500"),
        (50, "mlm_loss 2.500"),
    ],
)
def test_a_narrow_terminal_keeps_the_steps_and_the_losses(columns, shown, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    line = progress.ProgressLine("run", 0, 1100, "mlm_loss")
    numbers = {"mlm_loss": 2.5, "ag_loss": 0.5, "learning_rate": 1e-4, "tokens_per_second": 1234.5, "mfu": 0.3333}
    line.update({"step": 330} | numbers, 4000.4)
    line.close()
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err).rstrip().splitlines()[-1]
    assert re.search(r"330/1100 (.*)$", last)[1].strip() == shown

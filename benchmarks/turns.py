"""Measure programs in turns in one process, so that each sees the same load of the machine."""

import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

FIRST = 3  # steps that are not counted


class Runs(Protocol):
    """Interface of a program that can be measured in turns."""

    def steps(self, start: int, stop: int, counted: bool = True) -> None:
        """Run steps `start` to `stop` - 1; measure them if `counted`."""


def take(running: Sequence[Runs], rounds: int, steps: int) -> None:
    """Run `steps` steps of each program in turn, `rounds` times, after `FIRST` uncounted steps of each."""
    for one in running:
        one.steps(0, FIRST, counted=False)
    for number in range(rounds):
        for one in running:
            one.steps(FIRST + number * steps, FIRST + (number + 1) * steps)


def described(rounds: int, steps: int) -> str:
    """Return a description of the turns for the saved results."""
    return f"{rounds} rounds of {steps} steps each, after {FIRST} that are not counted"


def finish(in_flight: Any, times: list[float], before: float) -> float:
    """Wait for a step's loss, append the time since `before` to `times` and return the current time.

    in_flight: loss of the step; None returns `before` and does nothing else.
    """
    if in_flight is None:
        return before
    jax.block_until_ready(in_flight)
    now = time.perf_counter()
    times.append(now - before)
    return now


def speed(times: list[float], **counts: int) -> dict[str, float]:
    """Return each of `counts`, such as `tokens`, per second over all steps, and percentiles of the step times."""
    return {
        **{f"{name}_per_second": count / sum(times) for name, count in counts.items()},
        "step_seconds_p50": statistics.median(times),
        "step_seconds_p95": float(np.percentile(times, 95)),
        "steps": len(times),
    }

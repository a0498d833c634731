"""Programs that take turns in one process, so that ratios are of the same minutes of the same machine."""

import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

FIRST = 3  # steps that are not counted


class Runs(Protocol):
    """What takes turns."""

    def steps(self, start: int, stop: int, counted: bool = True) -> None:
        """Steps `start` to `stop` - 1."""


def take(running: Sequence[Runs], rounds: int, steps: int) -> None:
    """`rounds` times `steps` steps of each, one after the other."""
    for one in running:
        one.steps(0, FIRST, counted=False)
    for number in range(rounds):
        for one in running:
            one.steps(FIRST + number * steps, FIRST + (number + 1) * steps)


def described(rounds: int, steps: int) -> str:
    """That, for the record."""
    return f"{rounds} rounds of {steps} steps each, after {FIRST} that are not counted"


def finish(in_flight: Any, times: list[float], before: float) -> float:
    """Wait for a step's loss and note the time since `before`; returns the time now."""
    if in_flight is None:
        return before
    jax.block_until_ready(in_flight)
    now = time.perf_counter()
    times.append(now - before)
    return now


def speed(times: list[float], **counts: int) -> dict[str, float]:
    """What was counted a second over all steps, such as `tokens`, and the times of the steps."""
    return {
        **{f"{name}_per_second": count / sum(times) for name, count in counts.items()},
        "step_seconds_p50": statistics.median(times),
        "step_seconds_p95": float(np.percentile(times, 95)),
        "steps": len(times),
    }

"""Measure programs in turns in one process, so that each sees the same load of the machine."""

import collections
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

FIRST = 3  # steps that are not counted


class Program:
    """A program that is measured in turns.

    name: its name in the results.
    times: seconds of each counted step.
    counts: what these steps read, such as the number of tokens.
    """

    name: str

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts = collections.Counter[str]()

    def inputs(self, start: int, stop: int) -> Iterable[Any]:
        """Return what `step` gets for steps `start` to `stop` - 1; the time to make it is not measured."""
        return range(start, stop)

    def step(self, given: Any) -> Mapping[str, int]:
        """Run a step to its end, and return what it read."""
        raise NotImplementedError

    def steps(self, start: int, stop: int, counted: bool = True) -> None:
        """Run steps `start` to `stop` - 1; measure them if `counted`."""
        for given in self.inputs(start, stop):
            began = time.perf_counter()
            counts = self.step(given)
            if counted:
                self.times.append(time.perf_counter() - began)
                self.counts.update(counts)

    def speed(self) -> dict[str, float]:
        """Return each of the counts per second over all steps, and percentiles of the step times."""
        return {
            **{f"{name}_per_second": count / sum(self.times) for name, count in self.counts.items()},
            "step_seconds_p50": statistics.median(self.times),
            "step_seconds_p95": float(np.percentile(self.times, 95)),
            "steps": len(self.times),
        }


def take(running: Sequence[Program], rounds: int, steps: int) -> None:
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

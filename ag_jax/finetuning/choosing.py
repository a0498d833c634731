"""From the results of trials to what is reported: the best point of a sweep, by development data alone.

A trial has its best epoch already. Here, for every point (learning rate, batch size), the median over seeds, and of the points
that with the largest one (RoBERTa's protocol; Liu et al. 2019, section 5.1).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ag_jax.evaluation.significance import Spread, spread

Result = dict[str, Any]  # result.json of a trial


@dataclasses.dataclass(frozen=True)
class Point:
    """The trials of one point of a sweep: `results[seed]` are those of a seed, one a fold, one in all without folds."""

    learning_rate: float
    batch_size: int
    results: dict[int, tuple[Result, ...]]

    def values(self, metric: str) -> list[float]:
        """The development metric of each seed; with folds their mean."""
        return [float(np.mean([result["metrics"][metric] for result in of_seed])) for of_seed in self.results.values()]

    @property
    def name(self) -> str:
        """The point as a report shows it."""
        return f"{self.learning_rate:g}, {self.batch_size}"


@dataclasses.dataclass(frozen=True)
class Summary:
    """One number over seeds."""

    values: tuple[float, ...]
    median: float
    spread: Spread

    @property
    def count(self) -> int:
        """How many seeds there are."""
        return len(self.values)


def summary(values: Sequence[float]) -> Summary:
    """Median, mean and sample standard deviation of at least one value."""
    return Summary(tuple(map(float, values)), float(np.median(values)), spread(values))


def point_of(result: Result) -> tuple[float, int]:
    """Learning rate and batch size of a trial."""
    return result["learning_rate"], result["batch_size"]


def points(results: Sequence[Result]) -> list[Point]:
    """The points that results belong to, in the order in which they first come."""
    found: dict[tuple[float, int], dict[int, list[Result]]] = {}
    for result in results:
        of_point = found.setdefault(point_of(result), {})
        of_point.setdefault(result["seed"], []).append(result)
    return [
        Point(*key, {seed: tuple(of_seed) for seed, of_seed in of_point.items()}) for key, of_point in found.items()
    ]


def best_point(candidates: Sequence[Point], metric: str) -> Point:
    """The point with the largest median over seeds of the development metric; of equals the first."""
    if not candidates:
        raise ValueError("a point is chosen of at least one, got none")
    return max(candidates, key=lambda point: np.median(point.values(metric)))


def best_of_seed(candidates: Sequence[Point], metric: str, seed: int) -> Result:
    """The trial of one seed with the largest development metric, whose weights are kept; of equals the first."""
    results = [result for point in candidates for result in point.results.get(seed, ())]
    if not results:
        raise ValueError(f"no trial of seed {seed} is there to choose from")
    return max(results, key=lambda result: result["metrics"][metric])

"""Choice of the best point of a sweep from the results of its trials, by development data only.

A trial's result is that of its best epoch. Of the points (learning rate, batch size), the one with the largest median
over seeds is chosen (RoBERTa's protocol; Liu et al. 2019, section 5.1).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ag_jax.evaluation.significance import Spread, spread

Result = dict[str, Any]  # the content of a trial's result.json


@dataclasses.dataclass(frozen=True)
class Point:
    """Results of the trials with one learning rate and one batch size: a point of a sweep.

    learning_rate: peak learning rate.
    batch_size: batch size in examples.
    results: the results of each seed, one for each fold, or a single one without folds.
    """

    learning_rate: float
    batch_size: int
    results: dict[int, tuple[Result, ...]]

    def values(self, metric: str) -> list[float]:
        """Return the development metric of each seed, averaged over folds if there are any."""
        return [float(np.mean([result["metrics"][metric] for result in of_seed])) for of_seed in self.results.values()]

    @property
    def name(self) -> str:
        """The point's learning rate and batch size as a report shows them."""
        return f"{self.learning_rate:g}, {self.batch_size}"


@dataclasses.dataclass(frozen=True)
class Summary:
    """The values of one metric over seeds, with their median, mean and standard deviation."""

    values: tuple[float, ...]
    median: float
    spread: Spread

    @property
    def count(self) -> int:
        """The number of seeds."""
        return len(self.values)


def summary(values: Sequence[float]) -> Summary:
    """Return the median, mean and sample standard deviation of at least one value."""
    return Summary(tuple(map(float, values)), float(np.median(values)), spread(values))


def point_of(result: Result) -> tuple[float, int]:
    """Return the learning rate and the batch size of a trial, from its result."""
    return result["learning_rate"], result["batch_size"]


def points(results: Sequence[Result]) -> list[Point]:
    """Return the points (learning rate, batch size) of `results`, each point with its results by seed, in the order in
    which the points first occur.
    """
    found: dict[tuple[float, int], dict[int, list[Result]]] = {}
    for result in results:
        of_point = found.setdefault(point_of(result), {})
        of_point.setdefault(result["seed"], []).append(result)
    return [
        Point(*key, {seed: tuple(of_seed) for seed, of_seed in of_point.items()}) for key, of_point in found.items()
    ]


def best_point(candidates: Sequence[Point], metric: str) -> Point:
    """Return the point with the largest median over seeds of the development metric; if several are equal, the first.

    Raises ValueError if there are no candidates.
    """
    if not candidates:
        raise ValueError("expected at least one point to choose from, got none")
    return max(candidates, key=lambda point: np.median(point.values(metric)))


def best_of_seed(candidates: Sequence[Point], metric: str, seed: int) -> Result:
    """Return the result of the best trial with this seed, by the development metric; if several are equal, the first.

    Raises ValueError if the seed has no trial.
    """
    results = [result for point in candidates for result in point.results.get(seed, ())]
    if not results:
        raise ValueError(
            f"no trial of seed {seed} succeeded, so there is none to choose: change the settings and choose "
            "another --workdir"
        )
    return max(results, key=lambda result: result["metrics"][metric])

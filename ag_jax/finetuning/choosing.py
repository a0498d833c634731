"""Choice of the best point (values of the swept settings) of a sweep, by its trials' development scores only.

A trial's result is that of its best epoch. Of the points (learning rate, batch size and values of other settings that
are swept), the one with the largest median over seeds is chosen (RoBERTa's protocol; Liu et al. 2019, section 5.1).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.evaluation.significance import spread
from ag_jax.finetuning.config import point_settings

Facts = Mapping[str, Any]  # facts of a trial's result


@dataclasses.dataclass(frozen=True)
class Point:
    """A point of a sweep, that is one value of each swept setting, with the results of its trials.

    learning_rate: peak learning rate.
    batch_size: batch size in examples.
    swept: values of the settings in the recipe's `sweep`, by name.
    results: the results of each seed, one for each fold, or a single one without folds.
    """

    learning_rate: float
    batch_size: int
    swept: dict[str, float]
    results: dict[int, tuple[Facts, ...]]

    def values(self, metric: str) -> list[float]:
        """Return the development metric for each seed, averaged over folds if there are any."""
        return [float(np.mean([result["metrics"][metric] for result in of_seed])) for of_seed in self.results.values()]

    @property
    def settings(self) -> dict[str, Any]:
        """The point's learning rate, batch size and other swept settings as a dict for `report.json`."""
        return point_settings(self.learning_rate, self.batch_size, self.swept)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Return the values of a metric, one for each seed, with their median, mean and deviation, for report.json."""
    of_seeds = spread(values)
    return {
        "values": list(map(float, values)),
        "median": float(np.median(values)),
        "mean": of_seeds.mean,
        "deviation": of_seeds.deviation,
        "n": len(values),
    }


def point_of(result: Facts) -> tuple[float, int, tuple[tuple[str, float], ...]]:
    """Return (learning rate, batch size, (name, value) pairs of the other swept settings) from a trial's result.

    The settings are those in the recipe's `sweep`.
    """
    return result["learning_rate"], result["batch_size"], tuple(sorted(result.get("swept", {}).items()))


def points(results: Sequence[Facts]) -> list[Point]:
    """Return the points of a sweep with their results by seed, in the order in which the points first occur."""
    by_point: dict[tuple[float, int, tuple[tuple[str, float], ...]], dict[int, list[Facts]]] = {}
    for result in results:
        of_point = by_point.setdefault(point_of(result), {})
        of_point.setdefault(result["seed"], []).append(result)
    return [
        Point(rate, batch_size, dict(swept), {seed: tuple(of_seed) for seed, of_seed in of_point.items()})
        for (rate, batch_size, swept), of_point in by_point.items()
    ]


def best_point(candidates: Sequence[Point], metric: str) -> Point:
    """Return the point with the largest median over seeds of the development metric; if several are equal, the first.

    candidates: at least one point.
    """
    return max(candidates, key=lambda point: np.median(point.values(metric)))

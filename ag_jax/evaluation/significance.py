"""Spread over seeds, and whether two arms differ."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats

ROUNDING = 1e-9  # of the values: what differences of equal differences may be
SIGNIFICANT = 0.05  # p-values below it are marked (Deshpande & Narasimhan 2020, table 4)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1; None for a single value) of one number over seeds."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.deviation is None else f"{self.mean:.3f} ± {self.deviation:.3f}"


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value."""
    if not len(values):
        raise ValueError("a spread needs at least one value, got none")
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def paired_t_test(baseline: Sequence[float], other: Sequence[float]) -> float | None:
    """Two-sided p-value of `the mean difference of the pairs is 0` (Student's paired t-test).

    Pairs share a seed. None if there are fewer than two pairs, or if all differences are equal but for rounding, where t is
    undefined.
    """
    if len(baseline) != len(other):
        raise ValueError(f"pairs are needed: got {len(baseline)} and {len(other)} values")
    differences = np.asarray(other, np.float64) - np.asarray(baseline, np.float64)
    if len(differences) < 2 or np.ptp(differences) <= ROUNDING * max(np.abs(baseline).max(), np.abs(other).max()):
        return None
    return float(scipy.stats.ttest_rel(other, baseline).pvalue)


def paired_t_test_over_examples(baseline: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float | None:
    """The same with the examples of an evaluation set as pairs; each argument holds the scores of every example, a row a seed.

    An example's score is its mean over seeds. It says whether the arms differ on other examples like these, given the models
    that were trained; `paired_t_test` over seeds says whether they differ with other seeds, given these examples.
    """
    means = [np.mean(np.asarray(scores, np.float64), axis=0) for scores in (baseline, other)]
    return paired_t_test(*means)

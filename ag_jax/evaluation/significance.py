"""Mean and deviation over seeds, and significance tests between two arms (variants) of a comparison."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats

ROUNDING = 1e-9  # relative to the values: differences closer than this count as equal
SIGNIFICANT = 0.05  # p-values below it are marked (Deshpande & Narasimhan 2020, table 4)


@dataclasses.dataclass(frozen=True)
class Spread:
    """The spread of a number over seeds, printed as `mean ± deviation`.

    mean: the mean.
    deviation: the sample standard deviation (with n - 1); None for a single value.
    """

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.deviation is None else f"{self.mean:.3f} ± {self.deviation:.3f}"


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the sample standard deviation (None for a single value) of one or more values.

    Raises ValueError without values.
    """
    if not len(values):
        raise ValueError("a spread needs at least one value, got none")
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def paired_t_test(baseline: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> float | None:
    """Return the two-sided p-value of Student's paired t-test, or None if t is undefined.

    The null hypothesis is that the mean difference of the pairs is 0. The values of a pair share a seed (or, in
    `paired_t_test_over_examples`, an example). t is undefined if there are fewer than two pairs, or if all
    differences are equal up to rounding.
    Raises ValueError if the numbers of values differ.
    """
    if len(baseline) != len(other):
        raise ValueError(f"pairs are needed: got {len(baseline)} and {len(other)} values")
    differences = np.asarray(other, np.float64) - np.asarray(baseline, np.float64)
    if len(differences) < 2 or np.ptp(differences) <= ROUNDING * max(np.abs(baseline).max(), np.abs(other).max()):
        return None
    return float(scipy.stats.ttest_rel(other, baseline).pvalue)


def paired_t_test_over_examples(
    baseline: Sequence[Sequence[float] | np.ndarray], other: Sequence[Sequence[float] | np.ndarray]
) -> float | None:
    """Return the p-value of a paired t-test in which a pair is an example of the evaluation set, scored in the baseline
    and in the other arm; None in the cases in which `paired_t_test` returns None.

    Each argument has, for each seed, the scores of all examples. The scores of an example are averaged over the seeds.
    This tests whether the arms differ on other examples like these, given the trained models; `paired_t_test` over
    seeds tests whether they differ with other seeds, given these examples.
    """
    means = [np.mean(np.asarray(scores, np.float64), axis=0) for scores in (baseline, other)]
    return paired_t_test(*means)

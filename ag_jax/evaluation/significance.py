"""Mean and deviation over seeds, and significance tests between two arms (variants) of a comparison."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.optimize
import scipy.stats

ROUNDING = 1e-9  # relative to the values: differences closer than this count as equal
SIGNIFICANT = 0.05  # p-values below it are marked (Deshpande & Narasimhan 2020, table 4)
POWER = 0.8  # probability with which a test should find a difference that is there
# Pairs whose outcomes differ, all in the same direction: with fewer, `mcnemar` cannot give p < SIGNIFICANT.
MCNEMAR_NEEDS = 6


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a number over seeds, printed as `mean ± deviation`.

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
    """Return the two-sided p-value of Student's paired t-test, or None if the statistic t is undefined.

    The null hypothesis is that the mean difference of the pairs is 0. The values of a pair share a seed (or, in
    `paired_t_test_over_examples`, an example). t is undefined if there are fewer than two pairs, if a
    value is not finite, or if all differences are equal up to rounding.
    Raises ValueError if the numbers of values differ.
    """
    if len(baseline) != len(other):
        raise ValueError(f"pairs are needed: got {len(baseline)} and {len(other)} values")
    differences = np.asarray(other, np.float64) - np.asarray(baseline, np.float64)
    if not np.isfinite(differences).all():  # of a run that diverged; NaN would also spoil Holm's correction of others
        return None
    if len(differences) < 2 or np.ptp(differences) <= ROUNDING * max(np.abs(baseline).max(), np.abs(other).max()):
        return None
    return float(scipy.stats.ttest_rel(other, baseline).pvalue)


def paired_t_test_over_examples(
    baseline: Sequence[Sequence[float] | np.ndarray], other: Sequence[Sequence[float] | np.ndarray]
) -> float | None:
    """Return the p-value of a paired t-test over the examples of an evaluation set, None where t is undefined.

    A pair is an example, scored in the baseline and in the other arm. t is undefined in the cases of `paired_t_test`.
    Each argument has, for each seed, the scores of all examples. The scores of an example are averaged over the seeds.
    This tests whether the arms differ on other examples like these, given the trained models; `paired_t_test` over
    seeds tests whether they differ with other seeds, given these examples.
    """
    means = [np.mean(np.asarray(scores, np.float64), axis=0) for scores in (baseline, other)]
    return paired_t_test(*means)


def mcnemar(one_alone: int, other_alone: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, from counts of pairs of which only one outcome is yes.

    The null hypothesis is that two outcomes, yes or no, measured on the same things are equally often yes. The p-value
    is 1 if both counts are 0.

    one_alone: number of pairs of which only the first outcome is yes.
    other_alone: number of pairs of which only the second is.
    """
    if one_alone + other_alone == 0:
        return 1.0
    return float(scipy.stats.binomtest(one_alone, one_alone + other_alone, 0.5).pvalue)


@dataclasses.dataclass(frozen=True)
class PairedDifference:
    """The difference of a compared config (arm) from the baseline over seeds, with interval and p-values.

    mean: mean of the differences, arm minus baseline.
    interval: 95 % confidence interval of the mean difference, from Student's t.
    p_value: p-value of `paired_t_test`.
    p_corrected: `p_value` after Holm's correction for all differences that `over_seeds` returned with this one.
    smallest: smallest true mean difference for which `paired_t_test` gives p < .05 with probability 0.8, if the
        differences have the standard deviation of these.
    """

    mean: float
    interval: tuple[float, float]
    p_value: float
    p_corrected: float
    smallest: float


def over_seeds(
    arms: Mapping[str, Mapping[str, Sequence[float]]],
) -> dict[str, dict[str, PairedDifference | None]]:
    """Return {arm: {metric: difference from the first arm, None where t is undefined}} for all but the first arm.

    arms: for each arm and metric (or task), the values of the seeds. The p-values of all are corrected together.
    """
    baseline, *others = arms
    # All p-values first, because Holm's correction of each depends on the others.
    p_values = {
        (arm, metric): p_value
        for arm in others
        for metric, values in arms[arm].items()
        if (p_value := paired_t_test(arms[baseline][metric], values)) is not None
    }
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))

    def difference(arm: str, metric: str) -> PairedDifference | None:
        if (arm, metric) not in p_values:
            return None
        differences = np.subtract(arms[arm][metric], arms[baseline][metric])
        count, mean, deviation = len(differences), differences.mean(), differences.std(ddof=1)
        half = scipy.stats.t.ppf(1 - SIGNIFICANT / 2, count - 1) * deviation / count**0.5
        return PairedDifference(
            mean=float(mean),
            interval=(float(mean - half), float(mean + half)),
            p_value=p_values[arm, metric],
            p_corrected=corrected[arm, metric],
            smallest=float(smallest_effect(count) * deviation),
        )

    return {arm: {metric: difference(arm, metric) for metric in arms[arm]} for arm in others}


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple testing by the method of Holm (1979), in the same order.

    The smallest of m p-values is multiplied by m, the next by m - 1, and so on; none becomes smaller than the one
    before it, nor larger than 1. The probability that any true null hypothesis gets a corrected p < .05 is at most .05.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


@functools.cache
def smallest_effect(pairs: int) -> float:
    """Return the smallest true mean difference that a paired t-test detects with probability 0.8, at p < .05.

    pairs: number of pairs of the test, at least two.

    The difference is in standard deviations of the pairs' differences. If the true one is `effect`, then
    t = (effect * sqrt(pairs) + z) / s with z normal and s^2 chi-square over its degrees of freedom, so that the
    probability of t above the critical value is the mean over s of the normal probability of
    z > critical * s - effect * sqrt(pairs).
    """
    freedom = pairs - 1
    critical = scipy.stats.t.ppf(1 - SIGNIFICANT / 2, freedom)
    # The mean over s, as a mean over equally probable values of s.
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    scale = np.sqrt(scipy.stats.chi2.ppf(quantiles, freedom) / freedom)

    def power(effect: float) -> float:
        shift = effect * pairs**0.5
        probabilities = scipy.stats.norm.sf(critical * scale - shift) + scipy.stats.norm.cdf(-critical * scale - shift)
        return float(probabilities.mean())

    return float(scipy.optimize.brentq(lambda effect: power(effect) - POWER, 0.0, 100.0))

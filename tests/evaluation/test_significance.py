"""Spread and paired tests against numbers worked out by hand and by scipy."""

import math

import numpy as np
import pytest
import scipy.stats

from ag_jax.evaluation.significance import (
    MCNEMAR_NEEDS,
    SIGNIFICANT,
    holm,
    mcnemar,
    over_seeds,
    paired_t_test,
    paired_t_test_over_examples,
    smallest_effect,
    spread,
)


def test_spread_by_hand():
    assert spread([1.0, 2.0, 6.0]).mean == 3.0
    assert spread([1.0, 2.0, 6.0]).deviation == pytest.approx(math.sqrt(7.0))
    assert str(spread([2.0])) == "2.000" and spread([2.0]).deviation is None
    assert str(spread([1.0, 2.0, 6.0])) == "3.000 ± 2.646"
    with pytest.raises(ValueError, match="none"):
        spread([])


def test_paired_t_by_hand():
    # Differences 1, 2, 3: mean 2, sd 1, t = 2 / (1 / sqrt 3) = 3.4641 with 2 degrees of freedom.
    expected = 2 * scipy.stats.t.sf(2 * math.sqrt(3), df=2)
    assert paired_t_test([1.0, 5.0, 2.0], [2.0, 7.0, 5.0]) == pytest.approx(expected, rel=1e-12)
    assert paired_t_test([2.0, 7.0, 5.0], [1.0, 5.0, 2.0]) == pytest.approx(expected, rel=1e-12)


def test_undefined_tests_are_none():
    """So are those whose differences are equal but for rounding."""
    baseline = [count / 277 for count in (150, 160, 170)]
    other = [count / 277 for count in (155, 165, 175)]
    assert np.ptp(np.subtract(other, baseline)) > 0
    pairs = [([1.0], [2.0]), ([1.0, 2.0], [2.0, 3.0]), ([0.0, 0.0], [0.0, 0.0]), (baseline, other)]
    pairs += [([1.0, 2.0, 4.0], [2.0, 5.0, diverged]) for diverged in (math.nan, math.inf)]
    assert [paired_t_test(*pair) for pair in pairs] == [None] * 6
    assert paired_t_test(baseline, [*other[:2], 176 / 277]) < 0.05
    with pytest.raises(ValueError, match="2 and 1"):
        paired_t_test([1.0, 2.0], [2.0])


def test_examples_are_pairs_of_means_over_seeds():
    rng = np.random.default_rng(0)
    baseline_SN, other_SN = rng.integers(0, 2, (3, 41)), rng.integers(0, 2, (5, 41))
    expected = scipy.stats.ttest_rel(other_SN.mean(0), baseline_SN.mean(0)).pvalue
    assert paired_t_test_over_examples(baseline_SN, other_SN) == pytest.approx(expected, rel=1e-12)
    assert paired_t_test_over_examples([[1, 1, 0]], [[1, 1, 0]]) is None


def test_holm_by_hand():
    # Times 4, 3, 2, 1 in ascending order: .02, .03, .06, .04, which becomes .06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []


def test_the_smallest_effect_has_power_08():
    """With scipy's noncentral t distribution; the effects are those of published tables of power."""
    for pairs, published in {3: 3.26, 5: 1.68, 10: 1.00}.items():
        effect, critical = smallest_effect(pairs), scipy.stats.t.ppf(0.975, pairs - 1)
        t = scipy.stats.nct(pairs - 1, effect * math.sqrt(pairs))
        assert t.sf(critical) + t.cdf(-critical) == pytest.approx(0.8, abs=1e-5)
        assert effect == pytest.approx(published, abs=0.005)
    differences = np.random.default_rng(0).normal(smallest_effect(2), 1.0, (20_000, 2))
    assert np.mean(scipy.stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.01)


def test_differences_of_arms_over_seeds():
    arms = {
        "base": {"loss": [3.0, 2.0, 4.0], "score": [1.0, 1.0, 1.0]},
        "one": {"loss": [2.0, 1.5, 3.3], "score": [2.0, 2.0, 2.0]},
        "two": {"loss": [3.0, 2.5, 4.1], "score": [1.0, 3.0, 2.0]},
    }
    found = over_seeds(arms)
    assert list(found) == ["one", "two"] and found["one"]["score"] is None  # all differences are 1
    tested = [("one", "loss"), ("two", "loss"), ("two", "score")]
    expected = {key: scipy.stats.ttest_rel(arms[key[0]][key[1]], arms["base"][key[1]]) for key in tested}
    corrected = holm([result.pvalue for result in expected.values()])
    for ((arm, metric), result), p_corrected in zip(expected.items(), corrected, strict=True):
        difference, interval = found[arm][metric], result.confidence_interval(0.95)
        assert (difference.p_value, difference.p_corrected) == pytest.approx((result.pvalue, p_corrected))
        assert difference.interval == pytest.approx((interval.low, interval.high))
        values = np.subtract(arms[arm][metric], arms["base"][metric])
        assert difference.mean == pytest.approx(np.mean(values))
        assert difference.smallest == pytest.approx(smallest_effect(3) * np.std(values, ddof=1))
    assert over_seeds({"base": {"loss": [1.0]}, "one": {"loss": [2.0]}}) == {"one": {"loss": None}}


def test_mcnemar_is_the_exact_test():
    """Twice the probability of the smaller count or fewer in throws of a coin."""
    expected = {(0, 0): 1.0, (3, 3): 1.0, (0, 5): 2 / 2**5, (9, 1): 2 * (1 + 10) / 2**10}
    assert {counts: mcnemar(*counts) for counts in expected} == pytest.approx(expected)
    assert mcnemar(MCNEMAR_NEEDS - 1, 0) >= SIGNIFICANT > mcnemar(MCNEMAR_NEEDS, 0)

"""Spread and paired tests against numbers worked out by hand and by scipy."""

import math

import numpy as np
import pytest
import scipy.stats

from ag_jax.evaluation.significance import paired_t_test, paired_t_test_over_examples, spread


def test_spread_by_hand():
    assert spread([1.0, 2.0, 6.0]).mean == 3.0
    assert spread([1.0, 2.0, 6.0]).deviation == pytest.approx(math.sqrt(7.0))
    assert str(spread([2.0])) == "2.000" and spread([2.0]).deviation is None
    assert str(spread([1.0, 2.0, 6.0])) == "3.000 ± 2.646"
    with pytest.raises(ValueError, match="at least one value"):
        spread([])


def test_paired_t_by_hand():
    # Differences 1, 2, 3: mean 2, sd 1, t = 2 / (1 / sqrt 3) = 3.4641 with 2 degrees of freedom.
    expected = 2 * scipy.stats.t.sf(2 * math.sqrt(3), df=2)
    assert paired_t_test([1.0, 5.0, 2.0], [2.0, 7.0, 5.0]) == pytest.approx(expected, rel=1e-12)
    assert paired_t_test([2.0, 7.0, 5.0], [1.0, 5.0, 2.0]) == pytest.approx(expected, rel=1e-12)


def test_undefined_tests_are_none():
    assert paired_t_test([1.0], [2.0]) is None
    assert paired_t_test([1.0, 2.0], [2.0, 3.0]) is None
    with pytest.raises(ValueError, match="pairs are needed"):
        paired_t_test([1.0, 2.0], [2.0])


def test_examples_are_pairs_of_means_over_seeds():
    rng = np.random.default_rng(0)
    baseline_SN, other_SN = rng.integers(0, 2, (3, 41)), rng.integers(0, 2, (5, 41))
    expected = scipy.stats.ttest_rel(other_SN.mean(0), baseline_SN.mean(0)).pvalue
    assert paired_t_test_over_examples(baseline_SN, other_SN) == pytest.approx(expected, rel=1e-12)
    assert paired_t_test_over_examples([[1, 1, 0]], [[1, 1, 0]]) is None
    with pytest.raises(ValueError, match="pairs are needed: got 41 and 40"):
        paired_t_test_over_examples(baseline_SN, other_SN[:, :40])


def test_differences_that_are_equal_but_for_rounding_say_nothing():
    baseline = [count / 277 for count in (150, 160, 170)]
    other = [count / 277 for count in (155, 165, 175)]
    assert np.ptp(np.subtract(other, baseline)) > 0
    assert paired_t_test(baseline, other) is None
    assert paired_t_test([0.0, 0.0], [0.0, 0.0]) is None
    assert paired_t_test(baseline, [*other[:2], 176 / 277]) < 0.05

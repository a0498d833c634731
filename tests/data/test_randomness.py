"""The numbers are SplitMix64's, uniform, and independent between keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ag_jax.data import randomness
from ag_jax.data.randomness import Draws


def test_words_are_those_of_splitmix64():
    # The first outputs of the reference implementation in C, seeded with 0 and with 1234567.
    assert randomness.words(0)[0] == 0xE220A8397B1DCDAF
    assert randomness.words(1234567)[0] == 6457827717110365317


def test_the_numbers_never_change():
    # Caches and runs that people resume depend on them.
    assert randomness.words(1, 2)[0] == 13608149317741381227
    assert randomness.permutation(7, 1, 2).tolist() == [5, 6, 1, 4, 3, 0, 2]


def test_order_and_place_of_components_matter():
    assert randomness.words(1, 2)[0] != randomness.words(2, 1)[0]
    assert randomness.words(0)[0] != randomness.words(0, 0)[0]


def test_units_are_uniform_in_each_component():
    for key in ((np.arange(20_000), 3, 5), (3, np.arange(20_000), 5), (3, 5, np.arange(20_000))):
        assert stats.kstest(randomness.units(*key), "uniform").pvalue > 1e-3


def test_neighbouring_keys_are_uncorrelated():
    units = randomness.units(np.arange(300)[:, None], np.arange(300))
    deviation = units - 0.5
    for neighbours in (deviation[1:] * deviation[:-1], deviation[:, 1:] * deviation[:, :-1]):
        # The mean of n products of independent uniform deviations has the standard deviation 1 / (12 sqrt(n)).
        assert abs(neighbours.mean()) * 12 * np.sqrt(neighbours.size) < 4


def test_every_bit_is_a_coin():
    words = randomness.words(7, np.arange(40_000))
    ones = [int(((words >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert max(abs(count - 20_000) for count in ones) < 5 * 100  # five standard deviations


def test_below_is_uniform_and_stays_below():
    counts = np.bincount(randomness.below(7, 1, np.arange(70_000)), minlength=7)
    assert len(counts) == 7
    assert stats.chisquare(counts).pvalue > 1e-3


@settings(deadline=None, max_examples=50)
@given(count=st.integers(1, 500), seed=st.integers(0, 2**63), epoch=st.integers(0, 2**31))
def test_permutation_is_a_bijection(count, seed, epoch):
    np.testing.assert_array_equal(np.sort(randomness.permutation(count, seed, epoch)), np.arange(count))


def test_permutations_differ_between_epochs_and_cannot_be_written():
    first, second = randomness.permutation(1000, 5, 0), randomness.permutation(1000, 5, 1)
    assert (first == second).mean() < 0.02
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_draws_are_uniform_and_belong_to_their_key():
    draws = Draws(1, 2)
    values = [draws.integer(3, 9) for _ in range(7000)]
    counts = np.bincount(values, minlength=10)[3:]
    assert min(values) == 3 and max(values) == 9
    assert stats.chisquare(counts).pvalue > 1e-3
    assert [Draws(1, 2).integer(3, 9) for _ in range(3)] == [values[0]] * 3
    assert Draws(1, 3).unit() != Draws(1, 2).unit()
    assert stats.kstest([draws.unit() for _ in range(5000)], "uniform").pvalue > 1e-3

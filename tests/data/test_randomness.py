"""Random numbers are SplitMix64's, uniform, and independent between keys; the rows of a step are those of lists."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ag_jax.data import order, randomness
from ag_jax.data.randomness import Draws


def test_the_numbers_never_change():
    """Caches and runs that people resume depend on them."""
    # The first outputs of the reference implementation in C, seeded with 0 and with 1234567.
    assert randomness.words(0)[0] == 0xE220A8397B1DCDAF and randomness.words(1234567)[0] == 6457827717110365317
    assert randomness.words(1, 2)[0] == 13608149317741381227 != randomness.words(2, 1)[0]
    assert randomness.words(0)[0] != randomness.words(0, 0)[0]
    assert randomness.permutation(7, 1, 2).tolist() == [5, 6, 1, 4, 3, 0, 2]
    assert randomness.units(1, 2)[0] == (13608149317741381227 >> 11) / 2**53
    assert randomness.below(1000, 1, 2)[0] == (13608149317741381227 >> 32) * 1000 // 2**32
    grid = randomness.words(np.arange(3)[:, None], np.arange(4))
    assert grid.tolist() == [[int(randomness.words(one, other)[0]) for other in range(4)] for one in range(3)]


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 500), seed=st.integers(0, 2**63), epoch=st.integers(0, 2**31))
def test_permutation_is_a_bijection(count, seed, epoch):
    np.testing.assert_array_equal(np.sort(randomness.permutation(count, seed, epoch)), np.arange(count))


def test_permutations_differ_between_epochs_and_cannot_be_written():
    first, second = randomness.permutation(1000, 5, 0), randomness.permutation(1000, 5, 1)
    assert (first == second).mean() < 0.02
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_draws_are_those_of_splitmix64_seeded_with_their_key():
    """A number's state grows by the golden ratio; the word of a state is that of the same number as the only key."""
    seed = int(randomness.words(1, 2)[0])
    words = [int(randomness.words((seed + n * 0x9E3779B97F4A7C15) % 2**64)[0]) for n in range(7000)]
    draws = Draws(1, 2)
    assert [draws.unit() for _ in range(3)] == [(word >> 11) / 2**53 for word in words[:3]]
    values = [draws.integer(3, 9) for _ in range(6997)]
    assert values == [3 + word * 7 // 2**64 for word in words[3:]]
    assert stats.chisquare(np.bincount(values)[3:]).pvalue > 1e-3 and max(values) == 9
    assert Draws(1, 3).unit() != Draws(1, 2).unit()


@pytest.mark.parametrize(
    ("count", "batch", "most", "expected"),
    [
        (5, 2, None, [[0, 1], [2, 3], [4, -1]]),
        (5, 2, 5, [[0, 1], [2, 3], [4, -1]]),
        (5, 2, 9, [[0, 1], [2, 3], [4, -1]]),
        (10, 2, 3, [[0, 3], [6, -1]]),
        (7, 4, 4, [[0, 1, 3, 5]]),
        (7, 3, 1, [[0, -1, -1]]),
        (0, 3, None, []),
    ],
)
def test_a_bounded_validation_has_evenly_spaced_rows(count, batch, most, expected):
    assert [rows.tolist() for rows in order.once(count, batch, most=most)] == expected
    assert order.once_count(count, most) == sum(row >= 0 for rows in expected for row in rows)
    some = np.array([batch - 1, 0])
    found = [rows.tolist() for rows in order.once(count, batch, some, most)]
    assert found == [[rows[-1], rows[0]] for rows in expected]


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 9), max_size=4), lengths=st.lists(st.integers(1, 6), min_size=4, max_size=4))
def test_rows_before_a_step(sizes, lengths):
    until = tuple(itertools.accumulate(lengths[: len(sizes)]))
    found = order.BatchSizes(10, tuple(sizes), until)
    plain = [size for size, length in zip(sizes, lengths, strict=False) for _ in range(length)] + [10] * 5
    assert [found.at(step) for step in range(len(plain))] == plain
    assert [found.before(step) for step in range(len(plain) + 1)] == [0, *itertools.accumulate(plain)]
    numbers = [number for step in range(len(plain)) for number in found.numbers(step)]
    assert numbers == list(range(sum(plain)))


def test_drawn_rows_are_those_of_a_permutation_for_each_epoch():
    permuted = [place for epoch in range(3) for place in randomness.permutation(7, 11, epoch).tolist()]
    number_B = np.array([20, 0, 6, 7, 13, 14])
    example_B, epoch_B = order.drawn(7, number_B, 11)
    assert example_B.tolist() == [permuted[number] for number in number_B]
    assert epoch_B.tolist() == [2, 0, 0, 1, 1, 2]

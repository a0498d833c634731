"""The hash that decides what dropout keeps: how random it is, and that it depends on nothing but key and index."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import stats

from ag_jax.attention.dropout import (
    Dropout,
    attention_dropout,
    dropout,
    element_index,
    keep_attention,
    keep_mask,
    random_bits,
)

SHAPE = (5, 7, 89, 97)
SIZE = int(np.prod(SHAPE))
RATE = 0.3


@pytest.fixture(scope="module")
def mask():
    return jax.jit(keep_mask, static_argnums=(1, 2))


def correlation(one, other):
    """Of two masks of 0 and 1, in standard deviations of independent ones."""
    a, b = (np.asarray(field, np.float64).ravel() - (1 - RATE) for field in (one, other))
    return (a * b).mean() / (RATE * (1 - RATE)) * np.sqrt(a.size)


def test_element_index_counts_along_the_last_axis_first():
    np.testing.assert_array_equal(element_index((2, 3, 5)), np.arange(30).reshape(2, 3, 5))
    assert element_index((2, 3)).dtype == jnp.uint32


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_keeps_the_right_share(mask, rate, seed):
    kept = float(np.asarray(mask(jax.random.key(seed), rate, SHAPE)).mean())
    assert abs(kept - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / SIZE)


def test_keeps_the_right_share_of_every_row_and_column(mask):
    """The counts of each slice spread as those of independent draws do."""
    kept = np.asarray(mask(jax.random.key(3), RATE, SHAPE))
    for axis in range(4):
        others = tuple(other for other in range(4) if other != axis)
        number = SIZE // SHAPE[axis]
        deviations = (kept.sum(others) - number * (1 - RATE)) / np.sqrt(number * RATE * (1 - RATE))
        assert np.abs(deviations).max() < 4.5
        assert stats.chi2.sf((deviations**2).sum(), SHAPE[axis]) > 1e-4


def test_every_bit_is_fair_and_all_bytes_are_equally_frequent():
    bits = np.asarray(random_bits(jnp.array([17, 18], jnp.uint32), element_index(SHAPE))).ravel()
    for place in range(32):
        share = ((bits >> place) & 1).mean()
        assert abs(share - 0.5) < 4.5 * 0.5 / np.sqrt(bits.size)
    for shift in (0, 8, 16, 24):
        counts = np.bincount((bits >> shift) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("distance", [1, 2])
def test_neighbours_are_not_correlated(mask, axis, distance):
    kept = np.asarray(mask(jax.random.key(0), RATE, SHAPE))
    size = SHAPE[axis]
    near, far = kept.take(range(size - distance), axis), kept.take(range(distance, size), axis)
    assert abs(correlation(near, far)) < 4


def test_neighbours_along_powers_of_two_are_not_correlated(mask):
    kept = np.asarray(mask(jax.random.key(0), RATE, (2**17,)))
    for power in range(17):
        assert abs(correlation(kept[: -(2**power)], kept[2**power :])) < 4.5


def test_seeds_that_differ_by_one_are_not_correlated(mask):
    masks = [mask(jax.random.key(seed), RATE, SHAPE) for seed in (0, 1, 2, 3)]
    for one, other in itertools.combinations(masks, 2):
        assert abs(correlation(one, other)) < 4


def test_consecutive_steps_are_not_correlated(mask):
    masks = [mask(jax.random.fold_in(jax.random.key(0), step), RATE, SHAPE) for step in range(4)]
    for one, other in itertools.combinations(masks, 2):
        assert abs(correlation(one, other)) < 4
        # Nor is one the other moved by an element or a row.
        for shift in (1, SHAPE[-1]):
            assert abs(correlation(one, np.roll(np.asarray(other).ravel(), shift))) < 4


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("difference", [1, 2, 0x9E3779B1, 1 << 31])
def test_hash_seeds_that_differ_a_little_are_not_correlated(place, difference):
    one = np.array([123, 456], np.uint32)
    other = one.copy()
    other[place] += np.uint32(difference)
    threshold = np.uint32(round(RATE * 2**32))
    masks = [np.asarray(random_bits(jnp.asarray(seeds), element_index(SHAPE))) >= threshold for seeds in (one, other)]
    assert abs(correlation(*masks)) < 4


def test_second_seed_makes_more_than_a_shuffle():
    """The values themselves differ, not only their order; so no two masks are permutations of each other."""
    one, other = (
        np.asarray(random_bits(jnp.array([1, second], jnp.uint32), element_index((997,)))) for second in (2, 3)
    )
    assert len(np.intersect1d(one, other)) < 5


def test_values_are_zero_or_scaled(mask):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(SHAPE), jnp.float32)
    kept = np.asarray(mask(jax.random.key(5), RATE, SHAPE))
    np.testing.assert_allclose(dropout(x, jax.random.key(5), RATE), np.where(kept, x / 0.7, 0), rtol=1e-6)


def test_expectation_is_the_input():
    thinned = np.asarray(dropout(jnp.ones(SHAPE), jax.random.key(5), RATE))
    assert abs(thinned.mean() - 1) < 4 * np.sqrt(RATE / (1 - RATE) / SIZE)


def test_gradient_is_the_scaled_mask(mask):
    x = jnp.asarray(np.random.default_rng(0).standard_normal((11, 13)), jnp.float32)
    gradient = jax.grad(lambda x: (dropout(x, jax.random.key(2), RATE)).sum())(x)
    np.testing.assert_allclose(gradient, np.asarray(mask(jax.random.key(2), RATE, (11, 13))) / 0.7, rtol=1e-6)


def test_dropped_infinities_do_not_come_back():
    x = jnp.full((11, 13), jnp.inf)
    assert set(np.unique(dropout(x, jax.random.key(2), RATE))) == {0.0, np.inf}


@pytest.fixture(scope="module")
def attention_mask():
    return jax.jit(keep_attention, static_argnums=(1, 2))


def test_mask_of_attention_equals_its_formula():
    """In numpy, an element at a time: heads 2i and 2i + 1 take the lower and the upper half of the same bits."""

    def mix(x):
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    key, rate, (batch, heads, queries, keys) = jax.random.key(4), 0.3, (2, 3, 4, 5)
    one, other = (int(bits) for bits in jax.random.bits(key, (2,), jnp.uint32))
    wanted = np.zeros((batch, heads, queries, keys), bool)
    for b, h, q, k in np.ndindex(wanted.shape):
        row = (b * 2 + h // 2) * queries + q  # three heads are two pairs
        bits = mix(mix(mix(row ^ one) ^ other) ^ mix(mix(k ^ other) ^ one))
        wanted[b, h, q, k] = (bits >> (16 * (h % 2))) % 2**16 >= round(rate * 2**16)
    np.testing.assert_array_equal(keep_attention(key, rate, wanted.shape), wanted)
    assert 0 < wanted.sum() < wanted.size


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.25, 0.5, 0.9])
def test_attention_keeps_the_right_share(attention_mask, rate):
    kept = np.asarray(attention_mask(jax.random.key(1), rate, SHAPE))
    assert abs(kept.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / SIZE)
    for axis in range(4):
        others = tuple(other for other in range(4) if other != axis)
        number = SIZE // SHAPE[axis]
        deviations = (kept.sum(others) - number * (1 - rate)) / np.sqrt(number * rate * (1 - rate))
        assert np.abs(deviations).max() < 4.5
        assert stats.chi2.sf((deviations**2).sum(), SHAPE[axis]) > 1e-4


@pytest.mark.parametrize("axis", range(4))
def test_neighbours_in_attention_are_not_correlated(attention_mask, axis):
    """Along the heads too, where two share their bits."""
    kept = np.asarray(attention_mask(jax.random.key(0), RATE, SHAPE))
    for distance in (1, 2, 4):
        near = kept.take(range(SHAPE[axis] - distance), axis)
        assert abs(correlation(near, kept.take(range(distance, SHAPE[axis]), axis))) < 4


def test_rows_columns_and_rectangles_in_attention_are_independent(attention_mask):
    """The inputs of the last round xor to 0 over the corners of a rectangle; the masks there must not show it."""
    kept = np.asarray(attention_mask(jax.random.key(8), RATE, (1, 2, 512, 512)), np.float64)[0] - (1 - RATE)
    kept /= np.sqrt(RATE * (1 - RATE))
    for head in kept:
        for sums in (head @ head.T, head.T @ head):  # of products of two rows or columns: each is a sum of 512 draws
            apart = sums[np.triu_indices(512, 1)] / np.sqrt(512)
            assert abs(apart.mean()) * np.sqrt(apart.size) < 4.5
            # The mean of squares is over all rectangles, so it is larger if the corners of a rectangle are dependent.
            assert abs((apart**2).mean() - 1) < 0.02
    assert abs((kept[0] * kept[1]).mean()) * 512 < 4.5


def test_seeds_and_steps_of_attention_are_not_correlated(attention_mask):
    keys = [
        *(jax.random.key(seed) for seed in (0, 1)),
        *(jax.random.fold_in(jax.random.key(0), step) for step in (1, 2)),
    ]
    masks = [attention_mask(key, RATE, SHAPE) for key in keys]
    for one, other in itertools.combinations(masks, 2):
        assert abs(correlation(one, other)) < 4
        assert abs(correlation(one, np.roll(np.asarray(other), 1, axis=2))) < 4


def test_attention_dropout_scales_what_it_keeps(attention_mask):
    weights = jnp.asarray(np.random.default_rng(0).random(SHAPE), jnp.float32)
    kept = np.asarray(attention_mask(jax.random.key(5), RATE, SHAPE))
    np.testing.assert_allclose(
        attention_dropout(weights, jax.random.key(5), RATE), np.where(kept, weights / 0.7, 0), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_and_mask_do_not_depend_on_each_other(mask, dtype):
    thinned = dropout(jnp.ones((11, 13), dtype), jax.random.key(2), RATE)
    assert thinned.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(thinned != 0, mask(jax.random.key(2), RATE, (11, 13)))


def test_same_key_same_mask_with_and_without_jit(mask):
    np.testing.assert_array_equal(mask(jax.random.key(7), RATE, (5, 6)), keep_mask(jax.random.key(7), RATE, (5, 6)))
    assert (mask(jax.random.key(7), RATE, (5, 6)) != mask(jax.random.key(8), RATE, (5, 6))).any()


@pytest.mark.parametrize("spec", [("x",), (None, "x"), (None, None, "x")])
def test_eight_devices_draw_what_one_draws_without_talking(eight_devices, spec):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=eight_devices)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 16, 24)), jnp.float32)
    thin = jax.jit(lambda x, key: dropout(x, key, RATE), out_shardings=sharding)
    spread = jax.device_put(x, sharding)
    np.testing.assert_array_equal(thin(spread, jax.random.key(1)), dropout(x, jax.random.key(1), RATE))
    text = thin.lower(spread, jax.random.key(1)).compile().as_text()
    assert "all-gather" not in text and "all-reduce" not in text and "all-to-all" not in text


def test_module_returns_its_input_when_there_is_nothing_to_drop():
    x = jnp.arange(6.0)
    assert Dropout(0.0).apply({}, x, deterministic=False) is x
    assert Dropout(0.5).apply({}, x, deterministic=True) is x
    rngs = {"dropout": jax.random.key(0)}
    thinned = Dropout(0.5).apply({}, jnp.ones(1000), deterministic=False, rngs=rngs)
    assert set(np.unique(thinned)) == {0.0, 2.0}

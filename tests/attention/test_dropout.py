"""The hash that decides what dropout keeps: its formula, how random it is, and that devices draw the same."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import stats

from ag_jax.attention.dropout import Dropout, attention_dropout, dropout, keep_attention, keep_mask, uniform

SHAPE = (5, 7, 89, 97)
SIZE = int(np.prod(SHAPE))
RATE = 0.3


def mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return x ^ (x >> 16)


@pytest.mark.parametrize("rate", [0.01, RATE, 0.9])
def test_masks_and_samples_equal_their_formulas(rate):
    """The expected values are computed with Python's integers, an element at a time.

    Heads 2i and 2i + 1 of attention take the lower and the upper half of the same bits.
    """
    key, shape = jax.random.key(4), (2, 3, 4, 5)
    one, other = (int(bits) for bits in jax.random.bits(key, (2,), jnp.uint32))
    of_elements, of_attention, samples = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape)
    for index, (b, h, q, k) in enumerate(np.ndindex(shape)):
        bits = mix(mix(index ^ one) ^ other)
        of_elements[b, h, q, k] = bits >= round(rate * 2**32)
        samples[b, h, q, k] = (bits + 0.5) / 2**32
        row = (b * 2 + h // 2) * 4 + q  # three heads are two pairs
        bits = mix(mix(mix(row ^ one) ^ other) ^ mix(mix(k ^ other) ^ one))
        of_attention[b, h, q, k] = (bits >> (16 * (h % 2))) % 2**16 >= round(rate * 2**16)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    @jax.jit
    def results(key, x):
        def of(function):
            gradient = jax.grad(lambda x: 5 * function(x, key, rate).sum())(x)
            thinned = function(jnp.full(shape, jnp.inf, jnp.bfloat16), key, rate)  # a product with 0 would be no zero
            return function(x, key, rate), gradient, thinned

        masks = keep_mask(key, rate, shape), keep_attention(key, rate, shape)
        return masks, uniform(key, shape), (of(dropout), of(attention_dropout))

    masks, found, thinnings = results(key, x)
    np.testing.assert_allclose(found, samples, rtol=1e-6)
    for found, mask, (value, gradient, thinned) in zip(masks, (of_elements, of_attention), thinnings, strict=True):
        np.testing.assert_array_equal(found, mask)
        scaled = np.where(mask, 1 / (1 - rate), 0)
        np.testing.assert_allclose(value, x * scaled, rtol=1e-6)
        np.testing.assert_allclose(gradient, 5 * scaled, rtol=1e-6)
        np.testing.assert_array_equal(thinned, np.where(mask, np.inf, 0))
        assert thinned.dtype == jnp.bfloat16


def test_samples_of_a_uniform_distribution_are_neither_0_nor_1():
    samples = np.asarray(jax.jit(uniform, static_argnums=1)(jax.random.key(0), (1 << 21,)))
    assert samples.min() > 0 and samples.max() < 1 and stats.kstest(samples, "uniform").pvalue > 1e-3


def correlation(one, other):
    """Return the correlation of two masks of 0 and 1, in standard deviations of independent masks."""
    a, b = (np.asarray(field, np.float64).ravel() - (1 - RATE) for field in (one, other))
    return (a * b).mean() / (RATE * (1 - RATE)) * np.sqrt(a.size)


@pytest.mark.parametrize("function", [keep_mask, keep_attention])
def test_masks_are_random(function):
    """The share that is kept, in all slices; neighbours along all axes; seeds and steps that follow one another."""
    draw = jax.jit(function, static_argnums=(1, 2))
    base = jax.random.key(0)
    masks = [
        draw(key, RATE, SHAPE) for key in (base, jax.random.key(1), *(jax.random.fold_in(base, n) for n in (1, 2)))
    ]
    masks = [np.asarray(mask) for mask in masks]
    assert abs(masks[0].mean() - (1 - RATE)) < 4 * np.sqrt(RATE * (1 - RATE) / SIZE)
    for axis in range(4):
        number = SIZE // SHAPE[axis]
        kept = masks[0].sum(tuple(other for other in range(4) if other != axis))
        deviations = (kept - number * (1 - RATE)) / np.sqrt(number * RATE * (1 - RATE))
        assert np.abs(deviations).max() < 4.5
        assert stats.chi2.sf((deviations**2).sum(), SHAPE[axis]) > 1e-4
        for distance in (1, 2, 4):
            near = masks[0].take(range(SHAPE[axis] - distance), axis)
            assert abs(correlation(near, masks[0].take(range(distance, SHAPE[axis]), axis))) < 4
    for one, other in itertools.combinations(masks, 2):
        assert abs(correlation(one, other)) < 4
        # Nor is one the other moved by an element or a row.
        for axis in (2, 3):
            assert abs(correlation(one, np.roll(other, 1, axis))) < 4


def test_eight_devices_draw_what_one_draws_without_talking(eight_devices):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,), devices=eight_devices)
    sharding = NamedSharding(mesh, PartitionSpec(None, "x"))
    x = np.float32(np.random.default_rng(0).standard_normal((8, 16, 24)))
    thin = jax.jit(lambda x, key: dropout(x, key, RATE), out_shardings=sharding)
    alone = jax.jit(lambda x, key: dropout(x, key, RATE))
    spread = jax.device_put(x, sharding)
    np.testing.assert_array_equal(thin(spread, jax.random.key(1)), alone(x, jax.random.key(1)))
    text = thin.lower(spread, jax.random.key(1)).compile().as_text()
    assert "all-gather" not in text and "all-reduce" not in text and "all-to-all" not in text


def test_module_returns_its_input_when_there_is_nothing_to_drop():
    x = jnp.arange(6.0)
    assert Dropout(0.0).apply({}, x, deterministic=False) is x
    assert Dropout(0.5).apply({}, x, deterministic=True) is x
    rngs = {"dropout": jax.random.key(0)}
    thinned = Dropout(0.5).apply({}, jnp.ones(1000), deterministic=False, rngs=rngs)
    assert set(np.unique(thinned)) == {0.0, 2.0}

"""Dropout whose mask is a hash of each element's index.

`jax.random` spends about twenty rounds on an element, which a small model's step on a CPU feels. Two rounds of an
integer hash are enough to decide what to drop; being elementwise, they fuse with the product that uses the mask, split
over devices without changing a bit, and are repeated inside the attention kernels.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


def _mix(x: Array) -> Array:
    """Return a hash of uint32, a bijection in which every input bit flips every output bit about half the time."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def element_index(shape: tuple[int, ...]) -> Array:
    """Return each element's flat row-major index as uint32, in an array of this shape; indices wrap around at 2^32."""
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    for axis, size in enumerate(shape):
        index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return index


def random_bits(seeds: tuple[Array, Array] | Array, index: Array) -> Array:
    """Return a pseudo-random uint32 for each element of `index`: mix(mix(index xor seeds[0]) xor seeds[1]).

    The second seed enters between the rounds: with one alone, two seeds would give shuffled copies of one another.
    """
    return _mix(_mix(index ^ seeds[0]) ^ seeds[1])


def seeds(key: Array) -> Array:
    """Return two uint32 drawn from `key`; together with an element's index, they decide whether it is dropped."""
    return jax.random.bits(key, (2,), jnp.uint32)


def keep(seeds: tuple[Array, Array] | Array, index: Array, rate: float) -> Array:
    """Return booleans of the shape of `index`, each true with probability 1 - rate."""
    return random_bits(seeds, index) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Sample float32 numbers uniformly from (0, 1), without 0 and 1, so that log(u) and log(1 - u) are finite."""
    bits = random_bits(seeds(key), element_index(shape))
    return jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)


def keep_mask(key: Array, rate: float, shape: tuple[int, ...]) -> Array:
    """Sample a dropout mask: booleans of the shape, each true with probability 1 - rate."""
    return keep(seeds(key), element_index(shape), rate)


def dropout(x: Array, key: Array, rate: float) -> Array:
    """Return x * keep / (1 - rate): zero with probability `rate`, unchanged in expectation (Srivastava et al. 2014)."""
    return jnp.where(keep_mask(key, rate, x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))


def keep_half(bits: Array, upper: Array | int, rate: float) -> Array:
    """Return booleans that are true with probability 1 - rate, from the lower or upper 16 of an element's random bits.

    The rate is rounded to a multiple of 2^-16.

    upper: whether the upper 16 bits decide, as 0 or 1.
    """
    half = (bits >> (jnp.uint32(16) * upper)) & jnp.uint32(0xFFFF) if isinstance(upper, Array) else (
        bits >> 16 if upper else bits & jnp.uint32(0xFFFF)
    )
    # Both are below 2^16, and a TPU compares signed integers faster.
    return half.astype(jnp.int32) >= round(rate * 2**16)


def attention_dropout(weights_BHQK: Array, key: Array, rate: float) -> Array:
    """Return attention probabilities after dropout.

    Heads 2i and 2i + 1 take the lower and the upper half of the same random bits, so that a kernel for both heads
    computes one hash for two elements.
    """
    batch, heads, queries, keys = weights_BHQK.shape
    head = jax.lax.broadcasted_iota(jnp.uint32, (1, heads, 1, 1), 1)
    example = jax.lax.broadcasted_iota(jnp.uint32, (batch, 1, 1, 1), 0)
    of_row = element_index((1, 1, queries, keys))
    index = (example * jnp.uint32(-(-heads // 2)) + head // 2) * jnp.uint32(queries * keys) + of_row
    kept = keep_half(random_bits(seeds(key), index), head % 2, rate)
    return jnp.where(kept, weights_BHQK / (1.0 - rate), jnp.zeros((), weights_BHQK.dtype))


class Dropout(nn.Module):
    """Module that applies `dropout` with its own random key."""

    rate: float

    @nn.compact
    def __call__(self, x: Array, *, deterministic: bool) -> Array:
        """Return `x` after dropout, or `x` itself if `deterministic` or `rate == 0`."""
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.make_rng("dropout"), self.rate)

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
    """Return a hash of each uint32: a bijection in which an input bit flips each output bit about half the time."""
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
    """Return two uint32 dropout seeds drawn from `key`, which with an element's index decide if it is dropped."""
    return jax.random.bits(key, (2,), jnp.uint32)


def keep(seeds: tuple[Array, Array] | Array, index: Array, rate: float) -> Array:
    """Return a dropout mask: booleans of the shape of `index`, each true (kept) with probability 1 - rate."""
    return random_bits(seeds, index) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Sample float32 numbers uniformly from (0, 1), without 0 and 1, so that log(u) and log(1 - u) are finite."""
    bits = random_bits(seeds(key), element_index(shape))
    return jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)


def keep_mask(key: Array, rate: float, shape: tuple[int, ...]) -> Array:
    """Sample a dropout mask: booleans of the shape, each true with probability 1 - rate."""
    return keep(seeds(key), element_index(shape), rate)


def dropout(x: Array, key: Array, rate: float) -> Array:
    """Return `x` after dropout: 0 with probability `rate`, else x / (1 - rate) (Srivastava et al. 2014)."""
    return _scaled(x, keep_mask(key, rate, x.shape), rate)


def _scaled(x: Array, mask: Array, rate: float) -> Array:
    return jnp.where(mask, x / (1.0 - rate), jnp.zeros((), x.dtype))


def hashes_of_rows(seeds: tuple[Array, Array] | Array, row: Array) -> Array:
    """Return a pseudo-random uint32 for each row (query) of attention matrices, for their dropout.

    row: flat index of the example, the pair of heads, and the query.

    Heads 2i and 2i + 1 are a pair: they share random bits, of which each takes a half (`keep_half`).
    """
    return random_bits(seeds, row)


def hashes_of_columns(seeds: tuple[Array, Array] | Array, column: Array) -> Array:
    """Return a pseudo-random uint32 for each column (key index `column`) of attention matrices, for their dropout."""
    return random_bits((seeds[1], seeds[0]), column)


def bits_of_elements(of_rows: Array, of_columns: Array) -> Array:
    """Return pseudo-random uint32 for the elements of attention matrices, mixed from row and column hashes.

    An array of Q x K elements then costs Q + K hashes of two rounds, and one round for each element.
    """
    return _mix(of_rows ^ of_columns)


def keep_half(bits: Array, upper: Array | bool, rate: float) -> Array:
    """Return a dropout mask, true with probability 1 - rate, from the upper or lower 16 of each element's 32 bits.

    The rate is rounded to a multiple of 2^-16.

    upper: whether these are the upper 16 bits.
    """
    if isinstance(upper, bool):
        half = bits >> 16 if upper else bits & 0xFFFF
    else:
        half = (bits >> (upper.astype(jnp.uint32) * 16)) & 0xFFFF
    # Below 2^16, so that signed integers, which a TPU compares faster, are ordered like unsigned ones.
    return half.astype(jnp.int32) >= round(rate * 2**16)


def keep_attention(key: Array, rate: float, shape_BHQK: tuple[int, ...]) -> Array:
    """Sample a dropout mask for attention weights: booleans `BHQK`, each true with probability 1 - rate."""
    batch, heads, queries, keys = shape_BHQK
    of_seeds, pairs = seeds(key), -(-heads // 2)
    of_rows = hashes_of_rows(of_seeds, element_index((batch, pairs, queries, 1)))
    of_rows = jnp.repeat(of_rows, 2, axis=1)[:, :heads]  # both heads of a pair
    of_columns = hashes_of_columns(of_seeds, element_index((1, 1, 1, keys)))
    is_upper = jax.lax.broadcasted_iota(jnp.int32, (1, heads, 1, 1), 1) % 2 == 1
    return keep_half(bits_of_elements(of_rows, of_columns), is_upper, rate)


def attention_dropout(weights_BHQK: Array, key: Array, rate: float) -> Array:
    """Return attention probabilities after dropout, with the mask of `keep_attention`."""
    return _scaled(weights_BHQK, keep_attention(key, rate, weights_BHQK.shape), rate)


class Dropout(nn.Module):
    """Module that applies `dropout` with its own random key."""

    rate: float

    @nn.compact
    def __call__(self, x: Array, *, deterministic: bool) -> Array:
        """Return `x` after dropout, or `x` itself if `deterministic` or `rate == 0`."""
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.make_rng("dropout"), self.rate)

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
    """A bijection of uint32 in which every input bit flips every output bit about half the time."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def element_index(shape: tuple[int, ...]) -> Array:
    """Each element's number, counted along the last axis first, as uint32 of the shape; beyond 2^32 it starts again."""
    index = jnp.zeros((1,) * len(shape), jnp.uint32)
    for axis, size in enumerate(shape):
        index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    return index


def random_bits(seeds: tuple[Array, Array] | Array, index: Array) -> Array:
    """Pseudo-random uint32 for the elements of an `index`: mix(mix(index xor seeds[0]) xor seeds[1]).

    The second seed enters between the rounds: with one alone, two seeds would give shuffled copies of one another.
    """
    return _mix(_mix(index ^ seeds[0]) ^ seeds[1])


def seeds(key: Array) -> Array:
    """The two uint32 that decide, with an element's index, whether it is kept."""
    return jax.random.bits(key, (2,), jnp.uint32)


def keep(seeds: tuple[Array, Array] | Array, index: Array, rate: float) -> Array:
    """Booleans of the shape of `index`, each true with probability 1 - rate."""
    return random_bits(seeds, index) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))


def uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Numbers in (0, 1) of a shape, float32, determined by `key`: never 0 or 1, whose logarithms are infinite."""
    bits = random_bits(seeds(key), element_index(shape))
    return jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)


def keep_mask(key: Array, rate: float, shape: tuple[int, ...]) -> Array:
    """Booleans of a shape, each true with probability 1 - rate, determined by `key`."""
    return keep(seeds(key), element_index(shape), rate)


def dropout(x: Array, key: Array, rate: float) -> Array:
    """x * keep / (1 - rate): zero with probability `rate`, unchanged in expectation (Srivastava et al. 2014)."""
    return jnp.where(keep_mask(key, rate, x.shape), x / (1.0 - rate), jnp.zeros((), x.dtype))


class Dropout(nn.Module):
    """`dropout` with a key of the module's own; the input itself if `deterministic` or `rate == 0`."""

    rate: float

    @nn.compact
    def __call__(self, x: Array, *, deterministic: bool) -> Array:
        """`x`, thinned."""
        if deterministic or self.rate == 0.0:
            return x
        return dropout(x, self.make_rng("dropout"), self.rate)

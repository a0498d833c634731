"""Stateless random numbers: each number is a hash of an integer key, so numbers can be computed in any order.

The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
generators"). Unlike the numbers of `numpy.random.Generator`, these cannot change with a numpy release, so the rows and
masks of a cache or a resumed run stay the same.
"""

import functools
from typing import Any

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = 2**64 - 1


def words(*components) -> np.ndarray:
    """Return pseudo-random 64-bit numbers (uint64): a hash of the integers at each index of the broadcast `components`.

    components: integers or arrays of integers, which broadcast; equal integers give equal numbers. Scalars count as
        arrays of one element.
    """
    state: Any = np.uint64(0)
    for component in components:
        # Each component has a mixing round of its own. Arrays have at least one dimension, because numpy warns of
        # overflow (intended here) for scalars.
        component = np.atleast_1d(np.asarray(component).astype(np.uint64))
        state = _mix((state ^ component) + np.uint64(_GOLDEN))
    return state


def units(*components) -> np.ndarray:
    """Return pseudo-random floats in [0, 1), one for each index of the broadcast `components`, as in `words`."""
    return (words(*components) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(limit: int, *components) -> np.ndarray:
    """Return pseudo-random integers in 0..limit-1, one for each index of the broadcast `components`, as in `words`.

    `limit` may be up to 2^32; the bias is below limit / 2^32.
    """
    return ((words(*components) >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


@functools.lru_cache(maxsize=4)  # two epochs that share a batch, for training and for one more reader
def permutation(count: int, *key: int) -> np.ndarray:
    """Return the numbers 0..count-1 in a random order, which the integers `key` determine; the array is read-only.

    The array is cached and shared by all callers.
    """
    # A stable sort makes the order well-defined even if two of the random words are equal.
    order = np.argsort(words(*key, np.arange(count)), kind="stable")
    order = order.astype(np.uint32 if count <= 2**32 else np.int64)
    order.flags.writeable = False
    return order


class Draws:
    """A sequential generator of random numbers whose seed is a key of integers."""

    def __init__(self, *key: int):
        self._state = int(words(*key)[0])

    def unit(self) -> float:
        """Return the next random number, a float uniform in [0, 1)."""
        return (self._word() >> 11) * 2.0**-53

    def integer(self, low: int, high: int) -> int:
        """Return the next random number, an integer uniform in low..high, both included."""
        return low + (self._word() * (high - low + 1) >> 64)

    def _word(self) -> int:
        self._state = (self._state + _GOLDEN) & _WORD
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * _FIRST) & _WORD
        mixed = ((mixed ^ (mixed >> 27)) * _SECOND) & _WORD
        return mixed ^ (mixed >> 31)


def _mix(state: np.ndarray) -> np.ndarray:
    """Mix the bits of each 64-bit word by a bijective function, in place, and return `state`.

    In place, because this is the inner loop of masking; the caller must not share the array.
    """
    state ^= state >> np.uint64(30)
    state *= np.uint64(_FIRST)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_SECOND)
    state ^= state >> np.uint64(31)
    return state

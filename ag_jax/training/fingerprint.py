"""Fingerprints: a checksum for each array, by which a reader detects that an array differs from what was saved."""

import functools
import json
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ag_jax.attention.dropout import element_index, random_bits

Tree = Any
StoredFingerprint = dict[str, int] | list[int]  # a fingerprint stored in a checkpoint; older versions stored lists


def paths(tree: Tree) -> dict[str, Any]:
    """Return {path: leaf} of a tree, with paths such as `params/encoder/layer_0/bias`, in `jax.tree.leaves` order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(_name(key) for key in path): leaf for path, leaf in leaves}


def _name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))


def fingerprint(tree: Tree) -> dict[str, int]:
    """Return a 32-bit checksum of each array of a tree, as {path: number}. Elements must be 1, 2 or 4 bytes wide.

    number = sum_i mix(mix(i xor s) xor bits_i) mod 2^32, where `mix` is a bijection of 32-bit integers that scatters
    their bits, i is an element's index, and s depends on the type and shape of the array. So a change of one element
    always changes the number, and a change of several elements goes unnoticed with a probability of 2^-32. The number
    does not depend on how the array is split over devices and hosts, because the order of a sum modulo 2^32 does not
    matter.
    """
    return _numbers(paths(tree), _hashed_sum)


def changed(arrays: dict[str, jax.Array], written: StoredFingerprint) -> list[str]:
    """Return the sorted paths of arrays that differ from a stored fingerprint, are missing in it, or are only in it.

    arrays: {path: array}, as `paths` returns it.
    written: what `fingerprint` returned for the arrays that were saved.

    Older versions wrote a list: sum_i bits_i (2 i + 1) mod 2^32 of each array, in the order of `arrays`; numbers after
    the last array are ignored. It also detects any change of one element, but changes of the high bits of several
    elements may cancel each other.
    """
    if isinstance(written, list):
        found, written = _numbers(arrays, _weighted_sum), dict(zip(arrays, written, strict=False))
    else:
        found = _numbers(arrays, _hashed_sum)
    return sorted(path for path in found.keys() | written.keys() if found.get(path) != written.get(path))


def of_json(value: Any) -> int:
    """Return the CRC-32 checksum of a JSON value."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _numbers(arrays: dict[str, jax.Array], digest: Callable[[jax.Array], jax.Array]) -> dict[str, int]:
    numbers = jax.device_get(_digests(list(arrays.values()), digest))
    return {path: int(number) for path, number in zip(arrays, numbers, strict=True)}


@functools.partial(jax.jit, static_argnums=1)
def _digests(arrays: list[jax.Array], digest: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    return [digest(array) for array in arrays]


def _bits(array: jax.Array) -> jax.Array:
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


@jax.jit  # so that it is traced once for all arrays of a shape and type
def _hashed_sum(array: jax.Array) -> jax.Array:
    """Return the checksum of an array: the sum of hashes of its elements' bits and positions (see `fingerprint`)."""
    seed = jnp.uint32(zlib.crc32(f"{array.dtype}{array.shape}".encode()))
    return random_bits((seed, _bits(array)), element_index(array.shape)).sum(dtype=jnp.uint32)


def _weighted_sum(array: jax.Array) -> jax.Array:
    """Return the checksum that older versions of ag_jax stored for an array: sum_i bits_i (2 i + 1) mod 2^32, where
    bits_i are the bits of element i = 0, 1, ... as an unsigned integer.
    """
    return (_bits(array) * (2 * element_index(array.shape) + 1)).sum(dtype=jnp.uint32)

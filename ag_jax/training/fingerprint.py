"""Fingerprints: a checksum for each array, by which a reader detects that an array differs from what was saved."""

import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from ag_jax.attention.dropout import element_index, random_bits

Tree = Any


def paths(tree: Tree) -> dict[str, Any]:
    """Return {path: leaf} of a tree, with paths such as `params/encoder/layer_0/bias`, in `jax.tree.leaves` order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {"/".join(_name(key) for key in path): leaf for path, leaf in leaves}


def _name(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))


def fingerprint(tree: Tree) -> dict[str, int]:
    """Return {path: 32-bit checksum} of the arrays in a tree, whose elements must be 1, 2 or 4 bytes wide.

    number = sum_i mix(mix(i xor s) xor bits_i) mod 2^32, where `mix` is a bijection of 32-bit integers that scatters
    their bits, i is an element's index, and s depends on the type and shape of the array. So a change of one element
    always changes the number, and a change of several elements goes unnoticed with a probability of 2^-32. The number
    does not depend on how the array is split over devices and hosts, because the order of a sum modulo 2^32 does not
    matter.
    """
    return _checksums(paths(tree))


def changed(arrays: dict[str, jax.Array], written: dict[str, int]) -> list[str]:
    """Return the sorted paths of arrays that differ from a stored fingerprint, or are only in one of the two.

    arrays: {path: array}, as `paths` returns it.
    written: what `fingerprint` returned for the arrays that were saved.
    """
    read = _checksums(arrays)
    return sorted(path for path in read.keys() | written.keys() if read.get(path) != written.get(path))


def of_json(value: Any) -> int:
    """Return the CRC-32 checksum of a JSON value."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode())


def _checksums(arrays: dict[str, jax.Array]) -> dict[str, int]:
    numbers = jax.device_get(_hashed_sums(list(arrays.values())))
    return {path: int(number) for path, number in zip(arrays, numbers, strict=True)}


@jax.jit
def _hashed_sums(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_hashed_sum(array) for array in arrays]


def _bits(array: jax.Array) -> jax.Array:
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    return jax.lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


@jax.jit  # so that it is traced once for all arrays of a shape and type
def _hashed_sum(array: jax.Array) -> jax.Array:
    """Return the checksum of an array: the sum of hashes of its elements' bits and positions (see `fingerprint`)."""
    seed = jnp.uint32(zlib.crc32(f"{array.dtype}{array.shape}".encode()))
    return random_bits((seed, _bits(array)), element_index(array.shape)).sum(dtype=jnp.uint32)

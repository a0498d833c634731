"""Attention maps as compressed bytes in a web page.

A weight w is stored as a level, the nearest of `levels` steps of its square root: round(sqrt(w) (levels - 1)). The
square root is also the scale of colours, and small weights keep more of their digits than on a linear scale: of a
head that spreads its attention over 512 tokens, a third of the mass is in weights below 1/255. Levels are stored column
after column, because trained heads have vertical stripes, which then compress better.

With few levels (`PICTURE`), weights from about 1.3 % on also get four more bits, by which they are right to .002. These
bits follow the levels in the order of the cells, two weights to a byte, so that they need no positions.

After decoding, a row whose sum was 1 is made to sum to 1 again: weights of a level of at least `Precision.kept` stay,
and the others are scaled. `viewer.js` decodes in the same way.

Shape letters: N layers, H heads, Q query position, K key position.
"""

import base64
import dataclasses
import math
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

NIBBLE = 16  # parts of a level that the four additional bits tell apart
OVERVIEW = 64  # most cells of a side of a head in the overview


@dataclasses.dataclass(frozen=True)
class Precision:
    """With how many digits weights are stored.

    levels: number of steps of the square root, from 2 to 256.
    kept: the lowest level of which weights are not scaled after decoding.
    is_refined: whether weights of the level `kept` and above have four more bits.
    """

    levels: int
    kept: int
    is_refined: bool = False


FULL = Precision(256, 29)  # every weight is right to .004
PICTURE = Precision(32, 4, is_refined=True)  # weights from 1.3 % on are right to .002, smaller ones are shades
COARSE = Precision(32, 32)  # the overview


def levels(weights: np.ndarray, precision: Precision) -> np.ndarray:
    """Return the levels of weights, uint8. Raises ValueError for weights that are not from 0 to 1, up to rounding."""
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() <= 1 + 1e-4):
        raise ValueError(
            "attention weights must be numbers from 0 to 1, got values from "
            f"{np.min(weights)} to {np.max(weights)}: the model's parameters may be damaged"
        )
    return np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * (precision.levels - 1)).astype(np.uint8)


def encode_map(weights_QK: np.ndarray, precision: Precision) -> bytes:
    """Return the bytes of a map before compression: levels by columns, then the additional bits."""
    level = levels(weights_QK.T.ravel(), precision)
    if not precision.is_refined:
        return level.tobytes()
    chosen = level >= precision.kept
    above = np.sqrt(weights_QK.T.ravel()[chosen]) * (precision.levels - 1) - (level[chosen] - 0.5)  # from 0 to 1
    nibbles = np.clip(np.floor(above * NIBBLE), 0, NIBBLE - 1).astype(np.uint8)
    if len(nibbles) % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    return level.tobytes() + (nibbles[0::2] | nibbles[1::2] << 4).tobytes()


def decode_map(data: bytes, queries: int, keys: int, precision: Precision, *, sums_to_one: bool = True) -> np.ndarray:
    """Return the weights `QK` of `encode_map`, as `viewer.js` decodes them.

    sums_to_one: whether the rows of the map summed to 1.
    """
    cells = queries * keys
    level = np.frombuffer(data[:cells], np.uint8).astype(np.float64)
    root = level / (precision.levels - 1)
    kept = level >= precision.kept
    if precision.is_refined:
        packed = np.frombuffer(data[cells:], np.uint8)
        nibbles = np.stack([packed & 15, packed >> 4], axis=1).ravel()[: kept.sum()]
        root[kept] = (level[kept] - 0.5 + (nibbles + 0.5) / NIBBLE) / (precision.levels - 1)
    weights_QK, kept_QK = (root**2).reshape(keys, queries).T.copy(), kept.reshape(keys, queries).T
    if sums_to_one:
        rest_QK = np.where(kept_QK, 0.0, weights_QK)
        total_Q, missing_Q = rest_QK.sum(1), 1 - np.where(kept_QK, weights_QK, 0.0).sum(1)
        factor_Q = np.divide(np.maximum(missing_Q, 0), total_Q, out=np.ones(queries), where=total_Q > 0)
        weights_QK = np.where(kept_QK, weights_QK, weights_QK * factor_Q[:, None])
    return weights_QK


def compressed(data: bytes) -> str:
    """Return bytes as the base64 text of a raw deflate stream."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")


def all_compressed(pieces: Iterable[bytes]) -> list[str]:
    """Return what `compressed` returns for each piece, computed by several threads."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(compressed, pieces))


def block(queries: int, keys: int) -> int:
    """Return of how many tokens each side of a cell of the overview is."""
    return max(1, math.ceil(max(queries, keys) / OVERVIEW))


def largest(weights_NHQK: np.ndarray) -> np.ndarray:
    """Return the largest weights of blocks of tokens (`block`), because means would hide thin lines."""
    size = block(*weights_NHQK.shape[-2:])
    queries, keys = (np.arange(0, length, size) for length in weights_NHQK.shape[-2:])
    return np.maximum.reduceat(np.maximum.reduceat(weights_NHQK, queries, axis=-2), keys, axis=-1)


def overview(weights_NHQK: np.ndarray) -> bytes:
    """Return the levels of the overview (`largest`) of all heads, one after the other, each by columns."""
    return levels(np.swapaxes(largest(weights_NHQK), -1, -2), COARSE).tobytes()


def bits(flags_QK: np.ndarray) -> bytes:
    """Return booleans by columns, eight to a byte, the first one in the highest bit."""
    return np.packbits(np.asarray(flags_QK, bool).T.ravel()).tobytes()

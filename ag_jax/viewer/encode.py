"""Attention maps as compressed bytes in a web page.

A weight w is stored as a level, the nearest of `levels` steps of its square root: round(sqrt(w) (levels - 1)). The
square root is also the scale of colours, and small weights keep more of their digits than on a linear scale: of a
head that spreads its attention over 512 tokens, a third of the mass is in weights below 1/255. Levels are stored column
after column, because trained heads have vertical stripes, which then compress better.

With few levels (`PICTURE`), weights from about 1.3 % on also get four more bits, by which they are right to .002. These
bits follow the levels in the order of the cells, two weights to a byte, so that they need no positions.

`viewer.js` decodes. With few levels, it brings a row whose sum was 1 near 1 again: weights with the additional bits
stay, and the others are scaled within the bounds of their levels.

Shape letters: N layers, H heads, Q query position, K key position.
"""

import base64
import dataclasses
import math
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

NIBBLE = 16  # parts of a level that the four additional bits tell apart
OVERVIEW = 64  # most cells of a side of a head in the overview


@dataclasses.dataclass(frozen=True)
class Precision:
    """How finely a page stores attention weights: the number of levels, and from which level on with four more bits.

    levels: number of steps of the square root, from 2 to 256.
    refined_from: the lowest level of which weights have four more bits; None if no weights have them.
    """

    levels: int
    refined_from: int | None = None


FULL = Precision(256)  # every weight is right to .004
PICTURE = Precision(32, refined_from=4)  # weights from 1.3 % on are right to .002, smaller ones are shades
COARSE = Precision(32)  # the overview


def levels(weights: np.ndarray, precision: Precision) -> np.ndarray:
    """Return attention weights quantized to uint8 levels that are evenly spaced in the weight's square root.

    Raises ValueError for weights that are not from 0 to 1, up to rounding.
    """
    if not (np.isfinite(weights).all() and weights.min() >= 0 and weights.max() <= 1 + 1e-4):
        raise ValueError(
            "attention weights must be numbers from 0 to 1, got values from "
            f"{np.min(weights)} to {np.max(weights)}: the model's parameters may be damaged"
        )
    return np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * (precision.levels - 1)).astype(np.uint8)


def encode_map(weights_QK: np.ndarray, precision: Precision) -> bytes:
    """Return the uncompressed bytes of an attention map: levels column by column, then the additional bits."""
    level = levels(weights_QK.T.ravel(), precision)
    if precision.refined_from is None:
        return level.tobytes()
    is_refined = level >= precision.refined_from
    # How far a weight is above the lower border of its level, from 0 to 1.
    above = np.sqrt(weights_QK.T.ravel()[is_refined]) * (precision.levels - 1) - (level[is_refined] - 0.5)
    nibbles = np.clip(np.floor(above * NIBBLE), 0, NIBBLE - 1).astype(np.uint8)
    if len(nibbles) % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    return level.tobytes() + (nibbles[0::2] | nibbles[1::2] << 4).tobytes()


def compress(data: bytes) -> str:
    """Return bytes as base64 text, compressed as a raw deflate stream."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")


def compress_all(pieces: Iterable[bytes]) -> list[str]:
    """Return the base64 texts of byte strings, in order, each compressed by one of several threads."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(compress, pieces))


def block(queries: int, keys: int) -> int:
    """Return how many tokens one cell of the overview of all heads covers on each side."""
    return max(1, math.ceil(max(queries, keys) / OVERVIEW))


def largest(weights_QK: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Reduce attention maps `...QK` to the maxima of blocks of `rows` times `columns` tokens; the last may be smaller.

    Unlike a mean or a subsample, the maximum preserves thin lines.
    """
    queries, keys = np.arange(0, weights_QK.shape[-2], rows), np.arange(0, weights_QK.shape[-1], columns)
    return np.maximum.reduceat(np.maximum.reduceat(weights_QK, queries, axis=-2), keys, axis=-1)


def coarse(weights_NHQK: np.ndarray) -> np.ndarray:
    """Return the attention maps of all heads, reduced to the largest weights of blocks of tokens (`block`)."""
    size = block(*weights_NHQK.shape[-2:])
    return largest(weights_NHQK, size, size)


def overview(tiles_NHQK: np.ndarray) -> bytes:
    """Return the bytes of the overview of reduced maps (`coarse`): levels, head by head, column by column."""
    return levels(np.swapaxes(tiles_NHQK, -1, -2), COARSE).tobytes()


def between_words(weights_QK: np.ndarray, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    """Return attention between words: the sum over the columns of a word, and the mean over the rows of a word.

    rows, columns: the first token of each word, in ascending order, of which the first is 0; a word ends before the
        next one.
    """
    sums_QK = np.add.reduceat(weights_QK.astype(np.float64), columns, axis=1)
    counts_Q = np.diff([*rows, len(weights_QK)])
    return np.add.reduceat(sums_QK, rows, axis=0) / counts_Q[:, None]


def bits(flags_QK: np.ndarray) -> bytes:
    """Return booleans packed into bytes, column by column, eight to a byte, the first one in the highest bit."""
    return np.packbits(np.asarray(flags_QK, bool).T.ravel()).tobytes()

"""Layouts: conversions between a tensor of transformers and the parameters of ag_jax that it holds.

Shape letters: D width, H head, W width of a head, K kernel width of a convolution.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The conversion between a tensor of transformers ("theirs") and the parameters that it holds ("ours").

    shape: (*shapes of parameters) -> shape of the tensor.
    load: (tensor, *shapes of parameters) -> parameters.
    store: (*parameters) -> tensor.
    """

    shape: Callable[..., Shape]
    load: Callable[..., tuple[np.ndarray, ...]]
    store: Callable[..., np.ndarray]


# An embedding, a bias, the scale of a LayerNorm.
AS_IS = Layout(shape=lambda ours: ours, load=lambda theirs, _: (theirs,), store=lambda ours: ours)

# A vector that is stored as a matrix of one row.
ROW = Layout(shape=lambda ours: (1, *ours), load=lambda theirs, _: (theirs[0],), store=lambda ours: ours[None])

# A bias H*W of all heads: ours is split by head, (H, W).
BY_HEAD = Layout(
    shape=lambda ours: (math.prod(ours),),
    load=lambda theirs, ours: (theirs.reshape(ours),),
    store=lambda ours: ours.reshape(-1),
)

# A matrix (out, in): ours is (in, out), where `out` may be split by head: (D, H, W).
TO_HEADS = Layout(
    shape=lambda ours: (math.prod(ours[1:]), ours[0]),
    load=lambda theirs, ours: (theirs.T.reshape(ours),),
    store=lambda ours: ours.reshape(ours.shape[0], -1).T,
)
TRANSPOSED = TO_HEADS

# A matrix (out, in) whose `in` is split by head in ours: (H, W, D).
FROM_HEADS = Layout(
    shape=lambda ours: (ours[-1], math.prod(ours[:-1])),
    load=lambda theirs, ours: (theirs.T.reshape(ours),),
    store=lambda ours: ours.reshape(-1, ours.shape[-1]).T,
)

# A convolution (out, in, K): ours is (K, in, out).
CONVOLUTION = Layout(
    shape=lambda ours: ours[::-1],
    load=lambda theirs, _: (theirs.transpose(2, 1, 0),),
    store=lambda ours: ours.transpose(2, 1, 0),
)


def _split(theirs: np.ndarray, *ours: Shape) -> tuple[np.ndarray, ...]:
    """Split one matrix into the parameters of query, key and value, each of shape (width, head, width of a head)."""
    width, heads, head_width = ours[0]
    by_head = theirs.reshape(heads, len(ours), head_width, width)
    return tuple(by_head[:, part].transpose(2, 0, 1) for part in range(len(ours)))


def _join(*ours: np.ndarray) -> np.ndarray:
    """Join the parameters of query, key and value into one matrix: the inverse of `_split`."""
    by_head = np.stack([array.transpose(1, 2, 0) for array in ours], axis=1)
    return by_head.reshape(-1, by_head.shape[-1])


# DeBERTa v1: the matrices of query, key and value in one, head after head: [q0; k0; v0; q1; k1; v1; ...].
FUSED = Layout(
    shape=lambda *ours: (sum(math.prod(shape[1:]) for shape in ours), ours[0][0]),
    load=_split,
    store=_join,
)


def _split_rows(theirs: np.ndarray, *ours: Shape) -> tuple[np.ndarray, ...]:
    """Split a matrix whose rows are the outputs of several linear layers into their kernels, of the shapes `ours`."""
    rows = np.cumsum([math.prod(shape[1:]) for shape in ours])[:-1]
    return tuple(part.T.reshape(shape) for part, shape in zip(np.split(theirs, rows), ours, strict=True))


# ModernBERT: matrices (out, in) one below the other, such as [query; key; value].
STACKED = Layout(
    shape=lambda *ours: (sum(math.prod(shape[1:]) for shape in ours), ours[0][0]),
    load=_split_rows,
    store=lambda *ours: np.concatenate([array.reshape(array.shape[0], -1).T for array in ours]),
)


def _split_vector(theirs: np.ndarray, *ours: Shape) -> tuple[np.ndarray, ...]:
    """Split a vector of several layers' biases, one after another, into biases of the shapes `ours`."""
    places = np.cumsum([math.prod(shape) for shape in ours])[:-1]
    return tuple(part.reshape(shape) for part, shape in zip(np.split(theirs, places), ours, strict=True))


# The biases of such matrices.
STACKED_BIASES = Layout(
    shape=lambda *ours: (sum(math.prod(shape) for shape in ours),),
    load=_split_vector,
    store=lambda *ours: np.concatenate([array.reshape(-1) for array in ours]),
)

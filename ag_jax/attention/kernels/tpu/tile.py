"""Tiles of attention as the TPU kernels work on them.

A tile holds the scores of one head, some keys and some queries, and is transposed, `KQ`: sums over the keys then come out
as rows, which is how a statistic lies in memory.

Shape letters: K keys of a tile, Q queries of a tile.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from ag_jax.attention.kernels import interface
from ag_jax.attention.kernels.interface import MASKED_SCORE, Shape

Array = jax.Array
Ref = Any


def product(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
    """A matrix product in float32 that sums over one axis of each tile."""
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def column(row: Array) -> Array:
    """A row `(1, K)` as a column `(K, 1)`."""
    return jnp.transpose(row, (1, 0))


@dataclasses.dataclass(frozen=True)
class Operands:
    """References to the blocks of one grid step; those that a kernel is not given are None.

    query, output, g_output, statistics and their cotangents belong to the queries; key, value and weights to the keys.
    """

    query: Ref
    key: Ref
    value: Ref
    query_sequences: Ref
    key_sequences: Ref
    bias: Ref = None
    weights: Ref = None
    g_output: Ref = None
    g_squares: Ref = None
    g_overlap: Ref = None
    log_sums: Ref = None
    delta: Ref = None


class Tile:
    """The tile of a grid step: which elements it holds, and what each of its heads makes of them.

    corner: example, first head, first query and first key, in numbers of this device; width: of a head's lanes.
    """

    def __init__(
        self, shape: Shape, corner: tuple[Array, ...], width: int, shifts: Ref, numbers: Ref, operands: Operands
    ):
        self.shape, self.width, self.shifts, self.numbers, self.operands = shape, width, shifts, numbers, operands
        self.example, self.first_head, first_query, first_key = corner
        keys, queries = operands.key.shape[1], operands.query.shape[1]
        self.query_KQ = jax.lax.broadcasted_iota(jnp.int32, (keys, queries), 1) + first_query
        self.key_KQ = jax.lax.broadcasted_iota(jnp.int32, (keys, queries), 0) + first_key
        self.together_KQ = column(operands.key_sequences[0]) == operands.query_sequences[0]

    def lanes(self, head: int) -> slice:
        """Where a head of the group lies in a row of all heads' widths."""
        return slice(head * self.width, (head + 1) * self.width)

    def of(self, ref: Ref, head: int) -> Array:
        """A head's part of an operand such as query."""
        return ref[0, :, self.lanes(head)]

    def scores(self, head: int) -> Array:
        """Q K^T / sqrt(d) + bias where query and key belong together, float32."""
        scores_KQ = product(self.of(self.operands.key, head), self.of(self.operands.query, head), 1, 1)
        scores_KQ = scores_KQ * self.shape.width**-0.5
        if self.operands.bias is not None:
            of_head = head if self.operands.bias.shape[1] > 1 else 0
            scores_KQ = scores_KQ + self.operands.bias[0, of_head].astype(jnp.float32)
        return jnp.where(self.together_KQ, scores_KQ, MASKED_SCORE)

    def probabilities(self, head: int) -> Array:
        """H, from the rows' logarithmic sums; without them the tile has all keys, and makes its own."""
        scores_KQ = self.scores(head)
        if self.operands.log_sums is not None:
            return jnp.exp(scores_KQ - self.operands.log_sums[0, head])
        exponentials_KQ = jnp.exp(scores_KQ - jnp.max(scores_KQ, axis=0, keepdims=True))
        return exponentials_KQ * (1.0 / jnp.sum(exponentials_KQ, axis=0, keepdims=True))

    def target(self, head: int) -> Array:
        """P."""
        shift = self.shifts[self.first_head + head]
        return interface.target(shift, column(self.operands.weights[0, head]), self.query_KQ, self.key_KQ)

    def multiplier(self, head: int) -> Array:
        """M: 1 / (1 - rate) for what dropout keeps, else 0."""
        keep_KQ = self.shape.keep(self.numbers, self.example, self.first_head + head, self.query_KQ, self.key_KQ)
        return jnp.where(keep_KQ, 1.0 / (1.0 - self.shape.rate), 0.0)

    def gradient(self, head: int) -> tuple[Array, Array]:
        """dS, and H * M."""
        H_KQ = thinned_KQ = self.probabilities(head)
        dH_KQ = product(self.of(self.operands.value, head), self.of(self.operands.g_output, head), 1, 1)
        if self.shape.rate:
            multiplier_KQ = self.multiplier(head)
            dH_KQ, thinned_KQ = dH_KQ * multiplier_KQ, H_KQ * multiplier_KQ
        if self.shape.guided:
            dH_KQ += 2.0 * self.operands.g_squares[0, head] * H_KQ
            dH_KQ += self.operands.g_overlap[0, head] * self.target(head)
        if self.operands.delta is not None:
            delta = self.operands.delta[0, head]
        else:
            delta = jnp.sum(H_KQ * dH_KQ, axis=0, keepdims=True)
        return H_KQ * (dH_KQ - delta), thinned_KQ


def cost(shape: Shape, operands: list, results: list, products: int) -> pl.CostEstimate:
    """What the compiler is told of a kernel: `products` matrix products of L x L x N for each row of the batch."""
    examples, length, all_widths = operands[0].shape
    moved = [*operands, *results]
    return pl.CostEstimate(
        flops=2 * products * examples * length**2 * all_widths,
        transcendentals=examples * shape.heads * length**2,
        bytes_accessed=sum(math.prod(array.shape) * array.dtype.itemsize for array in moved),
    )

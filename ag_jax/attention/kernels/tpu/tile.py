"""Tiles of query-key scores, on which the TPU kernels work.

A tile holds the scores of one head, some keys and some queries, and is transposed, `KQ`: sums over the keys then come
out as rows, which is how a statistic lies in memory.

Shape letters: K keys of a tile, Q queries of a tile.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from ag_jax.attention import dropout
from ag_jax.attention.kernels import interface
from ag_jax.attention.kernels.interface import MASKED_SCORE, KernelConfig

Ref = Any


def product(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
    """Return the float32 matrix product of two tiles, summed over `left_axis` of `left` and `right_axis` of `right`."""
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def column(row: Array) -> Array:
    """Transpose a row `(1, K)` to a column `(K, 1)`."""
    return jnp.transpose(row, (1, 0))


@dataclasses.dataclass(frozen=True)
class Operands:
    """References to the blocks that one grid step reads; None for arrays that the kernel does not read.

    query, query_segments, columns, log_sums, delta, and those that begin with `g_`: of the step's queries.
    key, value, key_segments, weights: of the step's keys.
    bias: of both.
    """

    query: Ref
    key: Ref
    value: Ref
    query_segments: Ref
    key_segments: Ref
    bias: Ref = None
    columns: Ref = None
    weights: Ref = None
    g_output: Ref = None
    g_squares: Ref = None
    g_overlap: Ref = None
    g_log_sums: Ref = None
    g_score_sums: Ref = None
    log_sums: Ref = None
    delta: Ref = None


def has_keys(largest: Array) -> Array:
    """Return whether each query sees any key: then its largest score is above `MASKED_SCORE`."""
    return largest > MASKED_SCORE


def softmax(scores_KQ: Array) -> tuple[Array, Array]:
    """Return (the softmax of each query's scores, their log-sum-exps), both 0 for queries that see no key."""
    largest_1Q = jnp.max(scores_KQ, axis=0, keepdims=True)
    exponentials_KQ = jnp.exp(scores_KQ - largest_1Q)
    total_1Q = jnp.sum(exponentials_KQ, axis=0, keepdims=True)
    sees_keys_1Q = has_keys(largest_1Q)
    log_sums_1Q = jnp.where(sees_keys_1Q, largest_1Q + jnp.log(total_1Q), 0.0)
    return exponentials_KQ * jnp.where(sees_keys_1Q, 1.0 / total_1Q, 0.0), log_sums_1Q


class Tile:
    """The tile (block of queries by block of keys) of a grid step: scores, probabilities and gradients of each head.

    corner: example, first head, first query and first key, in numbers of this device.
    query_block: number of the block of queries.
    width: of a head's lanes.
    is_visible: whether the grid step is to be computed; otherwise its block is outside the band, or there is none.
    """

    def __init__(
        self,
        config: KernelConfig,
        corner: tuple[Array, ...],
        query_block: Array,
        width: int,
        scalars: Ref,
        operands: Operands,
        is_visible: Array | bool,
    ):
        self.config, self.width, self.scalars, self.operands = config, width, scalars, operands
        self.example, self.first_head, self.first_query, self.first_key = corner
        self.query_block, self.is_visible = query_block, is_visible
        self.shape = operands.key.shape[1], operands.query.shape[1]

    @functools.cached_property
    def query_KQ(self) -> Array:
        """Positions of the queries, int32 in the shape of the tile."""
        return jax.lax.broadcasted_iota(jnp.int32, self.shape, 1) + self.first_query

    @functools.cached_property
    def key_KQ(self) -> Array:
        """Positions of the keys, int32 in the shape of the tile."""
        return jax.lax.broadcasted_iota(jnp.int32, self.shape, 0) + self.first_key

    @functools.cached_property
    def visible_KQ(self) -> Array:
        """Whether a query sees a key, in the shape of the tile."""
        visible_KQ = column(self.operands.key_segments[0]) == self.operands.query_segments[0]
        band = self.config.band
        return visible_KQ if band.is_everything else visible_KQ & band.contains(self.query_KQ, self.key_KQ)

    def lanes(self, head: int) -> slice:
        """Return a head's slice of a block's last axis; head 0 is the first in the grid step's group of heads."""
        return slice(head * self.width, (head + 1) * self.width)

    def of(self, ref: Ref, head: int) -> Array:
        """Return a head's part of a block of queries, keys, values or output gradients: (positions, width)."""
        return ref[0, :, self.lanes(head)]

    def scores(self, head: int) -> Array:
        """Return a head's scores Q K^T / sqrt(W) + bias where the query sees the key, else `MASKED_SCORE`; float32."""
        scores_KQ = product(self.of(self.operands.key, head), self.of(self.operands.query, head), 1, 1)
        scores_KQ = scores_KQ * self.config.width**-0.5
        if self.operands.bias is not None:
            of_head = head if self.operands.bias.shape[1] > 1 else 0
            scores_KQ = scores_KQ + self.operands.bias[0, of_head].astype(jnp.float32)
        return jnp.where(self.visible_KQ, scores_KQ, MASKED_SCORE)

    def probabilities(self, head: int) -> Array:
        """Return a head's attention weights, from the log-sum-exps if saved, else by a softmax over all keys."""
        scores_KQ = self.scores(head)
        if self.operands.log_sums is not None:
            return jnp.exp(scores_KQ - self.operands.log_sums[0, head])
        return softmax(scores_KQ)[0]

    def target(self, head: int) -> Array:
        """Return a head's guidance target P for the tile's queries and keys, in the shape of the tile."""
        weights_K1 = column(self.operands.weights[0, head])
        target_KQ = interface.target(self.operands.columns[0, head], weights_K1, self.key_KQ)
        # The squared distance multiplies it by H, which is 0 where a query does not see the key.
        return jnp.where(self.visible_KQ, target_KQ, 0.0) if self.config.is_cross_entropy else target_KQ

    def multiplier(self, head: int) -> Array:
        """Return dropout's multiplier of each attention weight: 1 / (1 - rate) if it is kept, else 0."""
        in_group = self.operands.key.shape[2] // self.width
        if self.config.heads % 2 or in_group % 2:
            is_upper = ((self.first_head + head + self.scalars[3]) & 1) == 1
            keep_KQ = dropout.keep_half(self.bits(head), is_upper, self.config.rate)
        else:  # the first head of this device and that of the grid step are even, so both heads of a pair are here
            if head % 2 == 0:
                self.shared_KQ = self.bits(head)
            keep_KQ = dropout.keep_half(self.shared_KQ, head % 2 == 1, self.config.rate)
        return jnp.where(keep_KQ, self.config.dropout_scale, 0.0)

    def bits(self, head: int) -> Array:
        """Return 32 random bits for each element of the tile, of which heads 2i and 2i + 1 use 16 each in dropout."""
        # Hashes of keys are computed as a row, which is packed more densely than a column.
        query_1Q = jax.lax.broadcasted_iota(jnp.int32, (1, self.shape[1]), 1) + self.first_query
        key_1K = jax.lax.broadcasted_iota(jnp.int32, (1, self.shape[0]), 1) + self.first_key
        of_queries_1Q, of_keys_1K = self.config.hashes(
            self.scalars, self.example, self.first_head + head, query_1Q, key_1K
        )
        return dropout.bits_of_elements(of_queries_1Q, column(of_keys_1K))

    def gradient(self, head: int) -> tuple[Array, Array]:
        """Return (gradient of the scores, attention weights after dropout), both 0 at keys a query does not see."""
        H_KQ = dropped_KQ = self.probabilities(head)
        dH_KQ = product(self.of(self.operands.value, head), self.of(self.operands.g_output, head), 1, 1)
        if self.config.rate:
            multiplier_KQ = self.multiplier(head)
            dH_KQ, dropped_KQ = dH_KQ * multiplier_KQ, H_KQ * multiplier_KQ
        if self.operands.g_squares is not None:
            dH_KQ += 2.0 * self.operands.g_squares[0, head] * H_KQ
            dH_KQ += self.operands.g_overlap[0, head] * self.target(head)
        if self.operands.delta is not None:
            delta = self.operands.delta[0, head]
        else:
            delta = jnp.sum(H_KQ * dH_KQ, axis=0, keepdims=True)
        if self.operands.g_log_sums is not None:
            delta -= self.operands.g_log_sums[0, head]
        dS_KQ = H_KQ * (dH_KQ - delta)
        if self.operands.g_score_sums is not None:
            dS_KQ += self.operands.g_score_sums[0, head] * self.target(head)
        return dS_KQ, dropped_KQ


def cost(pairs: int, width: int, products: int, moved: float) -> pl.CostEstimate:
    """Return the estimated cost of a kernel, for the compiler.

    pairs: number of query-key pairs that are computed, of all examples and heads.
    width: of a head's lanes.
    products: number of matrix products over these pairs.
    moved: bytes that are read and written, blocks that are read several times included.
    """
    return pl.CostEstimate(flops=2 * products * pairs * width, transcendentals=pairs, bytes_accessed=round(moved))

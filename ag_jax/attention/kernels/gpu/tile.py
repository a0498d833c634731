"""Tiles of query-key scores, on which the GPU kernels (Triton) work.

A program holds a block of one side, queries or keys, in fast memory, and streams the other side: blocks of it pass
through. The side that is held is the first axis of the tiles, so that a tile can go into the next product from the
registers that it was made in: `QK` where queries are held, `KQ` where keys are. Between its products a kernel is bound
by the number of instructions an element takes: all that can be done once a row is done there, and `exponential` takes
scores as the product leaves them.

Shape letters: B batch, Q query position, K key position, H head, W width of a head.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ag_jax.attention.kernels import interface
from ag_jax.attention.kernels.interface import MASKED_SCORE, KernelConfig

Ref = Any

_SMALLEST = 16  # rows and columns that a matrix product needs at least


def power_of_two(size: int) -> int:
    """Return the smallest power of two that holds `size` and suits a matrix product: Triton supports no other sizes."""
    return max(_SMALLEST, pl.next_power_of_2(size))


def product(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
    """Return the matrix product of two tiles, summed over `left_axis` of `left` and `right_axis` of `right`.

    The result is float32; the factors are multiplied at JAX's default matmul precision.
    """
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _inside(first: Array | int, size: int, length: int) -> Array | None:
    """Return which of `size` positions from `first` on are below `length`; None if `length` is a multiple of `size`."""
    return first + jnp.arange(size) < length if length % size else None


def _crossed(rows: Array | None, columns: Array | None) -> Array | None:
    """Return the mask of a matrix from the masks of its rows and columns; None means true everywhere."""
    if rows is None:
        return None if columns is None else columns[None, :]
    return rows[:, None] if columns is None else rows[:, None] & columns[None, :]


def _load(place: Ref, mask: Array | None, other: float) -> Array:
    """Load the array elements to which the reference `place` points, or `other` where the mask is false."""
    return triton.load(place) if mask is None else triton.load(place, mask=mask, other=other)


@dataclasses.dataclass(frozen=True)
class Queries:
    """A block of a head's queries from position `first` on; fields with default None are for the backward pass.

    columns: the argument `column` of `interface.target`, for all passes; None if no head is guided.
    """

    first: Array
    segments: Array
    query: Array
    g_output: Array | None = None
    columns: Array | None = None
    log_sums: Array | None = None
    delta: Array | None = None
    g_squares: Array | None = None
    g_score_sums: Array | None = None
    g_overlap: Array | None = None

    @property
    def position(self) -> Array:
        """Position of each query of the block among all queries of the sequence."""
        return self.first + jnp.arange(self.query.shape[0])


@dataclasses.dataclass(frozen=True)
class Keys:
    """A block of a head's keys from position `first` on, with the keys' values and weights in the target P.

    weights: the argument `weights` of `interface.target`; None if no head is guided.
    """

    first: Array
    segments: Array
    key: Array
    value: Array
    weights: Array | None = None

    @property
    def position(self) -> Array:
        """Position of each key of the block among all keys of the sequence."""
        return self.first + jnp.arange(self.key.shape[0])


def score_scale(config: KernelConfig) -> float:
    """Return c = log2(e) / sqrt(W), with which 2^(c Q K^T) = exp(Q K^T / sqrt(W))."""
    return math.log2(math.e) / math.sqrt(config.width)


def exponential(config: KernelConfig, scores: Array, powers: Array) -> Array:
    """Return exp(scores / sqrt(W)) * 2^-powers, for scores that are not scaled yet; exactly zero below about 2^-126."""
    scale = score_scale(config)
    if config.interpret:
        return jnp.exp2(scale * scores - powers)
    # A product-sum and the hardware's own power of 2. `jnp.exp2` compiles to more, for the sake of results below
    # 2^-126.
    (result,) = triton.elementwise_inline_asm(
        "{ .reg .f32 x; fma.rn.f32 x, $1, $2, $3; ex2.approx.ftz.f32 $0, x; }",
        args=[scores, jnp.full_like(scores, scale), jnp.broadcast_to(-powers, scores.shape)],
        constraints="=f,f,f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(scores.shape, jnp.float32)],
    )
    return result


class HeadRefs:
    """The arrays of one head of one example: methods load and store blocks of them, never beyond an array's end.

    Vectors of a head are loaded as wide as the next power of two, filled up with 0.

    refs: references to whole arrays, named as in `grid.LETTERS`.
    """

    def __init__(self, config: KernelConfig, refs: dict[str, Ref], example: Array, head: Array):
        self.config, self.refs, self.example, self.head = config, refs, example, head
        self.scalars = [refs["scalars"][index] for index in range(4)] if config.rate else None

    def queries(self, first: Array, size: int) -> Queries:
        """Load a block of `size` queries from position `first` on."""
        length = self.config.queries
        rows = [name for name in ("query", "g_output") if name in self.refs]
        numbers = ("columns", "log_sums", "delta", "g_squares", "g_score_sums", "g_overlap")
        loaded: dict[str, Array] = {
            name: _load(*self._vectors(self.refs[name], first, size, length), 0.0) for name in rows
        }
        loaded |= {
            name: _load(*self._numbers(self.refs[name], first, size, length), 0)
            for name in numbers
            if name in self.refs
        }
        return Queries(first, self._segments("query_segments", first, size, length), **loaded)

    def keys(self, first: Array, size: int) -> Keys:
        """Load a block of `size` keys, with their values, from position `first` on."""
        length, weights = self.config.keys, None
        key, value = (_load(*self._vectors(self.refs[name], first, size, length), 0.0) for name in ("key", "value"))
        if self.config.guided:
            weights = _load(*self._numbers(self.refs["weights"], first, size, length), 0.0)
        return Keys(first, self._segments("key_segments", first, size, length), key, value, weights)

    def bias(self, queries: Queries, keys: Keys) -> Array:
        """Load the bias `QK` of a block of queries and a block of keys."""
        sides = ((side.first, side.segments.shape[0]) for side in (queries, keys))
        return _load(*self._matrix(self.refs["bias"], *sides), 0.0).astype(jnp.float32)

    def store_query_vectors(self, ref: Ref, first: Array, vectors_QW: Array) -> None:
        """Store a vector for each query from position `first` on, in this head's part of the `BQHW` result `ref`."""
        self._store_vectors(ref, first, vectors_QW, self.config.queries)

    def store_key_vectors(self, ref: Ref, first: Array, vectors_KW: Array) -> None:
        """Store a vector for each key from position `first` on, in this head's part of the `BKHW` result `ref`."""
        self._store_vectors(ref, first, vectors_KW, self.config.keys)

    def store_query_numbers(self, ref: Ref, first: Array, numbers_Q: Array) -> None:
        """Store a number for each query from position `first` on, in this head's part of the `BHQ` result `ref`."""
        place, mask = self._numbers(ref, first, numbers_Q.shape[0], self.config.queries)
        triton.store(place, numbers_Q, mask=mask)

    def store_matrix(self, ref: Ref, first_query: Array, first_key: Array, matrix_QK: Array) -> None:
        """Store `matrix_QK` from `first_query` and `first_key` on, in this head's part of the `BHQK` result `ref`."""
        place, mask = self._matrix(ref, *zip((first_query, first_key), matrix_QK.shape, strict=False))
        triton.store(place, matrix_QK, mask=mask)

    def _store_vectors(self, ref: Ref, first: Array, vectors: Array, length: int) -> None:
        place, mask = self._vectors(ref, first, vectors.shape[0], length)
        triton.store(place, vectors.astype(ref.dtype), mask=mask)

    def _vectors(self, ref: Ref, first: Array, size: int, length: int) -> tuple[Ref, Array | None]:
        columns = power_of_two(self.config.width)
        mask = _crossed(_inside(first, size, length), _inside(0, columns, self.config.width))
        return ref.at[self.example, pl.ds(first, size), self.head, pl.ds(0, columns)], mask

    def _numbers(self, ref: Ref, first: Array, size: int, length: int) -> tuple[Ref, Array | None]:
        return ref.at[self.example, self.head, pl.ds(first, size)], _inside(first, size, length)

    def _segments(self, name: str, first: Array, size: int, length: int) -> Array:
        """Load `size` segment ids of queries or keys from position `first` on; positions past the end get -1.

        No token has the segment id -1.
        """
        place = self.refs[name].at[self.example, pl.ds(first, size)]
        return _load(place, _inside(first, size, length), -1)

    def _matrix(self, ref: Ref, queries: tuple[Array, int], keys: tuple[Array, int]) -> tuple[Ref, Array | None]:
        """Return a reference to this head's block of a `BHQK` array, and a mask of the positions inside the array.

        The mask is None if blocks of this size do not reach beyond the array.
        """
        mask = _crossed(_inside(*queries, self.config.queries), _inside(*keys, self.config.keys))
        # An axis that all examples or all heads share has the size 1.
        example, head = (
            jnp.minimum(index, size - 1) for index, size in zip((self.example, self.head), ref.shape, strict=False)
        )
        return ref.at[example, head, pl.ds(*queries), pl.ds(*keys)], mask


class ScoreTile:
    """The scores of a block of queries with a block of keys of a head: `QK` if `queries_first`, otherwise `KQ`."""

    def __init__(self, head: HeadRefs, queries: Queries, keys: Keys, queries_first: bool):
        self.head, self.queries, self.keys, self.queries_first = head, queries, keys, queries_first

    def of_queries(self, vector: Array) -> Array:
        """Reshape a vector with a number for each query to lie on the tile's query axis and broadcast over keys."""
        return vector[:, None] if self.queries_first else vector[None, :]

    def of_keys(self, vector: Array) -> Array:
        """Reshape a vector with a number for each key to lie on the tile's key axis and broadcast over queries."""
        return vector[None, :] if self.queries_first else vector[:, None]

    @property
    def positions(self) -> tuple[Array, Array]:
        """Positions of the queries and of the keys, in shapes that broadcast to the shape of the tile."""
        return self.of_queries(self.queries.position), self.of_keys(self.keys.position)

    def scores(self) -> Array:
        """Return Q K^T + sqrt(W) bias where the query sees the key, else `MASKED_SCORE`: float32, not scaled yet."""
        scores = self._products(self.queries.query, self.keys.key)
        if "bias" in self.head.refs:
            bias_QK = math.sqrt(self.head.config.width) * self.head.bias(self.queries, self.keys)
            scores += bias_QK if self.queries_first else bias_QK.T
        return jnp.where(self.visible(), scores, MASKED_SCORE)

    def visible(self) -> Array:
        """Return whether each query sees each key, in the shape of the tile."""
        visible = self.of_queries(self.queries.segments) == self.of_keys(self.keys.segments)
        band = self.head.config.band
        return visible if band.is_everything else visible & band.contains(*self.positions)

    def target(self) -> Array:
        """Return the guidance target P for the tile's queries and keys, in the shape of the tile."""
        column, key = self.of_queries(self.queries.columns), self.of_keys(self.keys.position)
        target = interface.target(column, self.of_keys(self.keys.weights), key)
        # The squared distance multiplies it by H, which is 0 where a query does not see the key.
        return jnp.where(self.visible(), target, 0.0) if self.head.config.is_cross_entropy else target

    def keep(self) -> Array:
        """Return the tile's dropout mask: booleans that are true where dropout keeps an attention weight."""
        head = self.head
        return head.config.keep(head.scalars, head.example, head.head, *self.positions)

    def gradient(self) -> tuple[Array, Array]:
        """Return ((1 - rate) times the scores' gradient dS, attention weights H with dropped elements set to 0).

        `rate` is that of dropout. The rows of delta and of the statistics' gradients come multiplied by 1 - rate.
        """
        H = dropped = exponential(self.head.config, self.scores(), self.of_queries(self.queries.log_sums))
        dH = self._products(self.queries.g_output, self.keys.value)
        if self.head.config.rate:
            keep = self.keep()
            dH, dropped = jnp.where(keep, dH, 0.0), jnp.where(keep, H, 0.0)
        if self.queries.g_squares is not None:
            dH += self.of_queries(2.0 * self.queries.g_squares) * H
            dH += self.of_queries(self.queries.g_overlap) * self.target()
        dS = H * (dH - self.of_queries(self.queries.delta))
        if self.queries.g_score_sums is not None:
            dS += self.of_queries(self.queries.g_score_sums) * self.target()
        return dS, dropped

    def _products(self, of_queries: Array, of_keys: Array) -> Array:
        """Return the dot product of each query's vector with each key's vector: `QK` if `queries_first`, else `KQ`."""
        return product(of_queries, of_keys, 1, 1) if self.queries_first else product(of_keys, of_queries, 1, 1)

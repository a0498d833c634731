"""Tiles of attention as the GPU kernels (Triton) work on them.

A program holds some rows of one side, queries or keys, and streams the other side past them. The rows that it holds are
the first axis of its tiles, so that a tile can go into the next product from the registers that it was made in: `QK` where
queries are held, `KQ` where keys are. Between its products a kernel is bound by the instructions an element takes: what can
be done once a row is done there, and the exponential (`Kind.exponential`) takes scores as the product leaves them.

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from ag_jax.attention.kernels import interface
from ag_jax.attention.kernels.interface import MASKED_SCORE, Shape

Array = jax.Array
Ref = Any

_SMALLEST = 16  # rows and columns that a matrix product needs at least


def power_of_two(size: int) -> int:
    """The smallest that holds `size` and suits a matrix product: Triton knows no other sizes."""
    return max(_SMALLEST, pl.next_power_of_2(size))


def product(left: Array, right: Array, left_axis: int, right_axis: int) -> Array:
    """A matrix product in float32 that sums over one axis of each tile; of float32, in JAX's own matmul precision."""
    dimensions = (((left_axis,), (right_axis,)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _inside(first: Array, size: int, length: int) -> Array | None:
    """Which of `size` positions from `first` on exist; None if no block of that size reaches beyond the end."""
    return first + jnp.arange(size) < length if length % size else None


def _crossed(rows: Array | None, columns: Array | None) -> Array | None:
    """The mask of a matrix from those of its rows and its columns."""
    if rows is None:
        return None if columns is None else columns[None, :]
    return rows[:, None] if columns is None else rows[:, None] & columns[None, :]


def _load(place: Ref, mask: Array | None, other: float) -> Array:
    """What lies at a place, or `other` where nothing does."""
    return triton.load(place) if mask is None else triton.load(place, mask=mask, other=other)


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries of a head from `first` on, and what the kernel has of them; what follows `query` is there for gradients."""

    first: Array
    sequences: Array
    query: Array
    g_output: Array | None = None
    log_sums: Array | None = None
    delta: Array | None = None
    g_squares: Array | None = None
    g_overlap: Array | None = None

    @property
    def position(self) -> Array:
        """Their numbers in the row."""
        return self.first + jnp.arange(self.query.shape[0])


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys of a head from `first` on, and their values; `weights` are those of their columns, if there is a target."""

    first: Array
    sequences: Array
    key: Array
    value: Array
    weights: Array | None = None

    @property
    def position(self) -> Array:
        """Their numbers in the row."""
        return self.first + jnp.arange(self.key.shape[0])


@dataclasses.dataclass(frozen=True)
class Kind:
    """What all heads of a call have in common; `interpret` runs kernels as plain JAX, for tests on a CPU."""

    shape: Shape
    interpret: bool

    @property
    def scale(self) -> float:
        """From units of Q K^T to powers of 2: log2(e) / sqrt(d)."""
        return math.log2(math.e) / math.sqrt(self.shape.width)

    @property
    def restored(self) -> float:
        """What dropout multiplies by where it keeps something: 1 / (1 - rate)."""
        return 1.0 / (1.0 - self.shape.rate)

    def exponential(self, scores: Array, powers: Array) -> Array:
        """2^(scale scores - powers) = exp(Q K^T / sqrt(d)) 2^-powers; exactly zero below about 2^-126.

        A product-sum and the hardware's own power of 2. `jnp.exp2` compiles to more, for the sake of those small results.
        """
        if self.interpret:
            return jnp.exp2(self.scale * scores - powers)
        (result,) = triton.elementwise_inline_asm(
            "{ .reg .f32 x; fma.rn.f32 x, $1, $2, $3; ex2.approx.ftz.f32 $0, x; }",
            args=[scores, jnp.full_like(scores, self.scale), jnp.broadcast_to(-powers, scores.shape)],
            constraints="=f,f,f,f",
            pack=1,
            result_shape_dtypes=[jax.ShapeDtypeStruct(scores.shape, jnp.float32)],
        )
        return result


class Head:
    """One head of one example, which loads and stores its rows within the bounds of its length and its width.

    Rows of a head are loaded as wide as the next power of two, filled up with 0. refs: references to whole arrays, named as
    in `gpu_grid.LETTERS`.
    """

    def __init__(self, kind: Kind, refs: dict[str, Ref], example: Array, head: Array):
        self.kind, self.refs, self.example, self.head = kind, refs, example, head
        self.shape, self.width = kind.shape, kind.shape.width
        self.shift = refs["shifts"][head] if kind.shape.guided else None
        self.numbers = [refs["numbers"][index] for index in range(4)] if kind.shape.rate else None

    def queries(self, first: Array, size: int) -> Queries:
        """The queries from `first` on."""
        rows = [name for name in ("query", "g_output") if name in self.refs]
        vectors = [name for name in ("log_sums", "delta", "g_squares", "g_overlap") if name in self.refs]
        loaded = {name: _load(*self._rows(self.refs[name], first, size), 0.0) for name in rows}
        loaded |= {name: _load(*self._vector(self.refs[name], first, size), 0.0) for name in vectors}
        return Queries(first, self._sequences(first, size), **loaded)

    def keys(self, first: Array, size: int) -> Keys:
        """The keys from `first` on."""
        rows = (_load(*self._rows(self.refs[name], first, size), 0.0) for name in ("key", "value"))
        weights = _load(*self._vector(self.refs["weights"], first, size), 0.0) if self.shape.guided else None
        return Keys(first, self._sequences(first, size), *rows, weights)

    def bias(self, queries: Queries, keys: Keys) -> Array:
        """The bias where queries and keys meet, `QK`."""
        sides = ((side.first, side.sequences.shape[0]) for side in (queries, keys))
        return _load(*self._matrix(self.refs["bias"], *sides), 0.0).astype(jnp.float32)

    def store_rows(self, ref: Ref, first: Array, rows: Array) -> None:
        """Write rows of a result that lies like `query`."""
        place, mask = self._rows(ref, first, rows.shape[0])
        triton.store(place, rows.astype(ref.dtype), mask=mask)

    def store_vector(self, ref: Ref, first: Array, vector: Array) -> None:
        """Write a part of a result that lies like `log_sums`."""
        place, mask = self._vector(ref, first, vector.shape[0])
        triton.store(place, vector, mask=mask)

    def store_matrix(self, ref: Ref, first_query: Array, first_key: Array, matrix_QK: Array) -> None:
        """Write a part of a result that lies like `bias`."""
        place, mask = self._matrix(ref, *zip((first_query, first_key), matrix_QK.shape, strict=False))
        triton.store(place, matrix_QK, mask=mask)

    def _rows(self, ref: Ref, first: Array, size: int) -> tuple[Ref, Array | None]:
        columns = power_of_two(self.width)
        mask = _crossed(_inside(first, size, self.shape.length), _inside(0, columns, self.width))
        return ref.at[self.example, pl.ds(first, size), self.head, pl.ds(0, columns)], mask

    def _vector(self, ref: Ref, first: Array, size: int) -> tuple[Ref, Array | None]:
        return ref.at[self.example, self.head, pl.ds(first, size)], _inside(first, size, self.shape.length)

    def _sequences(self, first: Array, size: int) -> Array:
        """Beyond the end is a sequence of its own."""
        place = self.refs["sequences"].at[self.example, pl.ds(first, size)]
        return _load(place, _inside(first, size, self.shape.length), -1)

    def _matrix(self, ref: Ref, queries: tuple[Array, int], keys: tuple[Array, int]) -> tuple[Ref, Array | None]:
        """Sides are their first position and their size."""
        mask = _crossed(*(_inside(*side, self.shape.length) for side in (queries, keys)))
        # An axis that all examples or all heads share has the size 1.
        example, head = (
            jnp.minimum(at, size - 1) for at, size in zip((self.example, self.head), ref.shape, strict=False)
        )
        return ref.at[example, head, pl.ds(*queries), pl.ds(*keys)], mask


class Tile:
    """Where some queries and some keys of a head meet, with the queries on axis 0 (`QK`) or on axis 1 (`KQ`)."""

    def __init__(self, head: Head, queries: Queries, keys: Keys, queries_first: bool):
        self.head, self.queries, self.keys, self.queries_first = head, queries, keys, queries_first

    def of_queries(self, vector: Array) -> Array:
        """A number for each query, along the tile's axis of queries."""
        return vector[:, None] if self.queries_first else vector[None, :]

    def of_keys(self, vector: Array) -> Array:
        """A number for each key, along the tile's axis of keys."""
        return vector[None, :] if self.queries_first else vector[:, None]

    def scores(self) -> Array:
        """Q K^T + sqrt(d) bias where query and key belong together, float32: what `Kind.exponential` takes."""
        scores = self._meet(self.queries.query, self.keys.key)
        if "bias" in self.head.refs:
            bias_QK = math.sqrt(self.head.width) * self.head.bias(self.queries, self.keys)
            scores += bias_QK if self.queries_first else bias_QK.T
        together = self.of_queries(self.queries.sequences) == self.of_keys(self.keys.sequences)
        return jnp.where(together, scores, MASKED_SCORE)

    def target(self) -> Array:
        """P."""
        # To move the queries by the shift, a row at a time, saves a subtraction for every element.
        moved = self.of_queries(self.queries.position + self.head.shift)
        return interface.target(0, self.of_keys(self.keys.weights), moved, self.of_keys(self.keys.position))

    def keep(self) -> Array:
        """Booleans: what dropout keeps."""
        head = self.head
        position = self.of_queries(self.queries.position), self.of_keys(self.keys.position)
        return head.shape.keep(head.numbers, head.example, head.head, *position)

    def gradient(self) -> tuple[Array, Array]:
        """(1 - rate) dS, and what dropout leaves of H, from rows of delta and of the statistics' gradients times 1 - rate."""
        H = thinned = self.head.kind.exponential(self.scores(), self.of_queries(self.queries.log_sums))
        dH = self._meet(self.queries.g_output, self.keys.value)
        if self.head.shape.rate:
            keep = self.keep()
            dH, thinned = jnp.where(keep, dH, 0.0), jnp.where(keep, H, 0.0)
        if self.head.shape.guided:
            dH += self.of_queries(2.0 * self.queries.g_squares) * H
            dH += self.of_queries(self.queries.g_overlap) * self.target()
        return H * (dH - self.of_queries(self.queries.delta)), thinned

    def _meet(self, of_queries: Array, of_keys: Array) -> Array:
        return product(of_queries, of_keys, 1, 1) if self.queries_first else product(of_keys, of_queries, 1, 1)

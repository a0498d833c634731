"""What every implementation of attention takes and gives, and what the kernels among them share.

    H = softmax(Q K^T / sqrt(d) + bias) where key and query belong to the same sequence, else 0
    O = (H * M) V, with M = 1 / (1 - rate) for what dropout keeps, 0 for the rest
    sum_of_squares[p] = sum_k H[p, k]^2,  overlap[p] = sum_k H[p, k] P[p, k]

A kernel knows a guidance target P as one shift and one row of column weights for each head,

    P[p, k] = (1 if k - p == shift_H) + weights_BHK[k],

so that a target costs memory of length L and never of L x L. The gradient (reference section 13.1), with M as above, is

    dH = M * (dO V^T) + 2 g_ss H + g_ov P,   dS = H * (dH - rowsum(dH * H)),
    dQ = dS K / sqrt(d),   dK = dS^T Q / sqrt(d),   dV = (H * M)^T dO,   dbias = dS.

Shape letters: B batch, L length, Q query position, K key position, H head, V width of a head, N = H * V all heads' width.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp

from ag_jax.attention import dropout, patterns, sequences
from ag_jax.attention.guidance import AttentionStatistics, Guides
from ag_jax.attention.patterns import Columns

Array = jax.Array
Mixed = tuple[Array, AttentionStatistics | None]

# Score of a key that must not be seen. Finite, so that differences of masked scores are numbers; a power of 2, so that times a
# scale it is exact, and a fused product-sum that takes away the rounded product leaves 0.
MASKED_SCORE = -(2.0**99)
# What attention hands to its backward pass has this name for `jax.checkpoint` policies.
KEPT = "attention"
# Shift of a head that follows none: no key is so far from its query.
NO_SHIFT = 1 << 30


class Attend(Protocol):
    """An implementation of attention.

    query_BLHV, key_BLHV, value_BLHV: in the precision of the computation; scores and softmax are float32.
    sequences_BL: int32; positions see each other if they have the same number. Padding has 0, and sees only itself.
    bias: None, or `(B or 1, H or 1, Q or 1, K)`, added to the scores; differentiated.
    guides: patterns of the first heads, whose statistics are then the second result; without, that is None.
    rate, key: of dropout on H; rate 0 needs no key. What is dropped depends on key and element alone, so all
    implementations drop the same.
    """

    def __call__(
        self,
        query_BLHV: Array,
        key_BLHV: Array,
        value_BLHV: Array,
        sequences_BL: Array,
        *,
        bias: Array | None = None,
        guides: Guides | None = None,
        rate: float = 0.0,
        key: Array | None = None,
    ) -> Mixed: ...


class Kernel(Protocol):
    """What an implementation writes for one device; `choice.Fused` makes an `Attend` of it.

    Arrays are as an `Attend` has them, but with the heads side by side, `BLN`; `bias` is `(B or 1, H or 1, Q, K)`;
    `shifts_H` and `weights_BHK` are P (None unless `shape.guided`); `numbers` are those of `Shape.keep`. Returns the output
    `BLN`, and if guided the two sums `BHQ` of all heads in float32. Differentiable in query, key, value and bias alone.
    """

    def __call__(
        self,
        shape: "Shape",
        query_BLN: Array,
        key_BLN: Array,
        value_BLN: Array,
        sequences_BL: Array,
        bias: Array | None,
        shifts_H: Array | None,
        weights_BHK: Array | None,
        numbers: Array,
    ) -> tuple[Array, Array | None, Array | None]: ...


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for, besides the shapes of its arrays.

    heads: of this device, of `all_heads` of the layer; width: of a head; length: of the rows; both before a kernel pads
    them. rate: of dropout; guided: whether statistics are wanted.
    """

    heads: int
    all_heads: int
    width: int
    length: int
    rate: float
    guided: bool

    def keep(self, numbers: Array, example: Array, head: Array, query: Array, key: Array) -> Array:
        """Booleans: what dropout keeps at rows `query` and columns `key`, which broadcast; numbers within this device.

        `numbers` are int32: the two seeds' bits, the number of this device's first example and of its first head.
        """
        # Signed and unsigned integers multiply and add to the same bits.
        row = ((example + numbers[2]) * self.all_heads + head + numbers[3]) * self.length
        index = (row + query) * self.length + key
        seeds = (numbers[0].astype(jnp.uint32), numbers[1].astype(jnp.uint32))
        return dropout.keep(seeds, index.astype(jnp.uint32), self.rate)


def target(shift: Array, weights: Array, query: Array, key: Array) -> Array:
    """P of one head at rows `query` and columns `key`; `weights` are those of the columns, shaped as `key`."""
    return jnp.where(key - query == shift, 1.0, weights)


def sparse_targets(guides: Guides, batch: int, length: int, heads: int) -> tuple[Array, Array]:
    """`shifts_H` int32 and `weights_BHK` float32 of all heads of a layer; those that nothing guides have P = 0."""
    shifts, weights = [], []
    for of_heads, count in zip(guides.targets, guides.counts, strict=True):
        is_columns = isinstance(of_heads, Columns)
        weights_BK = of_heads.weights_BK if is_columns else jnp.zeros((batch, length), jnp.float32)
        shifts += [NO_SHIFT if is_columns else of_heads.offset] * count
        weights += [weights_BK] * count
    free = heads - sum(guides.counts)
    shifts_H = jnp.asarray(shifts + [NO_SHIFT] * free, jnp.int32)
    return shifts_H, jnp.pad(jnp.stack(weights, axis=1), [(0, 0), (0, free), (0, 0)])


def guided_statistics(
    sum_of_squares_BHQ: Array, overlap_BHQ: Array, guides: Guides, sequences_BL: Array
) -> AttentionStatistics:
    """A kernel's sums over all heads as the statistics of the guided ones.

    A boundary row of a `Shift` overlaps with the uniform distribution over its text's n tokens by sum(H)/n = 1/n, a constant.
    """
    tokens_B1Q = jnp.maximum(sequences.sizes(sequences_BL), 1).astype(jnp.float32)[:, None, :]
    overlaps, head = [], 0
    for of_heads, count in zip(guides.targets, guides.counts, strict=True):
        overlap = overlap_BHQ[:, head : head + count]
        if not isinstance(of_heads, Columns):
            overlap = jnp.where(patterns.hits(of_heads, sequences_BL)[:, None, :], overlap, 1.0 / tokens_B1Q)
        overlaps.append(overlap)
        head += count
    return AttentionStatistics(sum_of_squares_BHQ[:, :head], jnp.concatenate(overlaps, axis=1))

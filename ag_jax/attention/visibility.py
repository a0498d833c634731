"""Which keys a query sees: those of its own segment that lie inside a band around its position.

Queries and keys may be the same tokens (self-attention) or two texts of different lengths (cross-attention). Segment
ids are those of `attention.segments`. Padding has id 0 on both sides, so queries of padding see only padding.

Shape letters: B batch, L length, Q query position, K key position, H blocks that are held, S blocks that are streamed.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments


class Band(NamedTuple):
    """Query q sees key k only if q - left <= k <= q + right; None sets no limit. Both positions count from 0.

    left, right: None or at least 0.
    """

    left: int | None = None
    right: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether the band hides nothing."""
        return self.left is None and self.right is None

    @property
    def reversed(self) -> "Band":
        """The band of queries that a key is seen by: key k is seen by query q if k - right <= q <= k + left."""
        return Band(self.right, self.left)

    def contains(self, query: Array, key: Array) -> Array | bool:
        """Whether `key` positions lie in the band of `query` positions; the two broadcast."""
        inside = True
        if self.left is not None:
            inside = key >= query - self.left
        if self.right is not None:
            inside &= key <= query + self.right
        return inside

    def meets(self, first_query: Array, queries: int, first_key: Array, keys: int) -> Array | bool:
        """Whether a block of queries sees any key of a block of keys; first positions broadcast."""
        meet = True
        if self.left is not None:
            meet = first_key + (keys - 1) >= first_query - self.left
        if self.right is not None:
            meet &= first_key <= first_query + (queries - 1 + self.right)
        return meet

    def block_range(
        self, held: Array, held_size: int, streamed_size: int, streamed_blocks: int
    ) -> tuple[Array | int, Array | int]:
        """First and last block of keys, of `streamed_blocks`, that queries of the block `held` may see.

        Where the band leaves none, both are the block that is nearest to it.
        """
        first, last = 0, streamed_blocks - 1
        if self.right is not None:
            last = jnp.minimum(jax.lax.div(held * held_size + (held_size - 1 + self.right), streamed_size), last)
        if self.left is not None:
            first = jnp.minimum(jax.lax.div(jnp.maximum(held * held_size - self.left, 0), streamed_size), last)
        return first, last

    def most_blocks(self, held_size: int, streamed_size: int, streamed_blocks: int) -> int:
        """Upper bound of the number of blocks of keys that a block of queries sees, of `streamed_blocks`."""
        if self.left is None or self.right is None:
            return streamed_blocks
        # n positions in a row touch at most this many blocks, wherever they begin.
        positions = held_size + self.left + self.right
        return min(streamed_blocks, 1 + -(-(positions - 1) // streamed_size))


EVERYTHING = Band()


def band_of(causal: bool, window: int | None) -> Band:
    """Band of causal attention, of a window (abs(q - k) <= window // 2), of both, or of neither."""
    if window is not None and window < 0:
        raise ValueError(f"the window of attention must be none or at least 0, got {window}")
    side = None if window is None else window // 2
    return Band(side, 0 if causal else side)


def visible_mask(query_segments_BQ: Array, key_segments_BK: Array, band: Band = EVERYTHING) -> Array:
    """Booleans `BQK`: whether a query sees a key."""
    visible_BQK = query_segments_BQ[:, :, None] == key_segments_BK[:, None, :]
    if band.is_everything:
        return visible_BQK
    query_Q1, key_1K = jnp.arange(visible_BQK.shape[1])[:, None], jnp.arange(visible_BQK.shape[2])[None, :]
    return visible_BQK & band.contains(query_Q1, key_1K)[None]


def visible_tokens(query_segments_BQ: Array, key_segments_BK: Array, band: Band = EVERYTHING) -> Array:
    """Number of keys that a query sees, `BQ` int32. All padding counts as one token."""
    if query_segments_BQ is key_segments_BK and band.is_everything:
        return jnp.maximum(segments.sizes(key_segments_BK), 1)
    # Not as differences of running sums, because segments may come in any order. XLA for TPUs makes no array of the
    # pairs.
    count_BQ = visible_mask(query_segments_BQ, key_segments_BK, band).sum(-1, dtype=jnp.int32)
    return jnp.where(query_segments_BQ > 0, count_BQ, jnp.minimum(count_BQ, 1))


def visible_targets(weights_BK: Array, query_segments_BQ: Array, key_segments_BK: Array, band: Band) -> Array:
    """Number of keys with a positive weight that a query sees, `BQ` int32."""
    visible_BQK = visible_mask(query_segments_BQ, key_segments_BK, band)
    return (visible_BQK & (weights_BK > 0)[:, None, :]).sum(-1, dtype=jnp.int32)

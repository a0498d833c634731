"""Which keys a query sees: the keys of the query's segment that lie inside a band around the query's position.

Queries and keys may be the same tokens (self-attention) or two texts of different lengths (cross-attention). Segment
ids are those of `attention.segments`. Padding has id 0 on both sides, so queries of padding see only padding.

The TPU kernels work on blocks of positions: they hold a block of queries in fast memory and stream the blocks of keys
past it. Where they hold keys and stream queries, they use `Band.reversed`.

Shape letters: B batch, Q query position, K key position.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.attention import segments


class Band(NamedTuple):
    """Band of visible keys: query q sees key k only if q - left <= k <= q + right, both counted from 0.

    left, right: at least 0; None sets no limit.
    """

    left: int | None = None
    right: int | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every query sees every key."""
        return self.left is None and self.right is None

    @property
    def reversed(self) -> "Band":
        """Band of the queries q that see a key k, around the key's position: k - right <= q <= k + left."""
        return Band(self.right, self.left)

    def contains(self, query: Array | np.ndarray | int, key: Array | np.ndarray | int) -> Any:
        """Return whether the positions `key` lie in the band around the positions `query`; the two arrays broadcast."""
        inside: Any = True
        if self.left is not None:
            inside = key >= query - self.left
        if self.right is not None:
            inside &= key <= query + self.right
        return inside

    def meets(self, first_query: Array | int, queries: int, first_key: Array | int, keys: int) -> Any:
        """Return whether any query of a block of queries may see any key of a block of keys.

        Each block is given by its first position and its size.

        Arrays of first positions broadcast.
        """
        meet: Any = True
        if self.left is not None:
            meet = first_key + (keys - 1) >= first_query - self.left
        if self.right is not None:
            meet &= first_key <= first_query + (queries - 1 + self.right)
        return meet

    def block_range(
        self, query_block: Array, queries_per_block: int, keys_per_block: int, key_blocks: int
    ) -> tuple[Array | int, Array | int]:
        """Return the indices of the first and the last block of keys that a block of queries may see.

        If the band leaves no block of keys, both are the block that is nearest to the band.

        query_block: index of the block of queries.
        queries_per_block: number of queries in each block of queries.
        keys_per_block: number of keys in each block of keys.
        key_blocks: number of blocks of keys.
        """
        first: Array | int = 0
        last: Array | int = key_blocks - 1
        if self.right is not None:
            last_key = query_block * queries_per_block + (queries_per_block - 1 + self.right)
            last = jnp.minimum(jax.lax.div(last_key, keys_per_block), last)
        if self.left is not None:
            first_key = jnp.maximum(query_block * queries_per_block - self.left, 0)
            first = jnp.minimum(jax.lax.div(first_key, keys_per_block), last)
        return first, last

    def most_blocks(self, queries_per_block: int, keys_per_block: int, key_blocks: int) -> int:
        """Return an upper bound of the number of blocks of keys that any block of queries may see.

        queries_per_block: number of queries in each block of queries.
        keys_per_block: number of keys in each block of keys.
        key_blocks: number of blocks of keys.
        """
        if self.left is None or self.right is None:
            return key_blocks
        # n positions in a row touch at most this many blocks, wherever they begin.
        positions = queries_per_block + self.left + self.right
        return min(key_blocks, 1 + -(-(positions - 1) // keys_per_block))


EVERYTHING = Band()


def band_of(causal: bool, window: int | None) -> Band:
    """Return the band of causal attention, of a window (abs(q - k) <= window // 2), of both, or of neither."""
    side = None if window is None else window // 2
    return Band(side, 0 if causal else side)


def visible_mask(query_segments_BQ: Array, key_segments_BK: Array, band: Band = EVERYTHING) -> Array:
    """Return booleans `BQK` (batch, query, key): whether a query sees a key in its segment and in the band."""
    visible_BQK = query_segments_BQ[:, :, None] == key_segments_BK[:, None, :]
    if band.is_everything:
        return visible_BQK
    query_Q1, key_1K = jnp.arange(visible_BQK.shape[1])[:, None], jnp.arange(visible_BQK.shape[2])[None, :]
    return visible_BQK & band.contains(query_Q1, key_1K)[None]


def visible_in_text(query_segments_BQ: Array, key_segments_BK: Array, band: Band = EVERYTHING) -> Array:
    """Return booleans `BQK`: whether a query, unless it is on padding, sees a key in its segment and in the band."""
    return visible_mask(query_segments_BQ, key_segments_BK, band) & (query_segments_BQ > 0)[:, :, None]


def visible_tokens(query_segments_BQ: Array, key_segments_BK: Array, band: Band = EVERYTHING) -> Array:
    """Return, as int32 `BQ` (batch, query), the number of keys that each query sees.

    A query on padding sees only keys on padding; they count as 1 key, or 0 if there are none.
    """
    if query_segments_BQ is key_segments_BK and band.is_everything:
        return jnp.maximum(segments.sizes(key_segments_BK), 1)
    # Not as differences of running sums, because segments may come in any order. XLA for TPUs makes no array of the
    # pairs.
    count_BQ = visible_mask(query_segments_BQ, key_segments_BK, band).sum(-1, dtype=jnp.int32)
    return jnp.where(query_segments_BQ > 0, count_BQ, jnp.minimum(count_BQ, 1))


def visible_targets(weights_BK: Array, query_segments_BQ: Array, key_segments_BK: Array, band: Band) -> Array:
    """Return, as int32 `BQ` (batch, query), how many keys with a positive weight in `weights_BK` each query sees."""
    visible_BQK = visible_mask(query_segments_BQ, key_segments_BK, band)
    return (visible_BQK & (weights_BK > 0)[:, None, :]).sum(-1, dtype=jnp.int32)

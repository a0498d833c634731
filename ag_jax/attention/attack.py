"""Attacks on attention, and the masks that they add to a layer's scores.

An attack keeps (m = 1) or masks (m = 0) units of a layer's attention, a unit being a pair of a query and a key that
the query may attend to:

    attention = softmax(Q K^T / sqrt(W) - (1 - m) C)

Shape letters: B batch, L length, Q query position, K key position, H head (1 where all share a mask), D width.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import flax.struct
import jax.numpy as jnp
from jax import Array


@flax.struct.dataclass
class MaskCounts:
    """How many query-key pairs an attack kept, and how many there are, for each example.

    kept_B: number of pairs kept; the mean over heads that have separate masks.
    all_B: number of all pairs.
    """

    kept_B: Array
    all_B: Array


@flax.struct.dataclass
class AttentionMask:
    """The additive mask that an attack makes for one layer's attention; H is 1 if all heads share the mask.

    bias_BHQK: added to the scores.
    counts: the numbers of kept and of all units.
    zeroed_BHQ: queries whose scores are set to 0 before the bias is added, so that they attend evenly; None for none.
    """

    bias_BHQK: Array
    counts: MaskCounts
    zeroed_BHQ: Array | None = None


class Attack(Protocol):
    """An attack on the attention of every layer: a pytree whose leaves have a leading axis over the layers.

    Each layer calls the attack with its own slice of the leaves.

    hidden_BLD: input of the layer.
    visible_BQK: whether the query may attend to the key, without the attack; no key for queries on padding.
    probabilities: computes the layer's attention probabilities without the attack, a mean over heads, `BQK`.
    key: random key of the layer; None without dropout.
    """

    def __call__(
        self, hidden_BLD: Array, visible_BQK: Array, probabilities: Callable[[], Array], key: Array | None, /
    ) -> AttentionMask: ...


@dataclasses.dataclass(frozen=True)
class MaskPolicy:
    """How an attack's masks are applied: by subtracting a number from the scores of masked query-key pairs.

    strength: C, the number that is subtracted from the score of a masked unit.
    """

    strength: float = 1e4

    def mask(self, keep_BHQK: Array, visible_BQK: Array) -> AttentionMask:
        """Return the additive mask -(1 - m) C, where m = `keep_BHQK` is 1 (keep) or 0 (mask), and C = `strength`.

        A query whose keys are all masked attends to all keys that it sees evenly. Only visible pairs are counted,
        because masking the others changes nothing.

        visible_BQK: as in `Attack`.
        """
        visible_BHQK = visible_BQK[:, None]
        empty_BHQ = ~((keep_BHQK > 0) & visible_BHQK).any(-1) & visible_BHQK.any(-1)
        kept_B = jnp.where(visible_BHQK, keep_BHQK, 0.0).sum((2, 3)).mean(1)
        counts = MaskCounts(kept_B, visible_BHQK.sum((1, 2, 3)).astype(jnp.float32))
        return AttentionMask((1.0 - keep_BHQK) * -self.strength, counts, empty_BHQ)

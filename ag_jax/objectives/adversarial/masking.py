"""Non-learned attention masks in place of an adversary's: random, scheduled, or of the largest attention weights.

Wu et al. 2022, section 5.1, with the first two terms of equation 9. Every layer has masks of its own, shared by its
heads.

Shape letters: N layers, B batch, Q query position, K key position.
"""

import dataclasses
from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import dropout, segments
from ag_jax.attention.attack import Attack, AttentionMask, MaskPolicy
from ag_jax.models.encoder import Batch, Params
from ag_jax.objectives.adversarial.config import FixedMaskConfig
from ag_jax.objectives.adversarial.self_attention import AttackedAttention
from ag_jax.objectives.base import Objective


@dataclasses.dataclass(frozen=True)
class Trace:
    """The shares that a run with an adversary masked, over training.

    progress: parts of the run, ascending and at most 1.
    shares: the share of every layer after each of these parts.
    """

    progress: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]

    def at(self, progress: Array) -> Array:
        """The shares `N` after a part of the run: interpolated, or the nearest recorded ones beyond the range."""
        shares_TN = jnp.asarray(self.shares, jnp.float32)
        known_T = jnp.asarray(self.progress, jnp.float32)
        return jax.vmap(lambda share_T: jnp.interp(progress, known_T, share_T), in_axes=1)(shares_TN)


@flax.struct.dataclass
class RandomMasks:
    """Masks every unit of layer n with probability `share_N[n]`."""

    share_N: Array
    policy: MaskPolicy = flax.struct.field(pytree_node=False)

    def __call__(
        self, hidden_BLD: Array, sequences_BL: Array, scores: Callable[[], Array], key: Array | None
    ) -> AttentionMask:
        """The masks of one layer. Raises ValueError without a key."""
        if key is None:
            raise ValueError("random masks need a random key: give the pass rngs, as a training step does")
        batch, length = sequences_BL.shape
        uniform_B1QK = dropout.uniform(key, (batch, 1, length, length))
        return self.policy.mask((uniform_B1QK >= self.share_N).astype(jnp.float32), sequences_BL)


@flax.struct.dataclass
class LargestMasks:
    """Masks the units of every row in which attention, averaged over the heads, is largest.

    share_N: the masked share of a row, rounded to whole units, of each layer.
    """

    share_N: Array
    policy: MaskPolicy = flax.struct.field(pytree_node=False)

    def __call__(
        self, hidden_BLD: Array, sequences_BL: Array, scores: Callable[[], Array], key: Array | None
    ) -> AttentionMask:
        """The masks of one layer."""
        weights_BQK = jax.lax.stop_gradient(scores())
        ranked_BQK = jnp.where(segments.same_segment_mask(sequences_BL), -weights_BQK, 1.0)
        rank_BQK = jnp.argsort(jnp.argsort(ranked_BQK, axis=-1), axis=-1)
        number_BQ = jnp.floor(self.share_N * segments.sizes(sequences_BL) + 0.5)
        keep_BQK = (rank_BQK >= number_BQ[:, :, None]).astype(jnp.float32)
        return self.policy.mask(keep_BQK[:, None], sequences_BL)


@dataclasses.dataclass(frozen=True)
class NaiveMasks:
    """Non-learned masks of a `method` (`bernoulli`, `scheduled` or `magnitude`) in a run of `steps` steps."""

    method: str
    config: FixedMaskConfig
    layers: int
    steps: int
    trace: Trace | None

    def __call__(self, params: Params, encoder_batch: Batch, step: Array) -> Attack:
        """The attack at a step: one share for all layers, or with `scheduled` the trace's shares at this progress."""
        del params, encoder_batch
        policy = MaskPolicy(self.config.strength, self.config.empty_rows)
        share_N = jnp.full(self.layers, self.config.share, jnp.float32)
        if self.method == "magnitude":
            return LargestMasks(share_N, policy)
        if self.method == "scheduled":
            share_N = self.trace.at(step / self.steps)
        return RandomMasks(share_N, policy)


def naive_masking(
    inner: Objective, method: str, config: FixedMaskConfig, layers: int, steps: int, trace: Trace | None
) -> AttackedAttention:
    """The objective under non-learned masks."""
    return AttackedAttention(
        inner=inner,
        attacker=NaiveMasks(method, config, layers, steps, trace),
        divergence=config.divergence,
        term="masking",
        shared_dropout=config.dropout == "shared",
    )

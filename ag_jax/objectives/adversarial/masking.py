"""Non-learned attention masks as baselines for an adversary: random, scheduled, or on the largest attention weights.

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

from ag_jax.attention import dropout
from ag_jax.attention.attack import Attack, AttentionMask, MaskPolicy
from ag_jax.models.encoder import Batch, Params
from ag_jax.objectives.adversarial.config import FixedMaskConfig
from ag_jax.objectives.adversarial.self_attention import AttackedAttention
from ag_jax.objectives.base import Objective


@dataclasses.dataclass(frozen=True)
class Trace:
    """Share of units (query-key pairs) that the adversary of an earlier run masked, over training.

    progress: fractions of the run's steps, ascending and at most 1.
    shares: the masked share of every layer after each of these fractions.
    """

    progress: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]

    def shares_at(self, progress: Array) -> Array:
        """Return the share of units that each layer masks after the fraction `progress` of a run's steps, shape `N`.

        The share is interpolated; outside of the recorded range, the nearest recorded share is returned.
        """
        shares_TN = jnp.asarray(self.shares, jnp.float32)
        progress_T = jnp.asarray(self.progress, jnp.float32)
        return jax.vmap(lambda share_T: jnp.interp(progress, progress_T, share_T), in_axes=1)(shares_TN)


@flax.struct.dataclass
class RandomMasks:
    """Attack that masks each unit (query-key pair) of layer n with probability `share_N[n]`."""

    share_N: Array
    policy: MaskPolicy = flax.struct.field(pytree_node=False)

    def __call__(
        self, hidden_BLD: Array, visible_BQK: Array, probabilities: Callable[[], Array], key: Array | None
    ) -> AttentionMask:
        """Return random masks for one layer, drawn with `key`."""
        uniform_B1QK = dropout.uniform(key, visible_BQK[:, None].shape)
        return self.policy.mask((uniform_B1QK >= self.share_N).astype(jnp.float32), visible_BQK)


@flax.struct.dataclass
class LargestMasks:
    """Attack that masks, for each query, the keys with the largest attention weights, averaged over the heads.

    share_N: the share of the keys that a query sees, in its text and in the layer's window, that each layer masks,
        rounded to whole keys.
    """

    share_N: Array
    policy: MaskPolicy = flax.struct.field(pytree_node=False)

    def __call__(
        self, hidden_BLD: Array, visible_BQK: Array, probabilities: Callable[[], Array], key: Array | None
    ) -> AttentionMask:
        """Return the masks of one layer, computed from its attention weights `probabilities()`."""
        weights_BQK = jax.lax.stop_gradient(probabilities())
        # The argsort of an argsort is a rank: 0 for the key with the largest weight. Keys that a query does not see
        # come last, because their 1 is larger than every negated weight.
        ranked_BQK = jnp.where(visible_BQK, -weights_BQK, 1.0)
        rank_BQK = jnp.argsort(jnp.argsort(ranked_BQK, axis=-1), axis=-1)
        number_BQ = jnp.floor(self.share_N * visible_BQK.sum(-1) + 0.5)  # rounds halves up
        keep_BQK = (rank_BQK >= number_BQ[:, :, None]).astype(jnp.float32)
        return self.policy.mask(keep_BQK[:, None], visible_BQK)


@dataclasses.dataclass(frozen=True)
class NaiveMasks:
    """Attack on attention with masks that are not learnt: of random units, or of the most attended units.

    method: `bernoulli` masks a fixed share at random; `scheduled` masks, at random, the shares in `trace`, which an
        earlier run masked; `magnitude` masks the largest attention weights of each query.
    steps: number of steps of the run.
    """

    method: str
    config: FixedMaskConfig
    layers: int
    steps: int
    trace: Trace | None

    def __call__(self, params: Params, encoder_batch: Batch, step: Array) -> Attack:
        """Return the attack, a function that makes the masks of a layer, for a training step.

        All layers mask the same share, or with `scheduled` the shares of `trace` after this fraction of the run.
        """
        del params, encoder_batch
        policy = MaskPolicy(self.config.strength)
        share_N = jnp.full(self.layers, self.config.share, jnp.float32)
        if self.method == "magnitude":
            return LargestMasks(share_N, policy)
        if self.method == "scheduled":
            share_N = self.trace.shares_at(step / self.steps)
        return RandomMasks(share_N, policy)


def naive_masking(
    inner: Objective, method: str, config: FixedMaskConfig, layers: int, steps: int, trace: Trace | None
) -> AttackedAttention:
    """Return the objective `inner` under an attack by fixed masks, drawn by a rule that is not learnt.

    trace: see `NaiveMasks`.
    """
    return AttackedAttention(
        inner=inner,
        attacker=NaiveMasks(method, config, layers, steps, trace),
        divergence=config.divergence,
        term="masking",
        shared_dropout=config.dropout == "shared",
    )

"""Adversarial self-attention: a mask that is learnt from a layer's input, against what the layer attends to.

Wu et al. 2022, equations 5 to 9, as its released code has it. Each layer has an adversary of its own. From the layer's
input h, which is detached, it keeps (m = 1) or masks (m = 0) units of the attention, a unit being a pair of a row and a
column,

    s = (W_q h + b_q) (W_k h + b_k)^T / sqrt(width),   m = [s > 0],   attention = softmax(Q K^T / sqrt(d) - (1 - m) C),

and learns by gradient reversal: what makes the model lose more, and keeps more units, grows. The gradient of the
threshold is that of a sigmoid. Masks that nobody learns take the same way into attention.

Shape letters: B batch, L length, Q query position, K key position, H head (1 where all share a mask), W width of a
head, D width, N layers.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable
from typing import Any, Literal, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from ag_jax.attention import dropout, scores, segments

Array = jax.Array

# The adversary's parameters, at the top of the tree beside the model's, which know nothing of them.
ADVERSARY = "adversary"
EmptyRows = Literal["uniform", "keep_diagonal"]


def separated(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of the model, and those that an attack has beside them."""
    model = {name: tree for name, tree in params.items() if name != ADVERSARY}
    return model, {name: tree for name, tree in params.items() if name == ADVERSARY}


@jax.custom_vjp
def reverse_gradient(x: Array, scale: Array | float) -> Array:
    """x, whose gradient comes back times -scale (Ganin & Lempitsky 2015, equation 4); `scale` gets none."""
    del scale
    return x


def _forward(x: Array, scale: Array | float) -> tuple[Array, Array | float]:
    return x, scale


def _backward(scale: Array | float, gradient: Array) -> tuple[Array, None]:
    return (-scale * gradient).astype(gradient.dtype), None


reverse_gradient.defvjp(_forward, _backward)


def straight_through(scores: Array) -> Array:
    """1 where a score is above 0, else 0, exactly; with the gradient of sigmoid(score)."""
    soft = jax.nn.sigmoid(scores)
    return (scores > 0).astype(soft.dtype) + (soft - jax.lax.stop_gradient(soft))


@flax.struct.dataclass
class Units:
    """Of every example `B`: how many (row, column) units an attack kept, and how many there are, of one text each.

    A mean over heads, where they have masks of their own.
    """

    kept_B: Array
    all_B: Array


@flax.struct.dataclass
class Attacked:
    """What an attack does to a layer's attention.

    bias_BHQK: added to the scores; erased_BHQ: queries whose scores are 0 before it is added, or None. H may be 1.
    """

    bias_BHQK: Array
    units: Units
    erased_BHQ: Array | None = None


class Attack(Protocol):
    """An attack on the attention of every layer: a pytree of which every leaf has a leading axis over the layers.

    Each layer calls its own slice, `scores()` being the probabilities of its attention without attack, averaged over
    the heads, `BQK`; they are computed only if it is called. `key` is random and of the layer; None without dropout.
    """

    def __call__(
        self, hidden_BLD: Array, segments_BL: Array, scores: Callable[[], Array], key: Array | None
    ) -> Attacked: ...


@dataclasses.dataclass(frozen=True)
class Rules:
    """What masks have in common, whoever makes them.

    strength: C, taken from the score of a masked unit.
    empty_rows: a row of which everything is masked attends to all of its text evenly (`uniform`), or to itself
        (`keep_diagonal`).
    protect_diagonal: no token is kept from itself.
    """

    strength: float = 1e4
    empty_rows: str = "uniform"
    protect_diagonal: bool = False

    def attacked(self, keep_BHQK: Array, segments_BL: Array, special_BL: Array | None = None) -> Attacked:
        """Return the additive mask -(1 - m) C for m = `keep_BHQK`, 1 (keep) or 0, which may have a gradient.

        Pairs of tokens of two texts, or of padding, are not counted.

        special_BL: tokens whose rows and columns are kept.
        """
        length = segments_BL.shape[1]
        inside_BHQK = segments.same_segment_mask(segments_BL)[:, None]
        diagonal_BHQK = jnp.eye(length, dtype=bool)[None, None]
        if special_BL is not None:
            of_special_BQK = special_BL[:, :, None] | special_BL[:, None, :]
            keep_BHQK = jnp.where(of_special_BQK[:, None], 1.0, keep_BHQK)
        if self.protect_diagonal:
            keep_BHQK = jnp.where(diagonal_BHQK, 1.0, keep_BHQK)
        empty_BHQ = ~((keep_BHQK > 0) & inside_BHQK).any(-1) & (segments_BL > 0)[:, None]
        erased_BHQ = empty_BHQ
        if self.empty_rows == "keep_diagonal":
            keep_BHQK, erased_BHQ = jnp.where(empty_BHQ[..., None] & diagonal_BHQK, 1.0, keep_BHQK), None
        kept_B = jnp.where(inside_BHQK, keep_BHQK, 0.0).sum((2, 3)).mean(1)
        units = Units(kept_B, inside_BHQK.sum((1, 2, 3)).astype(jnp.float32))
        return Attacked((1.0 - keep_BHQK) * -self.strength, units, erased_BHQ)


@flax.struct.dataclass
class Adversary:
    """The adversaries of all layers, an `Attack`; their parameters are those of two linear layers, `query` and `key`.

    special_NBL: tokens that are protected, None for no special ones; heads: masks of a layer; offset: added to the
        scores.
    temperature: 0 for a threshold; otherwise units are kept with probability sigmoid(s), of which m is a sample, and
        the gradient is that of sigmoid((s + noise) / temperature) (Jang et al. 2017; Maddison et al. 2017).
    """

    query: dict[str, Array]
    key: dict[str, Array]
    special_NBL: Array | None
    rules: Rules = flax.struct.field(pytree_node=False)
    heads: int = flax.struct.field(pytree_node=False, default=1)
    offset: float = flax.struct.field(pytree_node=False, default=0.0)
    temperature: float = flax.struct.field(pytree_node=False, default=0.0)

    def scores(self, hidden_BLD: Array) -> Array:
        """s, `BHQK` in float32; no gradient reaches `hidden_BLD`."""
        hidden_BLD = jax.lax.stop_gradient(hidden_BLD)
        query, key = jax.tree.map(lambda leaf: leaf.astype(hidden_BLD.dtype), (self.query, self.key))
        rows, length, width = hidden_BLD.shape
        # Merged, a step has tokens * width * (2 width + length) multiplications less, and 3 width^3 more.
        merging_pays = rows * length * (2 * width + length) > 3 * width**2
        make = self._merged_scores if self.heads == 1 and merging_pays else self._projected_scores
        return make(hidden_BLD, query, key) + self.offset

    def _projected_scores(self, hidden_BLD: Array, query: dict[str, Array], key: dict[str, Array]) -> Array:
        """(h W_q + b_q) (h W_k + b_k)^T / sqrt(width), of every head."""

        def projected(params: dict[str, Array]) -> Array:
            out_BLD = jnp.einsum("bld,de->ble", hidden_BLD, params["kernel"]) + params["bias"][None, None, :]
            return out_BLD.reshape(*out_BLD.shape[:2], self.heads, -1)

        return scores.dot_product_scores(projected(query), projected(key))

    def _merged_scores(self, hidden_BLD: Array, query: dict[str, Array], key: dict[str, Array]) -> Array:
        """The same of one head: [(h W_q W_k^T + b_q W_k^T) h^T + h W_q b_k^T + b_q b_k^T] / sqrt(width).

        The kernels meet first, so that there is one projection and one side that has a gradient.
        """
        kernel_DD = jnp.einsum("de,fe->df", query["kernel"], key["kernel"])
        asking_BLD = jnp.einsum("bld,de->ble", hidden_BLD, kernel_DD) + (key["kernel"] @ query["bias"])[None, None, :]
        of_query_BL = jnp.einsum("bld,d->bl", hidden_BLD, query["kernel"] @ key["bias"]) + query["bias"] @ key["bias"]
        together_BHQK = scores.dot_product_scores(asking_BLD[:, :, None, :], hidden_BLD[:, :, None, :])
        return together_BHQK + of_query_BL[:, None, :, None] / math.sqrt(hidden_BLD.shape[-1])

    def __call__(
        self, hidden_BLD: Array, segments_BL: Array, scores: Callable[[], Array], key: Array | None
    ) -> Attacked:
        """The attack of one layer; its parameters get the reversed gradient."""
        scores_BHQK = self.scores(hidden_BLD)
        if self.temperature and key is not None:
            uniform = dropout.uniform(key, scores_BHQK.shape)
            scores_BHQK = (scores_BHQK + jnp.log(uniform) - jnp.log1p(-uniform)) / self.temperature
        keep_BHQK = reverse_gradient(straight_through(scores_BHQK), 1.0)
        return self.rules.attacked(keep_BHQK, segments_BL, self.special_NBL)


def initial_offset(share: float | None, width: int, deviation: float, *, drawn: bool = False) -> float:
    """What to add to s for about `share` of the units to be kept at first; 0 for None.

    Of vectors that LayerNorm leaves, and kernels drawn with `deviation`, s is normal with the standard deviation
    d = deviation^2 * width, whatever the heads. By a threshold the share above -offset is kept. With `drawn`, units are
    kept with probability sigmoid(s + offset), of which the mean is about sigmoid(offset / sqrt(1 + pi d^2 / 8)) (MacKay
    1992).
    """
    if share is None:
        return 0.0
    spread = deviation**2 * width
    if drawn:
        return math.log(share / (1 - share)) * math.sqrt(1 + math.pi * spread**2 / 8)
    return spread * statistics.NormalDist().inv_cdf(share)

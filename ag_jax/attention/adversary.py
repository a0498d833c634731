"""Adversarial self-attention: masks on attention, learnt from each layer's input so as to raise the model's loss.

Wu et al. 2022, equations 5 to 9, as its released code has it. Each layer has its own adversary. From the layer's
input h, which is detached, it keeps (m = 1) or masks (m = 0) units of the attention, a unit being a pair of a row and a
column,

    s = (W_q h + b_q) (W_k h + b_k)^T / sqrt(width),   m = [s > 0],   attention = softmax(Q K^T / sqrt(d) - (1 - m) C),

and learns by gradient reversal: scores grow that make the model's loss larger, and that keep more units. The gradient
of the threshold is that of a sigmoid. Non-learned masks are attacks, too (`attack.Attack`).

Shape letters: B batch, L length, Q query position, K key position, H head (1 where all share a mask), W width of a
head, D width, N layers.
"""

import math
import statistics
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import scores
from ag_jax.attention.attack import AttentionMask, MaskPolicy

# Name of the adversary's parameters, at the top of the tree of parameters.
ADVERSARY = "adversary"


def split_params(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the model's part, the adversary's part) of parameters or gradients; {} without an adversary."""
    model = {name: tree for name, tree in params.items() if name != ADVERSARY}
    return model, {name: tree for name, tree in params.items() if name == ADVERSARY}


@jax.custom_vjp
def reverse_gradient(x: Array, scale: Array | float) -> Array:
    """Return `x` unchanged, but multiply its gradient by -scale (Ganin & Lempitsky 2015, equation 4).

    `scale` gets no gradient.
    """
    del scale
    return x


def _forward(x: Array, scale: Array | float) -> tuple[Array, Array | float]:
    return x, scale


def _backward(scale: Array | float, gradient: Array) -> tuple[Array, None]:
    return (-scale * gradient).astype(gradient.dtype), None


reverse_gradient.defvjp(_forward, _backward)


def straight_through(scores_BHQK: Array) -> Array:
    """Return 1 where a score is above 0, else 0, with the gradient of sigmoid(score) (straight-through estimator)."""
    soft = jax.nn.sigmoid(scores_BHQK)
    return (scores_BHQK > 0).astype(soft.dtype) + (soft - jax.lax.stop_gradient(soft))


@flax.struct.dataclass
class Adversary:
    """The learnt `Attack` on attention: the parameters of two linear projections for each encoder layer.

    query: kernel and bias of the projection to W_q h + b_q.
    key: kernel and bias of the projection to W_k h + b_k.
    policy: what is done with the masks.
    heads: the number of masks of a layer.
    offset: constant that is added to the scores s.
    """

    query: dict[str, Array]
    key: dict[str, Array]
    policy: MaskPolicy = flax.struct.field(pytree_node=False)
    heads: int = flax.struct.field(pytree_node=False, default=1)
    offset: float = flax.struct.field(pytree_node=False, default=0.0)

    def scores(self, hidden_BLD: Array) -> Array:
        """Return the adversary's scores s for keeping each query-key pair, `BHQK` in float32, with `offset` added.

        No gradient reaches `hidden_BLD`.
        """
        hidden_BLD = jax.lax.stop_gradient(hidden_BLD)
        query, key = jax.tree.map(lambda leaf: leaf.astype(hidden_BLD.dtype), (self.query, self.key))
        rows, length, width = hidden_BLD.shape
        # Merged, a step has tokens * width * (2 width + length) multiplications less, and 3 width^3 more.
        merging_pays = rows * length * (2 * width + length) > 3 * width**2
        compute = self._merged_scores if self.heads == 1 and merging_pays else self._projected_scores
        return compute(hidden_BLD, query, key) + self.offset

    def _projected_scores(self, hidden_BLD: Array, query: dict[str, Array], key: dict[str, Array]) -> Array:
        """Return each head's adversary scores (h W_q + b_q)(h W_k + b_k)^T / sqrt(width), `BHQK`."""

        def projected(params: dict[str, Array]) -> Array:
            out_BLD = jnp.einsum("bld,de->ble", hidden_BLD, params["kernel"]) + params["bias"][None, None, :]
            return out_BLD.reshape(*out_BLD.shape[:2], self.heads, -1)

        return scores.dot_product_scores(projected(query), projected(key))

    def _merged_scores(self, hidden_BLD: Array, query: dict[str, Array], key: dict[str, Array]) -> Array:
        """Return the scores of an adversary with a single head, `B1QK`, computed with W_q W_k^T as one matrix.

        s = [(h W_q W_k^T + b_q W_k^T) h^T + h W_q b_k^T + b_q b_k^T] / sqrt(width), which needs one projection of h
        instead of two, and has one factor with a gradient.
        """
        kernel_DD = jnp.einsum("de,fe->df", query["kernel"], key["kernel"])
        query_BLD = jnp.einsum("bld,de->ble", hidden_BLD, kernel_DD) + (key["kernel"] @ query["bias"])[None, None, :]
        of_query_BL = jnp.einsum("bld,d->bl", hidden_BLD, query["kernel"] @ key["bias"]) + query["bias"] @ key["bias"]
        product_BHQK = scores.dot_product_scores(query_BLD[:, :, None, :], hidden_BLD[:, :, None, :])
        return product_BHQK + of_query_BL[:, None, :, None] / math.sqrt(hidden_BLD.shape[-1])

    def __call__(
        self, hidden_BLD: Array, visible_BQK: Array, probabilities: Callable[[], Array], key: Array | None
    ) -> AttentionMask:
        """Return the mask for a layer with the input `hidden_BLD`; gradients through the mask are reversed.

        probabilities, key: not used; other attacks read them.
        """
        del probabilities, key
        keep_BHQK = reverse_gradient(straight_through(self.scores(hidden_BLD)), 1.0)
        return self.policy.mask(keep_BHQK, visible_BQK)


def initial_offset(share: float | None, width: int, deviation: float) -> float:
    """Return the offset with which an untrained adversary keeps about `share` of query-key pairs; 0 if `share` is None.

    deviation: standard deviation of the adversary's initial kernels.

    It is 0 if `share` is None. For inputs that LayerNorm has normalised and kernels drawn with the standard deviation
    `deviation`, the scores s are normal with the standard deviation d = deviation^2 * width, whatever the number of
    heads. The pairs with s above -offset are kept.
    """
    if share is None:
        return 0.0
    return deviation**2 * width * statistics.NormalDist().inv_cdf(share)

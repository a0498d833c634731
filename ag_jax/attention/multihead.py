"""Multi-head self-attention that can be looked at, guided and attacked.

Shape letters: B batch, L length, Q query position, K key position, H head, D width, V width of a head.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from ag_jax.attention import guidance, scores
from ag_jax.attention.dropout import dropout

Array = jax.Array

# Added to the score of a key that must not be seen. Finite, so that a row without any valid key stays free of NaN.
MASKED_SCORE = -1e9


class MultiHeadAttention(nn.Module):
    """Self-attention: O = softmax(Q K^T / sqrt(d) + bias) V for each head, then a projection back to the width.

    Sows, for whoever asks for the collection with `mutable=`:
      `intermediates/attention_weights`: probabilities `BHQK`, float32, before dropout: exact in whatever precision and
          mode the model computes;
      `statistics/guided_heads`: the `AttentionStatistics` of the guided heads, if `guides` are given.
    """

    heads: int
    width: int
    dropout: float
    dtype: Any
    kernel_init: nn.initializers.Initializer

    @nn.compact
    def __call__(
        self,
        hidden_BLD: Array,
        valid_BL: Array,
        guides: guidance.Guides | None,
        attention_bias: Array | None,
        deterministic: bool,
    ) -> Array:
        """Mix `hidden_BLD` over the valid positions. `attention_bias` broadcasts to `BHQK` and is added to the scores."""
        query_BQHV, key_BKHV, value_BKHV = (
            nn.DenseGeneral(
                (self.heads, self.width // self.heads),
                dtype=self.dtype,
                kernel_init=nn.with_logical_partitioning(self.kernel_init, ("embed", "heads", "head_width")),
                bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("heads", "head_width")),
                name=name,
            )(hidden_BLD)
            for name in ("query", "key", "value")
        )
        scores_BHQK = scores.dot_product_scores(query_BQHV, key_BKHV)
        if attention_bias is not None:
            scores_BHQK = scores_BHQK + attention_bias
        scores_BHQK = scores_BHQK + jnp.where(valid_BL, 0.0, MASKED_SCORE)[:, None, None, :]
        weights_BHQK = nn.softmax(scores_BHQK)
        self.sow("intermediates", "attention_weights", weights_BHQK)
        drop = self._drop(deterministic)
        if guides is not None and self.is_mutable_collection("statistics"):
            guided_BHQK = drop(weights_BHQK) if guides.after_dropout else weights_BHQK
            self.sow("statistics", "guided_heads", guidance.statistics(guided_BHQK, guides, valid_BL))

        # The backward pass keeps the probabilities alone and thins them again: two arrays of their size fewer.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def mix(weights_BHQK: Array, value_BKHV: Array) -> Array:
            return jnp.einsum("bhqk,bkhv->bqhv", drop(weights_BHQK).astype(self.dtype), value_BKHV)

        mixed_BQHV = mix(weights_BHQK, value_BKHV)
        return nn.DenseGeneral(
            self.width,
            axis=(-2, -1),
            dtype=self.dtype,
            kernel_init=nn.with_logical_partitioning(self.kernel_init, ("heads", "head_width", "embed")),
            bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)),
            name="output",
        )(mixed_BQHV)

    def _drop(self, deterministic: bool):
        """What dropout does to this call's probabilities: the same each time it is applied."""
        if deterministic or self.dropout == 0.0:
            return lambda weights_BHQK: weights_BHQK
        key = self.make_rng("dropout")
        return lambda weights_BHQK: dropout(weights_BHQK, key, self.dropout)

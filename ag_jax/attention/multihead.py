"""Multi-head self-attention that can be looked at, guided and attacked.

Shape letters: B batch, L length, Q query position, K key position, H head, D width of the model, V width of a head.
"""

from typing import Any

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from ag_jax.attention import guidance
from ag_jax.attention.fused import reference
from ag_jax.attention.fused.contract import KEPT, Attend

Array = jax.Array


class MultiHeadAttention(nn.Module):
    """Self-attention: O = softmax(Q K^T / sqrt(d) + bias) V for each head, then a projection back to the width.

    Sows, for whoever asks for the collection with `mutable=`:
      `intermediates/attention_weights`: probabilities `BHQK`, float32, before dropout: exact in whatever precision and
          mode the model computes, and whatever implementation `attend` is;
      `statistics/guided_heads`: the `AttentionStatistics` of the guided heads, if `guides` are given.
    """

    heads: int
    width: int
    dropout: float
    dtype: Any
    kernel_init: nn.initializers.Initializer
    attend: Attend = reference.attend

    @nn.compact
    def __call__(
        self,
        hidden_BLD: Array,
        sequences_BL: Array,
        guides: guidance.Guides | None,
        attention_bias: Array | None,
        deterministic: bool,
    ) -> Array:
        """Mix `hidden_BLD` within each text. `attention_bias` broadcasts to `BHQK` and is added to the scores."""
        query_BLHV, key_BLHV, value_BLHV = (
            nn.DenseGeneral(
                (self.heads, self.width // self.heads),
                dtype=self.dtype,
                kernel_init=nn.with_logical_partitioning(self.kernel_init, ("embed", "heads", "head_width")),
                bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("heads", "head_width")),
                name=name,
            )(hidden_BLD)
            for name in ("query", "key", "value")
        )
        thins = self.dropout > 0.0 and not deterministic
        options = {
            "guides": guides if self.is_mutable_collection("statistics") else None,
            "rate": self.dropout if thins else 0.0,
            "key": self.make_rng("dropout") if thins else None,
        }
        if self.is_mutable_collection("intermediates"):
            weights_BHQK = reference.probabilities(query_BLHV, key_BLHV, sequences_BL, attention_bias)
            self.sow("intermediates", "attention_weights", weights_BHQK)
            mixed_BLHV, statistics = reference.mix(weights_BHQK, value_BLHV, sequences_BL, **options)
        else:
            mixed_BLHV, statistics = self.attend(
                query_BLHV, key_BLHV, value_BLHV, sequences_BL, bias=attention_bias, **options
            )
        # Kept where a remat policy drops what is cheap to make again: attention is not.
        mixed_BLHV, statistics = checkpoint_name((mixed_BLHV, statistics), KEPT)
        if statistics is not None:
            self.sow("statistics", "guided_heads", statistics)
        return nn.DenseGeneral(
            self.width,
            axis=(-2, -1),
            dtype=self.dtype,
            kernel_init=nn.with_logical_partitioning(self.kernel_init, ("heads", "head_width", "embed")),
            bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)),
            name="output",
        )(mixed_BLHV)

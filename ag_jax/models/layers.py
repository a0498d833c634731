"""One post-norm Transformer layer.

Shape letters: B batch, L length, D width, F width of the feed-forward layer.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from ag_jax.attention import guidance, multihead
from ag_jax.attention.dropout import Dropout
from ag_jax.attention.fused import reference
from ag_jax.attention.fused.contract import Attend
from ag_jax.models.config import EncoderConfig

Array = jax.Array


def layer_norm(config: EncoderConfig, name: str | None = None) -> nn.LayerNorm:
    """LayerNorm with the encoder's epsilon; mean and variance in float32 whatever the computation's precision."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_epsilon,
        dtype=jnp.dtype(config.dtype),
        scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("embed",)),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)),
        name=name,
    )


def dense(config: EncoderConfig, features: int, axes: tuple[str, str], name: str) -> nn.Dense:
    """A linear layer with the encoder's initial values and precision; `axes` name its dimensions for the sharding."""
    return nn.Dense(
        features,
        dtype=jnp.dtype(config.dtype),
        kernel_init=nn.with_logical_partitioning(nn.initializers.normal(config.initializer_range), axes),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, axes[-1:]),
        name=name,
    )


def gelu(x: Array) -> Array:
    """x * Phi(x) with the exact normal distribution function, as in BERT and RoBERTa; not the tanh form."""
    return nn.gelu(x, approximate=False)


class EncoderLayer(nn.Module):
    """x <- LayerNorm(x + Attention(x)); x <- LayerNorm(x + W2 gelu(W1 x)) (Vaswani et al. 2017, section 3)."""

    config: EncoderConfig
    attend: Attend = reference.attend

    @nn.compact
    def __call__(
        self,
        hidden_BLD: Array,
        sequences_BL: Array,
        guides: guidance.Guides | None,
        attention_bias: Array | None,
        deterministic: bool,
    ) -> tuple[Array, None]:
        """The next `hidden_BLD`; the None is what a scanned layer returns besides its carry."""
        config = self.config
        dropout = Dropout(config.dropout)
        mixed_BLD = multihead.MultiHeadAttention(
            heads=config.heads,
            width=config.width,
            dropout=config.attention_dropout,
            dtype=jnp.dtype(config.dtype),
            kernel_init=nn.initializers.normal(config.initializer_range),
            attend=self.attend,
            name="attention",
        )(hidden_BLD, sequences_BL, guides, attention_bias, deterministic)
        mixed_BLD = dropout(mixed_BLD, deterministic=deterministic)
        hidden_BLD = layer_norm(config, "attention_norm")(hidden_BLD + mixed_BLD)
        features = config.feedforward or 4 * config.width
        wide_BLF = gelu(dense(config, features, ("embed", "feedforward"), "feedforward_in")(hidden_BLD))
        narrow_BLD = dense(config, config.width, ("feedforward", "embed"), "feedforward_out")(wide_BLF)
        narrow_BLD = dropout(narrow_BLD, deterministic=deterministic)
        return layer_norm(config, "feedforward_norm")(hidden_BLD + narrow_BLD), None

"""Transformer layer of an encoder, the parts that it shares with a decoder, and the convolution of DeBERTa v2.

Shape letters: B batch, L length, Q queries, H head, D width, F width of the feed-forward layer, R rows of the table of
relative embeddings, T taps of a convolution.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import guidance, multihead
from ag_jax.attention.attack import Attack
from ag_jax.attention.dropout import Dropout
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.attention.rotary import Rotation
from ag_jax.models.config import EncoderConfig


def normalization(config: EncoderConfig, name: str | None = None, axis: str = "embed", **settings) -> nn.Module:
    """Return a LayerNorm or RMSNorm (`config.norm`) with the encoder's epsilon.

    Mean and variance are computed in float32, whatever the dtype.

    axis: name of the axis that is normalised, for sharding.
    """
    common = {
        "epsilon": config.layer_norm_epsilon,
        "dtype": jnp.dtype(config.dtype),
        "scale_init": nn.with_logical_partitioning(nn.initializers.ones, (axis,)),
        "name": name,
        **settings,
    }
    if config.norm == "rms":
        return nn.RMSNorm(**common)
    bias_init = nn.with_logical_partitioning(nn.initializers.zeros, (axis,))
    return nn.LayerNorm(**common, use_bias=config.norm_biases, bias_init=bias_init)


def initializer(config: EncoderConfig, is_last: bool = False) -> nn.initializers.Initializer:
    """Return the weight initializer that `config.initializer` names: normal, or a scaled truncated normal.

    is_last: whether the weights are those of the last linear layer of attention or of the feed-forward part.
    """
    if config.initializer == "normal":
        return nn.initializers.normal(config.initializer_range)
    scale = math.sqrt(2 * config.layers) if is_last else 1.0
    return nn.initializers.truncated_normal(config.initializer_range / scale)  # cut off at two standard deviations


def dense(
    config: EncoderConfig,
    features: int,
    axes: tuple[str, str],
    name: str | None = None,
    biases: bool = True,
    is_last: bool = False,
) -> nn.Dense:
    """Return a linear layer with the encoder's initializer and dtype.

    axes: names of the axes of its kernel, for sharding.
    is_last: as in `initializer`.
    """
    return nn.Dense(
        features,
        use_bias=biases,
        dtype=jnp.dtype(config.dtype),
        kernel_init=nn.with_logical_partitioning(initializer(config, is_last), axes),
        bias_init=nn.with_logical_partitioning(nn.initializers.zeros, axes[-1:]),
        dot_general=_product_of_matrices,
        name=name,
    )


def _product_of_matrices(x: Array, kernel: Array, dimension_numbers: Any, **settings: Any) -> Array:
    """Return x @ kernel with all axes of x but the last flattened into one, as the `dot_general` of linear layers.

    The gradient of the kernel is then a product of two matrices, too. As a contraction over batch and length, XLA would
    copy its operands first on a CPU.

    dimension_numbers: ignored, since a linear layer always contracts the last axis of x with the first of the kernel.
    settings: other arguments of `lax.dot_general`.
    """
    del dimension_numbers
    product = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), kernel, (((1,), (0,)), ((), ())), **settings)
    return product.reshape(*x.shape[:-1], kernel.shape[-1])


@jax.custom_jvp
def gelu(x: Array) -> Array:
    """Return x * Phi(x), where Phi is the standard normal distribution function, as in BERT and RoBERTa.

    Phi(x) = (1 + erf(x / sqrt(2))) / 2, which has an absolute error of 1e-7 in float32. `jax.nn.gelu` without
    approximation computes Phi by erfc. That has a small relative error even for x << 0, but takes longer.
    """
    return x * _normal_cdf(x)


def _normal_cdf(x: Array) -> Array:
    # In float32, because 1 + erf cancels for x < 0.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (0.5 * (1 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # gelu'(x) = Phi(x) + x phi(x). One factor is all that a backward pass needs, whereas differentiating the formula
    # above would leave it several arrays of the size of x.
    ((x,), (tangent,)) = primals, tangents
    cdf = _normal_cdf(x)
    return x * cdf, tangent * (cdf + x * (jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"gelu": gelu, "relu": jax.nn.relu, "silu": jax.nn.silu}


def attention(config: EncoderConfig, attend: Attend, **settings) -> multihead.MultiHeadAttention:
    """Return a multi-head attention module for an encoder's config, with `attend` as its attention function.

    settings: other fields of `MultiHeadAttention`.
    """
    return multihead.MultiHeadAttention(
        heads=config.heads,
        width=config.width,
        dropout=config.attention_dropout,
        dtype=jnp.dtype(config.dtype),
        kernel_init=initializer(config),
        output_init=initializer(config, is_last=True),
        head_norm=functools.partial(normalization, config, axis="head_width") if config.query_key_norm else None,
        attend=attend,
        biases=config.attention_biases,
        **settings,
    )


class FeedForward(NamedTuple):
    """The linear layers of the feed-forward part of an encoder's or decoder's layer.

    first, gate: W1 and, if the part is gated, W3.
    second: W2.
    """

    first: nn.Dense
    gate: nn.Dense | None
    second: nn.Dense


def feedforward_layers(config: EncoderConfig, *, named: bool = False) -> FeedForward:
    """Build the linear layers of the feed-forward part of an encoder's or decoder's layer.

    named: give the layers their names, where the caller's attributes do not name them.
    """
    features, biases = config.feedforward or 4 * config.width, config.feedforward_biases

    def inner(name: str) -> nn.Dense:
        return dense(config, features, ("embed", "feedforward"), name if named else None, biases)

    first, gate = inner("feedforward_in"), inner("feedforward_gate") if config.gated else None
    last = "feedforward_out" if named else None
    return FeedForward(first, gate, dense(config, config.width, ("feedforward", "embed"), last, biases, is_last=True))


def feedforward(config: EncoderConfig, linear: FeedForward) -> Callable[[Array], Array]:
    """Return the feed-forward part of a layer, the function W2 activation(W1 x), or W2 (activation(W1 x) * W3 x)."""
    activation = ACTIVATIONS[config.activation]

    def apply(x: Array) -> Array:
        inner = activation(linear.first(x))
        return linear.second(inner if linear.gate is None else inner * linear.gate(x))

    return apply


def residual(
    config: EncoderConfig,
    x: Array,
    function: Callable[[Array], Array],
    norm: Callable[[Array], Array],
    dropout: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """Return the residual sum LayerNorm(x + dropout(f(x))), or for `norm_position=pre` x + dropout(f(LayerNorm(x))).

    Vaswani et al. 2017, section 5.4; Xiong et al. 2020 (On Layer Normalization in the Transformer Architecture).
    """
    if config.norm_position == "pre":
        return x + dropout(function(norm(x)))
    return norm(x + dropout(function(x)))


@flax.struct.dataclass
class Context:
    """Arguments that all encoder layers share besides the hidden states: segment ids, guides, bias, positions.

    segments_BL: segment ids, one for each text of a row; 0 is padding.
    guides: patterns for the guided heads (`encoder.Ports`).
    attention_bias: broadcasts to `BHQK`, added to the attention scores (`encoder.Ports`).
    relative_RD: relative-position embeddings, for disentangled attention.
    rotation, local_rotation: of queries and keys in layers without and with a window, for rotary positions.
    deterministic: whether dropout is off.
    """

    segments_BL: Array
    guides: guidance.Guides | None = None
    attention_bias: Array | None = None
    relative_RD: Array | None = None
    rotation: Rotation | None = None
    local_rotation: Rotation | None = None
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)


@flax.struct.dataclass
class QuerySubset:
    """Queries at a subset of a layer's positions; keys and values still come from the layer's whole input.

    hidden_BQD: vectors from which the queries are projected.
    positions_BQ: their positions in the layer's input.
    """

    hidden_BQD: Array
    positions_BQ: Array


class EncoderLayer(nn.Module):
    """Layer of an encoder: x <- LayerNorm(x + Attention(x)); x <- LayerNorm(x + W2 activation(W1 x)).

    Vaswani et al. 2017, section 3; with `norm_position=pre`, LayerNorm is where `residual` says. Dropout is applied
    before each residual sum.

    is_local: whether attention is limited to the window `config.window`.
    """

    config: EncoderConfig
    attend: Attend = reference.attend
    is_local: bool = False

    @nn.compact
    def __call__(
        self,
        hidden_BLD: Array,
        context: Context,
        *,
        queries: QuerySubset | None = None,
        attack: Attack | None = None,
        head_mask_H: Array | None = None,
        index: Array | int | None = None,
    ) -> Array:
        """Return the hidden states after the layer: `BLD`, or `BQD` if only the Q positions in `queries` are computed.

        queries: vectors that attend to `hidden_BLD` and get the output added; if None, `hidden_BLD` attends to itself.
        attack: adversarial attack on this layer's attention.
        head_mask_H: factor of each head's output, before the heads are projected to the width of the model.
        index: number of the layer; needed with `first_norm=False`, for which layer 0 is another one than the others.
        """
        config = self.config
        dropout, deterministic = Dropout(config.dropout), context.deterministic
        relative_RD = context.relative_RD
        if relative_RD is not None:  # here and not in `Context`, because each layer draws a dropout mask
            relative_RD = Dropout(config.dropout, name="relative_dropout")(relative_RD, deterministic=deterministic)
        query_BQD, positions_BQ = (hidden_BLD, None) if queries is None else (queries.hidden_BQD, queries.positions_BQ)
        query_segments_BQ = context.segments_BL
        if queries is not None:
            query_segments_BQ = jnp.take_along_axis(context.segments_BL, positions_BQ, axis=1)
        attend_to_source = attention(
            config, self.attend, fixed=config.fixed_attention, relative=config.relative, name="attention"
        )

        def mix(normed_BQD: Array) -> Array:
            # A query subset belongs to an encoder with LayerNorm after the sum, where the source is not normalised.
            return attend_to_source(
                normed_BQD,
                normed_BQD if queries is None else hidden_BLD,
                query_segments_BQ,
                context.segments_BL,
                bias=context.attention_bias,
                window=config.window if self.is_local else None,
                guides=context.guides,
                positions_BQ=positions_BQ,
                relative_RD=relative_RD,
                rotation=context.local_rotation if self.is_local else context.rotation,
                attack=attack,
                head_mask_H=head_mask_H,
                deterministic=deterministic,
            )

        drop = functools.partial(dropout, deterministic=deterministic)
        linear = feedforward_layers(config, named=True)
        attention_norm = normalization(config, "attention_norm")

        def norm(x: Array) -> Array:
            # Computed in every layer, because a loop runs one program for all of them.
            return attention_norm(x) if config.first_norm else jnp.where(index == 0, x, attention_norm(x))

        hidden_BQD = residual(config, query_BQD, mix, norm, drop)
        feedforward_norm = normalization(config, "feedforward_norm")
        return residual(config, hidden_BQD, feedforward(config, linear), feedforward_norm, drop)


class Convolution(nn.Module):
    """Convolution over tokens: activation(dropout(b + sum of x[l + t] W_t over t = -k, ..., k)) (DeBERTa v2).

    k = (`config.convolution` - 1) / 2.

    Positions outside the token's own text count as zero: padding, and neighbours in a packed row.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BLD: Array, segments_BL: Array, *, deterministic: bool) -> Array:
        """Return the output of the convolution over neighbouring tokens, after dropout and activation, `BLD`."""
        config = self.config
        taps, length = config.convolution, hidden_BLD.shape[1]
        kernel_init: Any = nn.with_logical_partitioning(
            nn.initializers.normal(config.initializer_range), ("tap", "embed", "embed_out")
        )
        kernel_TDD = self.param("kernel", kernel_init, (taps, config.width, config.width)).astype(hidden_BLD.dtype)
        bias_init: Any = nn.with_logical_partitioning(nn.initializers.zeros, ("embed",))
        bias_D = self.param("bias", bias_init, (config.width,)).astype(hidden_BLD.dtype)
        sides = taps // 2, taps // 2
        padded_BLD = jnp.pad(hidden_BLD, [(0, 0), sides, (0, 0)])
        padded_BL = jnp.pad(segments_BL, [(0, 0), sides])
        neighbours = []
        for tap in range(taps):
            same_text_BL1 = (padded_BL[:, tap : tap + length] == segments_BL)[:, :, None]
            neighbours.append(jnp.where(same_text_BL1, padded_BLD[:, tap : tap + length], 0))
        # One product over taps and width is rounded once; a sum over one product per tap would be rounded every time.
        total_BLD = jnp.einsum("bltd,tdo->blo", jnp.stack(neighbours, axis=2), kernel_TDD) + bias_D[None, None, :]
        activation = nn.tanh if config.convolution_activation == "tanh" else ACTIVATIONS["gelu"]
        return activation(Dropout(config.dropout)(total_BLD, deterministic=deterministic))


class NormParameters(nn.Module):
    """Scale and bias of one LayerNorm, for use inside the scan over layers.

    A LayerNorm module inside the scan would get parameters for every layer.
    """

    config: EncoderConfig

    def setup(self):
        self.scale = self.param(
            "scale", nn.with_logical_partitioning(nn.initializers.ones, ("embed",)), (self.config.width,)
        )
        self.bias = self.param(
            "bias", nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)), (self.config.width,)
        )

    def __call__(self) -> dict[str, Any]:
        """Return {"scale": scale, "bias": bias} of the LayerNorm, as `normalization(config).apply` takes them."""
        return {"scale": self.scale, "bias": self.bias}

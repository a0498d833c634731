"""Architecture settings of a Transformer encoder, and of a decoder on top of it."""

import dataclasses
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from ag_jax.attention.config import DisentangledConfig, FixedConfig

DType = Literal["float32", "bfloat16"]
Remat = Literal["none", "layer", "dots"]
Implementation = Literal["auto", "reference", "tpu", "gpu"]
Activation = Literal["gelu", "relu", "silu"]
Pooling = Literal["first", "mean"]  # of the hidden states of a text: the first token, or the mean over its tokens


MOST_PARAMETERS = 10**11  # ten times those of the largest encoders; more would end the process when they are allocated


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Architecture of an encoder; defaults are RoBERTa-base's, but the vocabulary size is that of the run's tokenizer.

    vocabulary_size: number of token embeddings; None takes the size of the tokenizer.
    layers: number of layers.
    heads: number of attention heads in each layer.
    width: width of the hidden states; a multiple of `heads`.
    feedforward: width of the feed-forward layer; None means 4 * width.
    embedding_width: width of the embeddings, which are then projected to `width` (ELECTRA); None means `width`, without
        a projection.
    max_length: maximum number of tokens in a sequence; the position table has `max_length + position_offset` entries.
    position_offset: index of the first position: RoBERTa counts from its padding id + 1 = 2, BERT from 0.
    positions: absolute positions, embeddings that are `learned` or fixed `sinusoidal` ones (Vaswani et al. 2017), or
        `rotary` ones, which rotate queries and keys (Su et al. 2021, RoFormer).
    sinusoid: form of `sinusoidal` positions: sines in the first half and cosines in the second half of a vector of
        width d, at 10000^(-2i/d) radians a token (`marian`) or at 10000^(-i/(d/2-1)) (`tensor2tensor`).
    absolute_positions: where position embeddings are added: to the word embeddings (`input`), to the input of the
        enhanced mask decoder (`decoder`, DeBERTa), or nowhere (`none`). `rotary` positions are added nowhere.
    rotary_base: with `rotary` positions, the i-th pair of a head of width d is rotated by base^(-2i/d) radians a token.
    rotary_base_local: the base in layers with a window; None takes `rotary_base`.
    token_types: number of token type embeddings; RoBERTa has 1, BERT 2, DeBERTa 0.
    embedding_norm: apply LayerNorm to the sum of the embeddings, as BERT does; translation models do not.
    embedding_scale: multiply word embeddings by the square root of their width (Vaswani et al. 2017, section 3.4).
    norm_position: apply LayerNorm after each residual sum (`post`, BERT), or to the input of attention and feed-forward
        (`pre`), with one more LayerNorm after the last layer.
    norm: LayerNorm (`layer`), or RMSNorm (`rms`, Zhang & Sennrich 2019), which subtracts no mean and has no bias.
    norm_biases: biases in LayerNorm.
    first_norm: with `norm_position=pre`, apply LayerNorm to the input of the first attention; ModernBERT does not,
        because it normalises the embeddings.
    query_key_norm: normalise queries and keys over the width of a head, before they are rotated.
    activation: activation between the two linear layers of the feed-forward part.
    gated: multiply the activation by a third linear layer, W2 (activation(W1 x) * W3 x): GeGLU with `gelu`, SwiGLU with
        `silu` (Shazeer 2020). ModernBERT and LLaMA have a smaller `feedforward` with it.
    attention_biases: biases in the projections of attention.
    feedforward_biases: biases in the linear layers of the feed-forward part, and in that of the word head.
    window: width W of windowed attention: a query sees itself and W // 2 tokens on each side, keys with abs(q - k) <=
        W // 2; None for attention to all tokens in all layers.
    global_every: with a window, layers 0, n, 2n, ... attend to all tokens, the others within the window; None for a
        window in every layer.
    fixed_attention: hard-coded attention weights, which are not learnt (You et al. 2020).
    relative: relative positions (disentangled attention, DeBERTa).
    mask_decoder_passes: number of times that the enhanced mask decoder applies the last layer before words are
        predicted (DeBERTa: 2); 0 is an encoder without a mask decoder.
    convolution: kernel size, in tokens, of the convolution beside the first layer, an odd number (DeBERTa v2: 3); None
        means no convolution.
    convolution_activation: activation after the convolution.
    dropout: dropout rate of embeddings and of the outputs of attention and feed-forward layers.
    attention_dropout: dropout rate of attention probabilities.
    layer_norm_epsilon: added to the variance in LayerNorm.
    initializer_range: standard deviation of the normal distribution that initialises weights.
    initializer: `normal`, or `scaled`, which cuts the distribution off at two standard deviations and divides that of
        the last linear layer of attention and feed-forward by sqrt(2 * layers) (ModernBERT).
    dtype: floating-point type of the computation; parameters, softmax and losses stay float32.
    remat: which activations the backward pass recomputes instead of storing them: all but matrix products and
        attention (`dots`), whole layers (`layer`), or nothing (`none`).
    scan_layers: run the layers as a loop, which compiles one layer, instead of compiling each layer. Without the loop a
        step takes less time on a TPU, and compilation several times as long.
    attention: implementation of attention: `reference`, the kernels `tpu` or `gpu`, or the one that suits the devices
        (`auto`). Flax `intermediates` have the exact attention weights with any of them.
    """

    vocabulary_size: Annotated[int, Ge(1), Le(16777216)] | None = None
    layers: Annotated[int, Ge(1), Le(1000)] = 12
    heads: Annotated[int, Ge(1), Le(1024)] = 12
    width: Annotated[int, Ge(1), Le(65536)] = 768
    feedforward: Annotated[int, Ge(1), Le(1048576)] | None = None
    embedding_width: Annotated[int, Ge(1), Le(65536)] | None = None
    max_length: Annotated[int, Ge(1), Le(1048576)] = 512
    position_offset: Annotated[int, Ge(0), Le(65536)] = 2
    positions: Literal["learned", "sinusoidal", "rotary"] = "learned"
    sinusoid: Literal["marian", "tensor2tensor"] = "marian"
    absolute_positions: Literal["input", "decoder", "none"] = "input"
    rotary_base: Annotated[float, Gt(1)] = 10_000.0
    rotary_base_local: Annotated[float, Gt(1)] | None = None
    token_types: Annotated[int, Ge(0), Le(65536)] = 1
    embedding_norm: bool = True
    embedding_scale: bool = False
    norm_position: Literal["post", "pre"] = "post"
    norm: Literal["layer", "rms"] = "layer"
    norm_biases: bool = True
    first_norm: bool = True
    query_key_norm: bool = False
    activation: Activation = "gelu"
    gated: bool = False
    attention_biases: bool = True
    feedforward_biases: bool = True
    window: Annotated[int, Ge(1), Le(1048576)] | None = None
    global_every: Annotated[int, Ge(1), Le(1000)] | None = 1
    fixed_attention: FixedConfig = FixedConfig()
    relative: DisentangledConfig = DisentangledConfig()
    mask_decoder_passes: Annotated[int, Ge(0), Le(100)] = 0  # bounded: each pass is compiled separately
    convolution: Annotated[int, Ge(1), Le(1001)] | None = None
    convolution_activation: Literal["tanh", "gelu"] = "tanh"
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    attention_dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    layer_norm_epsilon: Annotated[float, Gt(0)] = 1e-5
    initializer_range: Annotated[float, Gt(0)] = 0.02
    initializer: Literal["normal", "scaled"] = "normal"
    dtype: DType = "float32"
    remat: Remat = "dots"
    scan_layers: bool = True
    attention: Implementation = "auto"

    def __post_init__(self):
        if self.width > 0 and self.heads > 0 and self.width % self.heads:
            raise ValueError(f"model.heads must divide model.width={self.width}, got {self.heads}")
        if self.convolution is not None and self.convolution % 2 == 0:
            raise ValueError(f"model.convolution must be an odd number, or none, got {self.convolution}")
        self.check_size()
        self._check_positions()
        self._check_block()
        self._check_rotary_and_windows()

    def check_size(self, decoder_layers: int = 0) -> None:
        """Raise ValueError if the model would have more than about `MOST_PARAMETERS` parameters.

        Most parameters are counted, but not all.

        decoder_layers: number of layers of a decoder on top, each with two attentions.
        """
        features = self.feedforward or 4 * self.width
        attention, rest = 4 * self.width**2, (3 if self.gated else 2) * self.width * features
        rows = (self.vocabulary_size or 0) + self.max_length + 2 * self.relative.span * bool(self.relative.terms)
        count = self.layers * (attention + rest) + decoder_layers * (2 * attention + rest)
        count += rows * max(self.width, self.embedding_width or 0)
        if count > MOST_PARAMETERS:
            raise ValueError(
                f"the model would have about {count:.1e} parameters, expected at most {MOST_PARAMETERS:.0e}: lower "
                f"model.layers={self.layers}, model.width={self.width}, model.feedforward={features}, "
                "model.vocabulary_size, model.max_length or decoder.layers"
            )

    def _check_positions(self) -> None:
        """Raise ValueError if `absolute_positions` does not fit the mask decoder, or there are no positions at all."""
        if (self.absolute_positions == "decoder") != (self.mask_decoder_passes > 0):
            raise ValueError(
                f"model.absolute_positions={self.absolute_positions} does not go with "
                f"model.mask_decoder_passes={self.mask_decoder_passes}: set absolute_positions=decoder if and only if "
                "there is a mask decoder, which adds the positions"
            )
        if self.absolute_positions == "none" and not self.relative.terms and self.positions != "rotary":
            raise ValueError(
                "model.absolute_positions=none leaves an encoder without any order of its words: "
                "set model.relative.terms, such as c2p,p2c, or model.positions=rotary"
            )

    def _check_block(self) -> None:
        """Raise ValueError for settings of the layers that exclude each other, such as RMSNorm with biases."""
        if self.norm == "layer" and not self.norm_biases and self.convolution:
            raise ValueError("model.norm_biases=False cannot be combined with model.convolution, whose norm has a bias")
        if self.norm == "rms" and (self.norm_biases or self.convolution):
            raise ValueError(
                "model.norm=rms has no biases and no convolution: set model.norm_biases=False and "
                f"model.convolution=none, got {self.norm_biases} and {self.convolution}"
            )
        if not self.first_norm and self.norm_position == "post":
            raise ValueError(
                "model.first_norm=False leaves out the first LayerNorm of model.norm_position=pre: with post there is "
                "none before the first attention"
            )
        if self.query_key_norm and (self.relative.terms or self.fixed_attention.offsets):
            raise ValueError(
                "model.query_key_norm normalises queries and keys, which model.relative.terms and "
                "model.fixed_attention.offsets use otherwise or not at all: set only one of them"
            )
        if self.norm_position == "pre" and (self.mask_decoder_passes or self.convolution):
            raise ValueError(
                "model.norm_position=pre cannot be combined with model.mask_decoder_passes or model.convolution, which "
                "are defined for LayerNorm after the residual sum: set norm_position=post"
            )
        if self.fixed_attention.offsets and self.relative.terms:
            raise ValueError(
                "model.fixed_attention.offsets replaces the scores to which model.relative.terms would be added: set "
                "only one of the two"
            )
        if self.positions == "sinusoidal" and (self.width % 2 or (self.embedding_width or 0) % 2):
            raise ValueError(
                "model.positions=sinusoidal has a sine for every cosine: model.width and model.embedding_width must be "
                f"even, got {self.width} and {self.embedding_width}"
            )

    def _check_rotary_and_windows(self) -> None:
        """Raise ValueError if rotary positions or windowed attention are set in a way that other settings exclude."""
        if self.positions == "rotary":
            if self.relative.terms or self.fixed_attention.offsets or self.mask_decoder_passes:
                raise ValueError(
                    "model.positions=rotary cannot be combined with model.relative.terms, "
                    "model.fixed_attention.offsets or model.mask_decoder_passes: set only one of them"
                )
            if self.head_width % 2:
                raise ValueError(
                    "model.positions=rotary rotates pairs of numbers: the width of a head, model.width / model.heads, "
                    f"must be even, got {self.head_width}"
                )
        elif self.rotary_base_local is not None:
            raise ValueError("model.rotary_base_local needs model.positions=rotary")
        if self.window is None:
            if self.global_every != 1 or self.rotary_base_local is not None:
                raise ValueError(
                    "model.global_every and model.rotary_base_local are about layers with a window: set model.window, "
                    "such as 128"
                )
            return
        if self.global_every == 1:
            raise ValueError(
                f"model.window={self.window} with model.global_every=1 gives no layer a window: set "
                "model.global_every=3, or none for a window in every layer"
            )
        if self.relative.terms or self.fixed_attention.offsets or self.convolution or self.mask_decoder_passes:
            raise ValueError(
                "model.window cannot be combined with model.relative.terms, model.fixed_attention.offsets, "
                "model.convolution or model.mask_decoder_passes: set only one of them"
            )

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.width // self.heads

    @property
    def layer_kinds(self) -> tuple[bool, ...]:
        """Whether attention is limited to a window, for each layer of the group that repeats through the encoder.

        The layers of the encoder are such groups, one after the other, of which the last one may be shorter.
        """
        if self.window is None:
            return (False,)
        if self.global_every is None or self.layers == 1:  # a single layer is layer 0, which is global if any is
            return (self.global_every is None,)
        return (False, *[True] * (min(self.global_every, self.layers) - 1))

    @property
    def local_layers(self) -> tuple[bool, ...]:
        """For each layer of the encoder, whether its attention is limited to a window."""
        kinds = self.layer_kinds
        return tuple(kinds[layer % len(kinds)] for layer in range(self.layers))

    @property
    def windows(self) -> tuple[int | None, ...]:
        """For each layer, the width of the window to which its attention is limited; None if there is no window."""
        return tuple(self.window if is_local else None for is_local in self.local_layers)

    @property
    def is_projected(self) -> bool:
        """Whether embeddings have another width than the encoder, and are projected to its width."""
        return self.embedding_width not in (None, self.width)


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Settings of the decoder of a translation model; width, heads, dropout and so on are those of section `model`.

    layers: number of layers; 0 is no decoder, so the model is an encoder.
    start: what the decoder reads in place of a previous token when it writes the first one: a vector of zeros (`zero`,
        as in Marian), or the embedding of the tokenizer's begin token (`begin`).
    tie: which tables of word embeddings are one: source, target and output (`all`), target and output (`target`), or
        `none`.
    fixed_attention: hard-coded weights of the decoder's self-attention, which are not learnt (You et al. 2020).
    """

    layers: Annotated[int, Ge(0), Le(1000)] = 0
    start: Literal["zero", "begin"] = "zero"
    tie: Literal["all", "target", "none"] = "all"
    fixed_attention: FixedConfig = FixedConfig()

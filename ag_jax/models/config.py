"""The shape of an encoder."""

import dataclasses

from ag_jax.attention.disentangled import DisentangledConfig

DTYPES = ("float32", "bfloat16")
REMATS = ("none", "layer", "dots")
IMPLEMENTATIONS = ("auto", "reference", "tpu", "gpu")
ABSOLUTE_POSITIONS = ("input", "decoder", "none")
ACTIVATIONS = ("tanh", "gelu")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Architecture of an encoder; the defaults are RoBERTa-base with the vocabulary still to be filled in.

    vocabulary_size: 0 takes the size of the tokenizer.
    max_length: the longest row of tokens; the position table has `max_length + position_offset` entries.
    position_offset: RoBERTa counts positions from its padding id + 1 = 2, BERT from 0.
    absolute_positions: where their embeddings are added: to those of the words (`input`), to what the enhanced mask decoder
        starts from (`decoder`, DeBERTa), or nowhere (`none`).
    segments: number of segment (token type) embeddings; RoBERTa has 1, DeBERTa 0: none.
    feedforward: width of the feed-forward layer; 0 means 4 * width.
    embedding_width: of the embeddings, which are then projected to `width` (ELECTRA); 0 means `width`, without a projection.
    relative: positions relative to one another (disentangled attention, DeBERTa).
    decoder_passes: times that the enhanced mask decoder applies the last layer before words are predicted (DeBERTa: 2); 0 is none.
    convolution: tokens that the convolution beside the first layer sees (DeBERTa v2: 3); 0 is none. Then its activation.
    dropout, attention_dropout: on embeddings and sub-layer outputs, and on attention probabilities.
    dtype: of the computation; parameters, softmax and losses stay float32.
    remat: what the backward pass computes again instead of keeping it: all but matrix products and attention (`dots`), whole
        layers (`layer`), or nothing (`none`).
    attention: how it is computed: `reference`, the kernels `tpu` or `gpu`, or what suits the devices (`auto`).
    """

    vocabulary_size: int = 0
    layers: int = 12
    heads: int = 12
    width: int = 768
    feedforward: int = 0
    embedding_width: int = 0
    max_length: int = 512
    position_offset: int = 2
    absolute_positions: str = "input"
    segments: int = 1
    relative: DisentangledConfig = DisentangledConfig()
    decoder_passes: int = 0
    convolution: int = 0
    convolution_activation: str = "tanh"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    dtype: str = "float32"
    remat: str = "dots"
    attention: str = "auto"

    def __post_init__(self):
        for name in ("layers", "heads", "width", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        counts = ("vocabulary_size", "feedforward", "embedding_width", "position_offset", "segments", "decoder_passes")
        for name in counts:
            if getattr(self, name) < 0:
                raise ValueError(f"model.{name} must be at least 0, got {getattr(self, name)}")
        for name in ("layers", "heads", "width", "max_length", *counts, "convolution"):
            if getattr(self, name) >= 2**31:  # JAX counts and looks up with 32 bits
                raise ValueError(f"model.{name} must be below 2^31, got {getattr(self, name)}")
        if self.width % self.heads:
            fitting = [heads for heads in range(1, min(self.width, 4096) + 1) if self.width % heads == 0]
            near = sorted(fitting, key=lambda heads: abs(heads - self.heads))[:3]
            raise ValueError(
                f"model.heads must divide model.width={self.width}, got {self.heads}; the nearest that do: {sorted(near)}"
            )
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"model.{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("layer_norm_epsilon", "initializer_range"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"model.{name} must be above 0, got {getattr(self, name)}")
        for name, choices in (
            ("dtype", DTYPES),
            ("remat", REMATS),
            ("attention", IMPLEMENTATIONS),
            ("absolute_positions", ABSOLUTE_POSITIONS),
            ("convolution_activation", ACTIVATIONS),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"model.{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.decoder_passes > 100:  # each is compiled by itself
            raise ValueError(f"model.decoder_passes must be at most 100, got {self.decoder_passes}")
        if self.convolution < 0 or (self.convolution and self.convolution % 2 == 0):
            raise ValueError(f"model.convolution must be odd, or 0 for none, got {self.convolution}")
        self._check_positions()

    def _check_positions(self) -> None:
        """Raise ValueError where positions are added to nothing, or words are to be predicted without any."""
        if (self.absolute_positions == "decoder") != (self.decoder_passes > 0):
            raise ValueError(
                f"model.absolute_positions={self.absolute_positions} and model.decoder_passes={self.decoder_passes} do not go "
                "together: the enhanced mask decoder is what takes positions at `decoder`, and needs them; set "
                "absolute_positions=decoder with decoder_passes of at least 1, or decoder_passes=0 with input or none"
            )
        if self.absolute_positions == "none" and not self.relative.terms:
            raise ValueError(
                "model.absolute_positions=none leaves an encoder without any order of its words: set model.relative.terms, "
                "such as c2p,p2c"
            )

    @property
    def is_projected(self) -> bool:
        """Whether embeddings have a width of their own."""
        return self.embedding_width not in (0, self.width)

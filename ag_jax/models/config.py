"""The shape of an encoder."""

import dataclasses

DTYPES = ("float32", "bfloat16")
REMATS = ("none", "layer", "dots")
IMPLEMENTATIONS = ("auto", "reference", "tpu", "gpu")


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """Architecture of an encoder; the defaults are RoBERTa-base with the vocabulary still to be filled in.

    vocabulary_size: 0 takes the size of the tokenizer.
    max_length: the longest row of tokens; the position table has `max_length + position_offset` entries.
    position_offset: RoBERTa counts positions from its padding id + 1 = 2, BERT from 0.
    segments: number of segment (token type) embeddings; RoBERTa has 1.
    feedforward: width of the feed-forward layer; 0 means 4 * width.
    embedding_width: of the embeddings, which are then projected to `width` (ELECTRA); 0 means `width`, without a projection.
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
    segments: int = 1
    dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    dtype: str = "float32"
    remat: str = "dots"
    attention: str = "auto"

    def __post_init__(self):
        for name in ("layers", "heads", "width", "max_length", "segments"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("vocabulary_size", "feedforward", "embedding_width", "position_offset"):
            if getattr(self, name) < 0:
                raise ValueError(f"model.{name} must be at least 0, got {getattr(self, name)}")
        if self.width % self.heads:
            fitting = [heads for heads in range(1, self.width + 1) if self.width % heads == 0]
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
        for name, choices in (("dtype", DTYPES), ("remat", REMATS), ("attention", IMPLEMENTATIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"model.{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")

    @property
    def is_projected(self) -> bool:
        """Whether embeddings have a width of their own."""
        return self.embedding_width not in (0, self.width)

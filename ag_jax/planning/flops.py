"""FLOPs that a training step is worth, whatever a program spends on it.

Matrix products alone, 2 FLOPs a multiply-add; the backward pass costs twice the forward pass, and what `model.remat` computes
again is not counted. A token of a row of T tokens, with N layers of width d, F features and V words, costs

    body       6 N (4 d^2 + 2 d F)     attention   12 N d T     head   6 (M / T) (d^2 + d V)

where M positions of a row go to the head; the next-sentence head adds 6 (d^2 + 2 d) a row. Attention is not causal: no
halving. Embeddings are looked up, which is no product.
"""

import dataclasses

from ag_jax.models.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class Flops:
    """FLOPs of the parts of a model, forward and backward."""

    body: float
    attention: float
    head: float
    next_sentence: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return self.body + self.attention + self.head + self.next_sentence


def step_flops(
    config: EncoderConfig, *, rows: int, length: int, predicted: float, next_sentence: bool = False
) -> Flops:
    """FLOPs of a step on `rows` rows of `length` positions.

    predicted: positions of a row at which words are predicted. `corruption.max_masked` is what a program computes, rows
    having as many slots; the masking rate times the length is what the task asks for, and what utilisation is counted with.
    """
    width, features = config.width, config.feedforward or 4 * config.width
    tokens = rows * length
    return Flops(
        body=6.0 * tokens * config.layers * (4 * width**2 + 2 * width * features),
        attention=12.0 * tokens * config.layers * width * length,
        head=6.0 * rows * predicted * (width**2 + width * config.vocabulary_size),
        next_sentence=6.0 * rows * (width**2 + 2 * width) if next_sentence else 0.0,
    )


def mfu(flops: float, seconds: float, devices: int, device_flops: float | None) -> float | None:
    """Share of the devices' peak FLOP/s that `flops` in `seconds` are (Chowdhery et al. 2022, appendix B).

    None if the peak of a device is not known.
    """
    return None if device_flops is None else flops / (seconds * devices * device_flops)


def replaced_tokens_flops(
    config: EncoderConfig, generator: EncoderConfig | None, *, rows: int, length: int, predicted: float
) -> Flops:
    """FLOPs of a step of replaced-token detection: the encoder's, its head's on every token, and those of the generator.

    With embeddings of width e, a detecting head costs 6 (d^2 + d) a token, a projection 6 e d, and the generator's words
    6 (d e + e V) a masked position, of which there are `predicted` in a row. Sampling uses the scores that the loss needs.
    """

    tokens = rows * length

    def body(encoder: EncoderConfig) -> Flops:
        of_layers = step_flops(dataclasses.replace(encoder, embedding_width=0), rows=rows, length=length, predicted=0)
        projection = 6.0 * tokens * encoder.embedding_width * encoder.width if encoder.is_projected else 0.0
        return dataclasses.replace(of_layers, body=of_layers.body + projection)

    parts = body(config)
    head = 6.0 * tokens * (config.width**2 + config.width)
    if generator is None:
        return dataclasses.replace(parts, head=head)
    small, embedded = body(generator), generator.embedding_width or generator.width
    words = 6.0 * rows * predicted * (generator.width * embedded + embedded * generator.vocabulary_size)
    return Flops(body=parts.body + small.body, attention=parts.attention + small.attention, head=head + words)

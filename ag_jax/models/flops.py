"""FLOPs that a training step is worth, whatever a program spends on it.

Matrix products alone, 2 FLOPs a multiply-add; the backward pass costs twice the forward pass, and what `model.remat` computes
again is not counted. A token of a row of T tokens, with N layers of width d, F features and V words, costs

    body       6 N (4 d^2 + 2 d F)     attention   12 N d T     head   6 (M / T) (d^2 + d V)

where M positions of a row go to the head; the next-sentence head adds 6 (d^2 + 2 d) a row. Attention is not causal: no
halving. Embeddings are looked up, which is no product. Embeddings of a width e of their own add 6 e d a token, and change the
head to 6 (M / T) (d e + e V).

What DeBERTa has besides costs a token, with R the smaller of 2 T - 1 and the rows of the table of distances,

    disentangled attention, a term    6 N d min(T, R)     and, once a step and not a token,    6 N R d^2
    convolution of C tokens           6 C d^2
    a pass of the mask decoder        as one more layer, at the M positions that are predicted; keys and values once for all T

A token is at T distances from others, no more, so that is all that a term is worth; the program multiplies with 2 T
(`attention.disentangled`). In every pass of the decoder it projects keys and values again, and position to content is computed for
all T positions, of which M are taken.
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
    decoder: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return self.body + self.attention + self.head + self.next_sentence + self.decoder


def step_flops(
    config: EncoderConfig, *, rows: int, length: int, predicted: float, next_sentence: bool = False
) -> Flops:
    """FLOPs of a step on `rows` rows of `length` positions.

    predicted: positions of a row at which words are predicted. `corruption.max_masked` is what a program computes, rows
    having as many slots; the masking rate times the length is what the task asks for, and what utilisation is counted with.
    """
    width, features, layers = config.width, config.feedforward or 4 * config.width, config.layers
    embedded, tokens, asked = config.embedding_width or width, rows * length, rows * predicted
    body = layers * (4 * width**2 + 2 * width * features) + (config.convolution or 0) * width**2
    if config.is_projected:
        body += embedded * width
    # Of the layer that the decoder repeats: queries, output and feed-forward at the asked positions, keys and values once.
    repeated = asked * config.mask_decoder_passes * (2 * width**2 + 2 * width * features) + tokens * 2 * width**2
    met, projections = _distances(config, length)
    of_pair = 2 * width  # scores and mixing
    attention = tokens * layers * (of_pair * length + width * met) + layers * projections
    decoder = repeated + asked * config.mask_decoder_passes * (of_pair * length + width * met) + projections
    return Flops(
        body=6.0 * tokens * body,
        attention=6.0 * attention,
        head=6.0 * asked * (width * embedded + embedded * config.vocabulary_size),
        next_sentence=6.0 * rows * (width**2 + 2 * width) if next_sentence else 0.0,
        decoder=6.0 * decoder if config.mask_decoder_passes else 0.0,
    )


def _distances(config: EncoderConfig, length: int) -> tuple[int, int]:
    """Distances that a token is at from others, of all terms, and multiply-adds of their projections in one layer."""
    terms, table = len(config.relative.names), min(2 * length - 1, 2 * config.relative.half)
    return terms * min(length, table), terms * table * config.width**2


def mfu(flops: float, seconds: float, devices: int, device_flops: float | None) -> float | None:
    """Share of the devices' peak FLOP/s that `flops` in `seconds` are (Chowdhery et al. 2022, appendix B).

    None if the peak of a device is not known.
    """
    return None if device_flops is None else flops / (seconds * devices * device_flops)


def replaced_tokens_flops(
    config: EncoderConfig, generator: EncoderConfig | None, *, rows: int, length: int, predicted: float
) -> Flops:
    """FLOPs of a step of replaced-token detection: the encoder's, its head's on every token, and those of the generator.

    The detecting head costs 6 (d^2 + d) a token; no word is predicted by the encoder, so nothing is decoded for it. Sampling
    uses the scores that the generator's loss needs.
    """
    encoder = step_flops(config, rows=rows, length=length, predicted=0)
    parts = dataclasses.replace(encoder, head=6.0 * rows * length * (config.width**2 + config.width), decoder=0.0)
    if generator is None:
        return parts
    small = step_flops(generator, rows=rows, length=length, predicted=predicted)
    return Flops(**{name: value + getattr(small, name) for name, value in vars(parts).items()})

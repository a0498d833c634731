"""Model FLOPs of a training step, counted from the architecture and not from what a compiled program executes.

Only matrix products are counted, with 2 FLOPs a multiply-add. The backward pass costs twice the forward pass, and what
`model.remat` recomputes is not counted. A token of a row of T tokens, with N layers of width d, F feed-forward features
and V words, costs

    body       6 N (4 d^2 + 2 d F)     attention   12 N d T     head   6 (M / T) (d^2 + d V)

with 3 d F instead of 2 d F in gated feed-forward layers, and in layers with a window of W tokens the at most
2 floor(W / 2) + 1 keys that a query sees instead of T,

where M positions of a row go to the head; the next-sentence head adds 6 (d^2 + 2 d) a row. An encoder's attention is
not causal, so it is not halved. Embeddings are looked up, without a matrix product. An embedding width e other than d
adds 6 e d a token for the projection, and changes the head to 6 (M / T) (d e + e V).

The additional parts of DeBERTa cost a token, with R the smaller of 2 T - 1 and the rows of the table of distances,

    disentangled attention, a term    6 N d min(T, R)     and, once a step and not a token,    6 N R d^2
    convolution of C tokens           6 C d^2
    a pass of the mask decoder        as one more layer, at the M predicted positions; keys and values once for all T

A token has at most T different distances to other tokens, so only T are counted for a term; the program multiplies with
2 T (`attention.disentangled`). The program also projects keys and values again in every pass of the decoder, and it
computes position-to-content scores for all T positions, of which it uses M.
"""

import dataclasses

from ag_jax.models.config import DecoderConfig, EncoderConfig


@dataclasses.dataclass(frozen=True)
class Flops:
    """FLOPs of a training step (forward and backward pass), by part of the model.

    body: projections and feed-forward layers, the convolution and the projection of embeddings.
    attention: scores, mixing, and relative positions.
    head: prediction of masked words, or detection of replaced tokens.
    next_sentence: next-sentence head.
    decoder: passes of the enhanced mask decoder.
    """

    body: float
    attention: float
    head: float
    next_sentence: float = 0.0
    decoder: float = 0.0

    @property
    def total(self) -> float:
        """FLOPs of a training step, summed over all parts of the model."""
        return self.body + self.attention + self.head + self.next_sentence + self.decoder


def step_flops(
    config: EncoderConfig, *, rows: int, length: int, predicted: float, next_sentence: bool = False
) -> Flops:
    """Return the FLOPs of an encoder's training step on `rows` rows of `length` positions, `predicted` of each masked.

    predicted: positions of a row at which words are predicted. A program computes `corruption.max_masked`, the number
        of slots of a row; the task needs the masking rate times the length, and utilisation is computed with that.
    next_sentence: whether the model has a next-sentence head.
    """
    width, features, layers = config.width, config.feedforward or 4 * config.width, config.layers
    embedded, tokens, predictions = config.embedding_width or width, rows * length, rows * predicted
    products = 3 if config.gated else 2
    body = layers * (4 * width**2 + products * width * features) + (config.convolution or 0) * width**2
    if config.is_projected:
        body += embedded * width
    # In the layer that the decoder repeats, queries, output and feed-forward are needed only at the predicted
    # positions; keys and values do not change between passes, so they count once.
    pass_cost = 2 * width**2 + products * width * features
    repeated = predictions * config.mask_decoder_passes * pass_cost + tokens * 2 * width**2
    distances, projections = _relative_costs(config, length)
    pair_cost = 2 * width  # scores and mixing
    keys = sum(_visible_keys(config, is_local, length) for is_local in config.local_layers)
    attention = tokens * (pair_cost * keys + layers * width * distances) + layers * projections
    decoder_pairs = predictions * config.mask_decoder_passes * (pair_cost * length + width * distances)
    return Flops(
        body=6.0 * tokens * body,
        attention=6.0 * attention,
        head=6.0 * predictions * (width * embedded + embedded * config.vocabulary_size),
        next_sentence=6.0 * rows * (width**2 + 2 * width) if next_sentence else 0.0,
        decoder=6.0 * (repeated + decoder_pairs + projections) if config.mask_decoder_passes else 0.0,
    )


def _visible_keys(config: EncoderConfig, is_local: bool, length: int) -> int:
    """Return the most keys to which a query of a layer attends, in rows of `length` tokens."""
    return min(length, 2 * (config.window // 2) + 1) if is_local and config.window else length


def _relative_costs(config: EncoderConfig, length: int) -> tuple[int, int]:
    """Return the cost of relative positions in a layer: (scores per query and head, multiply-adds of projections).

    The first is the number of additional scores of each query in each head, the second that of multiply-adds of the
    projections of the relative positions.

    A query has one additional score for each distance to other tokens, in each term (c2p, p2c) of disentangled
    attention. The projections are of the whole table of distances, once a step.
    """
    terms, table = len(config.relative.names), min(2 * length - 1, 2 * config.relative.half)
    return terms * min(length, table), terms * table * config.width**2


def mfu(flops: float, seconds: float, devices: int, device_flops: float | None) -> float | None:
    """Return the model FLOPs utilisation, the share of peak FLOP/s reached; None if `device_flops` is None.

    The definition is that of Chowdhery et al. 2022, appendix B.

    flops: model FLOPs computed in `seconds` by `devices` devices.
    device_flops: peak FLOP/s of one device; None if unknown, and then None is returned.
    """
    return None if device_flops is None else flops / (seconds * devices * device_flops)


def replaced_tokens_flops(
    config: EncoderConfig, generator: EncoderConfig | None, *, rows: int, length: int, predicted: float
) -> Flops:
    """Return the FLOPs of a replaced-token training step: encoder, detection head on every token, generator if any.

    The generator predicts words at `predicted` positions of each row.

    The detection head costs 6 (d^2 + d) a token. The encoder predicts no words, so its mask decoder is not counted.
    Sampling costs nothing more, because it uses the scores that the generator's loss needs.
    """
    encoder = step_flops(config, rows=rows, length=length, predicted=0)
    parts = dataclasses.replace(encoder, head=6.0 * rows * length * (config.width**2 + config.width), decoder=0.0)
    if generator is None:
        return parts
    small = step_flops(generator, rows=rows, length=length, predicted=predicted)
    return Flops(**{name: value + getattr(small, name) for name, value in vars(parts).items()})


def translation_flops(config: EncoderConfig, decoder: DecoderConfig, *, rows: int, length: int) -> Flops:
    """Return the FLOPs of an encoder-decoder's training step on `rows` rows with `length` positions on each side.

    A layer of the decoder costs 6 (4 d^2 + 2 d F) a target token for self-attention and feed-forward, 6 * 2 d^2 a
    target token and 6 * 2 d^2 a source token for the projections of the attention to the source, and 12 d T for each of
    the two kinds of attention, of which the causal one is not halved. Each target position predicts a word, which costs
    6 d V. Heads with hard-coded weights have no projections to queries and keys, and no scores.
    """
    width, features, tokens = config.width, config.feedforward or 4 * config.width, rows * length
    embedded = config.embedding_width or width
    encoder_projections, encoder_pairs = (2, 0) if config.fixed_attention.offsets else (4, 2)
    decoder_projections, decoder_pairs = (2, 0) if decoder.fixed_attention.offsets else (4, 2)
    feedforward = (3 if config.gated else 2) * width * features
    encoder_layer = encoder_projections * width**2 + feedforward
    decoder_layer = (decoder_projections + 4) * width**2 + feedforward
    body = config.layers * encoder_layer + decoder.layers * decoder_layer
    if config.is_projected:
        body += 3 * embedded * width  # both sides' embeddings, and the decoder's output
    pairs = config.layers * encoder_pairs + decoder.layers * (decoder_pairs + 2)
    return Flops(
        body=6.0 * tokens * body,
        attention=6.0 * tokens * pairs * width * length,
        head=6.0 * tokens * embedded * config.vocabulary_size,
    )

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

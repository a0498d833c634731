"""Embeddings of token ids, positions and token types, as the input of the first layer.

Shape letters: B batch, L length, D width, E width of the embeddings.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.attention import segments
from ag_jax.attention.dropout import Dropout
from ag_jax.models import layers
from ag_jax.models.config import EncoderConfig


def sinusoids(config: EncoderConfig, order: Array, width: int) -> Array:
    """Return sinusoidal embeddings of the positions `order`, float32, with a new last axis of length `width`.

    Vaswani et al. 2017, section 3.5, with the sines in the first half of the vector and the cosines in the second. The
    angle is order * 10000^(-2i/d) with `sinusoid=marian`, and order * 10000^(-i/(d/2 - 1)) with `tensor2tensor`.

    order: positions, from 0.
    """
    half = width // 2
    divisor = half if config.sinusoid == "marian" else max(half - 1, 1)
    # In float64, because an error of the frequency is multiplied by the position.
    frequencies = np.asarray(10_000.0 ** (-np.arange(half) / divisor), np.float32)
    angles = order.astype(jnp.float32)[..., None] * frequencies.reshape(*[1] * order.ndim, half)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


class Embeddings(nn.Module):
    """Embedding layer: dropout(LayerNorm(word + position + token type)) of each token (Devlin et al. 2019, figure 2).

    Token types and LayerNorm may be left out, and positions may be left out, as rotary ones are, or added in the
    enhanced mask decoder instead (He et al. 2021). With `embedding_scale`, word embeddings are multiplied by sqrt(E)
    (Vaswani et al. 2017, section 3.4).

    If the embeddings' width differs from the encoder's, they are projected to it after dropout (Clark et al. 2020,
    section 3.2).
    """

    config: EncoderConfig

    def setup(self):
        config = self.config
        init = layers.initializer(config)

        def table(rows: int, axis: str, width: int = config.embedding_width or config.width) -> nn.Embed:
            return nn.Embed(
                rows,
                width,
                dtype=jnp.dtype(config.dtype),
                embedding_init=nn.with_logical_partitioning(init, (axis, "embed")),
            )

        self.word = table(config.vocabulary_size, "vocabulary")
        if config.positions == "learned" and config.absolute_positions != "none":
            # For the mask decoder, in the encoder's width, because they are added to hidden states.
            settings = {} if config.absolute_positions == "input" else {"width": config.width}
            self.position = table(config.max_length + config.position_offset, "position", **settings)
        if config.token_types:
            self.segment = table(config.token_types, "segment")
        if config.embedding_norm:
            self.norm = layers.normalization(config)
        self.dropout = Dropout(config.dropout)
        if config.is_projected:
            self.projection = layers.dense(config, config.width, ("embed", "embed_out"))

    def __call__(
        self,
        tokens_BL: Array,
        segments_BL: Array,
        token_types_BL: Array,
        embedding_delta: Array | None,
        deterministic: bool,
        on_sum: Callable[[Array], Array] | None = None,
    ) -> Array:
        """Return the embedded tokens `BLE` in the width E of the embeddings, not yet projected to the encoder's width.

        segments_BL: segment ids, one for each text of a row; 0 is padding.
        embedding_delta: `BLE`, added to the word embeddings (FreeLB, SMART); None adds nothing.
        on_sum: maps the sum of the embeddings to what LayerNorm gets instead (SiFT); None changes nothing.
        """
        words_BLE = self.word(tokens_BL)
        if embedding_delta is not None:
            words_BLE = words_BLE + embedding_delta
        summed_BLE = self.with_positions(words_BLE, segments.order(segments_BL), segments_BL > 0)
        if self.config.token_types:
            summed_BLE = summed_BLE + self.segment(token_types_BL)
        # Before LayerNorm, whose result for normalised sums is nearly that for plain ones, so that a model trained with
        # normalised sums can be used without them.
        if on_sum is not None:
            summed_BLE = on_sum(summed_BLE)
        # Not projected, because a generator shares these embeddings and has a projection of its own.
        return self.finish(summed_BLE, deterministic)

    def with_positions(self, words_BLE: Array, order_BL: Array, is_token_BL: Array | bool = True) -> Array:
        """Return the word embeddings, scaled if so configured, plus position embeddings if the model adds them here.

        With `absolute_positions=decoder`, positions are added to hidden states later (`Encoder.with_mask_decoder`).

        order_BL, is_token_BL: as in `at_positions`.
        """
        if self.config.embedding_scale:
            words_BLE = words_BLE * math.sqrt(words_BLE.shape[-1])
        is_added = self.config.absolute_positions == "input" and self.config.positions != "rotary"
        return words_BLE + self.at_positions(order_BL, is_token_BL) if is_added else words_BLE

    def finish(self, summed_BLE: Array, deterministic: bool) -> Array:
        """Apply LayerNorm, if the model has it after the embeddings, and dropout to the sum of the embeddings."""
        # An attack adds float32 numbers; without LayerNorm nothing else would make them as narrow as the model's.
        normed_BLE = self.norm(summed_BLE) if self.config.embedding_norm else summed_BLE.astype(self.config.dtype)
        return self.dropout(normed_BLE, deterministic=deterministic)

    def positions(self, segments_BL: Array) -> Array:
        """Return the position embeddings, `BLD`, with positions counted from the start of each token's own text."""
        # Positions are counted within each text, so left padding would not shift them. Padding reads row 0.
        return self.at_positions(segments.order(segments_BL), segments_BL > 0)

    def at_positions(self, order: Array, is_token: Array | bool = True) -> Array:
        """Return the embeddings of positions `order`, from 0; the embedding of padding where `is_token` is false.

        Sinusoidal positions have no embedding of padding.
        """
        config = self.config
        if config.positions == "sinusoidal":
            width = config.width if config.absolute_positions == "decoder" else config.embedding_width or config.width
            return sinusoids(config, order, width).astype(config.dtype)
        return self.position(jnp.where(is_token, order + config.position_offset, 0))

    def project(self, embedded_BLE: Array) -> Array:
        """Project embedded tokens to the encoder's width, `BLD`; return them unchanged if the widths are equal."""
        return self.projection(embedded_BLE) if self.config.is_projected else embedded_BLE

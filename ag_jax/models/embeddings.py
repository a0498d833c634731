"""Embeddings of token ids, positions and token types, as the input of the first layer.

Shape letters: B batch, L length, D width, E width of the embeddings.
"""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments
from ag_jax.attention.dropout import Dropout
from ag_jax.models import layers
from ag_jax.models.config import EncoderConfig


class Embeddings(nn.Module):
    """Dropout(LayerNorm(word + position + token type)) of each token (Devlin et al. 2019, figure 2).

    Token types may be left out, and positions may be left out or added in the enhanced mask decoder instead
    (He et al. 2021).

    If the embeddings' width differs from the encoder's, they are projected to it after dropout (Clark et al. 2020,
    section 3.2).
    """

    config: EncoderConfig

    def setup(self):
        config = self.config
        init = nn.initializers.normal(config.initializer_range)

        def table(rows: int, axis: str, width: int = config.embedding_width or config.width) -> nn.Embed:
            return nn.Embed(
                rows,
                width,
                dtype=jnp.dtype(config.dtype),
                embedding_init=nn.with_logical_partitioning(init, (axis, "embed")),
            )

        self.word = table(config.vocabulary_size, "vocabulary")
        positions = config.max_length + config.position_offset
        if config.absolute_positions == "input":
            self.position = table(positions, "position")
        elif config.absolute_positions == "decoder":  # in the encoder's width, because they are added to hidden states
            self.position = table(positions, "position", config.width)
        if config.token_types:
            self.segment = table(config.token_types, "segment")
        self.norm = layers.layer_norm(config)
        self.dropout = Dropout(config.dropout)
        if config.is_projected:
            self.projection = layers.dense(config, config.width, ("embed", "embed_out"), "projection")

    def __call__(
        self,
        tokens_BL: Array,
        segments_BL: Array,
        token_types_BL: Array,
        embedding_delta: Array | None,
        deterministic: bool,
        on_sum: Callable[[Array], Array] | None = None,
    ) -> Array:
        """Return the embedded tokens `BLE`, in the width E of the embeddings: they are not projected yet (`project`).

        segments_BL: segment ids, one for each text of a row; 0 is padding.
        embedding_delta: `BLE`, added to the word embeddings (FreeLB, SMART); None adds nothing.
        on_sum: maps the sum of the embeddings to what LayerNorm gets instead (SiFT); None changes nothing.
        """
        words_BLE = self.word(tokens_BL)
        if embedding_delta is not None:
            words_BLE = words_BLE + embedding_delta
        summed_BLE = words_BLE
        # With `decoder`, positions are added to hidden states later, in `Encoder.with_mask_decoder`.
        if self.config.absolute_positions == "input":
            summed_BLE = summed_BLE + self.positions(segments_BL)
        if self.config.token_types:
            summed_BLE = summed_BLE + self.segment(token_types_BL)
        # Before LayerNorm, whose result for normalised sums is nearly that for plain ones, so that a model trained with
        # normalised sums can be used without them.
        if on_sum is not None:
            summed_BLE = on_sum(summed_BLE)
        # Not projected, because a generator shares these embeddings and has a projection of its own.
        return self.dropout(self.norm(summed_BLE), deterministic=deterministic)

    def positions(self, segments_BL: Array) -> Array:
        """Return the position embeddings, `BLD`, with positions counted from the start of each token's own text."""
        # Positions are counted within each text, so left padding would not shift them. Padding reads row 0.
        order_BL = segments.order(segments_BL) + self.config.position_offset
        return self.position(jnp.where(segments_BL > 0, order_BL, 0))

    def project(self, embedded_BLE: Array) -> Array:
        """Project embedded tokens to the encoder's width, `BLD`; returns them unchanged if the widths are equal."""
        return self.projection(embedded_BLE) if self.config.is_projected else embedded_BLE

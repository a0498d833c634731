"""From token ids to the vectors that enter the first layer.

Shape letters: B batch, L length, D width, E width of the embeddings.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from ag_jax.attention import segments
from ag_jax.attention.dropout import Dropout
from ag_jax.models import layers
from ag_jax.models.config import EncoderConfig

Array = jax.Array


class Embeddings(nn.Module):
    """LayerNorm(word + position + segment), then dropout (Devlin et al. 2019, figure 2).

    Positions may instead be left to the enhanced mask decoder, or out, and so may segments (He et al. 2021).

    Embeddings of a width of their own are projected to the encoder's last of all (Clark et al. 2020, section 3.2).
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
        elif config.absolute_positions == "decoder":  # which adds them to hidden states
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
        """Vectors in the width of the embeddings, which `project` takes to the encoder's.

        `embedding_delta` is added to the word embeddings: the port of FreeLB and SMART. `on_sum` takes the sum before
        LayerNorm to another one: that of SiFT.
        """
        words_BLD = self.word(tokens_BL)
        if embedding_delta is not None:
            words_BLD = words_BLD + embedding_delta
        summed_BLD = words_BLD
        if self.config.absolute_positions == "input":
            summed_BLD = summed_BLD + self.positions(segments_BL)
        if self.config.token_types:
            summed_BLD = summed_BLD + self.segment(token_types_BL)
        if on_sum is not None:
            summed_BLD = on_sum(summed_BLD)
        return self.dropout(self.norm(summed_BLD), deterministic=deterministic)

    def positions(self, segments_BL: Array) -> Array:
        """The embedding of every token's place in its own text, `BLD`."""
        # Places count the tokens of their own text only, so that left padding would not shift them; padding reads row
        # 0.
        order_BL = segments.order(segments_BL) + self.config.position_offset
        return self.position(jnp.where(segments_BL > 0, order_BL, 0))

    def project(self, embedded_BLE: Array) -> Array:
        """Vectors `BLD` that enter the first layer: the same, if embeddings have no width of their own."""
        return self.projection(embedded_BLE) if self.config.is_projected else embedded_BLE

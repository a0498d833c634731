"""Transformer decoder: a scanned stack of layers that read an encoder's output while they write a text.

Shape letters: B batch, T target length, S source length, J beams, D width, H head, W width of a head, N layers.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import guidance
from ag_jax.attention.dropout import Dropout
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.attention.multihead import KeysAndValues
from ag_jax.models import layers
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.encoder import REMAT_POLICIES


@flax.struct.dataclass
class DecoderContext:
    """Arguments that all layers of a decoder share, besides the hidden states.

    source_BSD: the encoder's output.
    source_segments_BS: segment ids of the source; a text and its translation have the same id, padding has 0.
    segments_BT: segment ids of the target.
    guides: patterns for the guided heads of the self-attention.
    cross_guides: patterns for the guided heads of the attention to the source.
    deterministic: whether dropout is off.
    """

    source_BSD: Array
    source_segments_BS: Array
    segments_BT: Array
    guides: guidance.Guides | None = None
    cross_guides: guidance.Guides | None = None
    deterministic: bool = flax.struct.field(pytree_node=False, default=True)


def with_room(cache: KeysAndValues, length: int) -> KeysAndValues:
    """Return a decoder's cache, `NBJTHW`, with room for T = `length` tokens, which is more than it had."""

    def padded(leaf: Array) -> Array:
        return jnp.pad(leaf, [(0, length - size if axis == 3 else 0) for axis, size in enumerate(leaf.shape)])

    return jax.tree.map(padded, cache)


class DecoderLayer(nn.Module):
    """Layer of a decoder: causal self-attention, attention to the source, feed-forward; each in a residual sum.

    Vaswani et al. 2017, section 3.1. LayerNorm is where `residual` says, and dropout is applied before each sum.

    attend: implementation of the self-attention.
    cross_attend: implementation of the attention to the source.
    """

    config: EncoderConfig
    decoder: DecoderConfig
    attend: Attend = reference.attend
    cross_attend: Attend = reference.attend

    def setup(self):
        config = self.config
        self.attention = layers.attention(config, self.attend, fixed=self.decoder.fixed_attention)
        self.attention_norm = layers.layer_norm(config)
        self.cross_attention = layers.attention(config, self.cross_attend)
        self.cross_attention_norm = layers.layer_norm(config)
        self.feedforward_in, self.feedforward_out = layers.feedforward_layers(config)
        self.feedforward_norm = layers.layer_norm(config)
        self.dropout = Dropout(config.dropout)

    def __call__(self, hidden_BTD: Array, context: DecoderContext) -> Array:
        """Return the hidden states after the layer, `BTD`; every position sees itself and what is before it."""
        segments_BT = context.segments_BT

        def read_target(normed_BTD: Array) -> Array:
            return self.attention(
                normed_BTD,
                normed_BTD,
                segments_BT,
                segments_BT,
                causal=True,
                guides=context.guides,
                deterministic=context.deterministic,
            )

        def read_source(normed_BTD: Array) -> Array:
            return self.cross_attention(
                normed_BTD,
                context.source_BSD,
                segments_BT,
                context.source_segments_BS,
                guides=context.cross_guides,
                deterministic=context.deterministic,
            )

        return self._layer(hidden_BTD, read_target, read_source, context.deterministic)

    def source_keys_and_values(self, source_BSD: Array) -> KeysAndValues:
        """Return keys and values of the attention to the source, which stay the same while a text is decoded."""
        return self.cross_attention.keys_and_values(source_BSD)

    def step(
        self,
        hidden_BJD: Array,
        earlier: KeysAndValues,
        source: KeysAndValues,
        source_segments_BS: Array,
        index: Array,
    ) -> tuple[Array, KeysAndValues]:
        """Compute the layer for the next token of each of J beams, at the position `index`, without dropout.

        earlier: keys and values of the tokens before, `BJTHW`.
        source: keys and values of the source, `BSHW`, the same for all beams of a sentence.

        Returns the hidden states after the layer, `BJD`, and `earlier` with the token's key and value added.
        """
        known = earlier

        def read_target(normed_BJD: Array) -> Array:
            nonlocal known
            # Every beam has keys of its own, so beams are like rows of a batch.
            rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), earlier)
            mixed, known_rows = self.attention.at_step(normed_BJD.reshape(-1, normed_BJD.shape[-1]), rows, index)
            known = jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), known_rows, earlier)
            return mixed.reshape(normed_BJD.shape)

        def read_source(normed_BJD: Array) -> Array:
            # All beams of a sentence read the same keys, as if they were positions of one text.
            is_source_BS = (source_segments_BS > 0).astype(jnp.int32)
            ones_BJ = jnp.ones(normed_BJD.shape[:2], jnp.int32)
            return self.cross_attention.read(normed_BJD, source, ones_BJ, is_source_BS)

        return self._layer(hidden_BJD, read_target, read_source, deterministic=True), known

    def _layer(self, x: Array, read_target: Any, read_source: Any, deterministic: bool) -> Array:
        """Apply the three parts of the layer, given functions that compute the two kinds of attention."""

        def drop(x: Array) -> Array:
            return self.dropout(x, deterministic=deterministic)

        config = self.config
        feedforward = layers.feedforward(config, self.feedforward_in, self.feedforward_out)
        x = layers.residual(config, x, read_target, self.attention_norm, drop)
        x = layers.residual(config, x, read_source, self.cross_attention_norm, drop)
        return layers.residual(config, x, feedforward, self.feedforward_norm, drop)


class Decoder(nn.Module):
    """Stack of decoder layers, scanned, with a LayerNorm after the last one if `config.norm_position` is `pre`.

    As in the encoder, parameters and everything that attention sows have a leading axis N over the layers: with
    `mutable=["intermediates"]`, `intermediates["decoder"]["layers"]["attention"]["attention_weights"][0]` is `NBHTT`,
    and below `cross_attention` it is `NBHTS`.

    attend: implementation of the self-attention.
    cross_attend: implementation of the attention to the source.
    """

    config: EncoderConfig
    decoder: DecoderConfig
    attend: Attend = reference.attend
    cross_attend: Attend = reference.attend

    def setup(self):
        self.layers = DecoderLayer(self.config, self.decoder, self.attend, self.cross_attend)
        if self.config.norm_position == "pre":
            self.final_norm = layers.layer_norm(self.config)

    def __call__(self, hidden_BTD: Array, context: DecoderContext) -> Array:
        """Return the last hidden states `BTD` of the embedded target `hidden_BTD`."""

        def step(layer, hidden_BTD, context):
            return layer(hidden_BTD, context), None

        remat = self.config.remat
        if remat != "none":  # inside a scan, XLA cannot undo the recomputation by CSE
            step = nn.remat(step, policy=REMAT_POLICIES[remat], prevent_cse=False)
        scanned = nn.scan(
            step,
            variable_axes={"params": 0, "intermediates": 0, "statistics": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=self.decoder.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        hidden_BTD, _ = scanned(self.layers, hidden_BTD, context)
        return self._finish(hidden_BTD)

    def source_keys_and_values(self, source_BSD: Array) -> KeysAndValues:
        """Return the keys and values of the source in every layer, `NBSHW`."""

        def project(layer, carry, _):
            return carry, layer.source_keys_and_values(source_BSD)

        _, found = self._over_layers(project)(self.layers, (), jnp.arange(self.decoder.layers))
        return found

    def empty_cache(self, batch: int, beams: int, length: int) -> KeysAndValues:
        """Return the keys and values of no tokens yet, `NBJTHW`, with room for T = `length` tokens."""
        config = self.config
        shape = (self.decoder.layers, batch, beams, length, config.heads, config.width // config.heads)
        zeros = jnp.zeros(shape, config.dtype)
        return KeysAndValues(None if self.decoder.fixed_attention.offsets else zeros, zeros)

    def step(
        self,
        hidden_BJD: Array,
        cache: KeysAndValues,
        source: KeysAndValues,
        source_segments_BS: Array,
        index: Array,
    ) -> tuple[Array, KeysAndValues]:
        """Run the layers for the next token of each of J beams, at the position `index`.

        cache: keys and values of the tokens before, in every layer (`empty_cache`).
        source: the result of `source_keys_and_values`.

        Returns the last hidden states, `BJD`, and `cache` with the token added.
        """

        def one(layer, hidden_BJD, given):
            earlier, source = given
            return layer.step(hidden_BJD, earlier, source, source_segments_BS, index)

        hidden_BJD, cache = self._over_layers(one)(self.layers, hidden_BJD, (cache, source))
        return self._finish(hidden_BJD), cache

    def _over_layers(self, function: Any) -> Any:
        """Return a scan of `function` over the layers: (layers, carry, inputs of each layer) -> (carry, results)."""
        return nn.scan(
            function,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.decoder.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )

    def _finish(self, x: Array) -> Array:
        return self.final_norm(x) if self.config.norm_position == "pre" else x

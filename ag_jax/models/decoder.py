"""Transformer decoder: a scanned stack of layers that read an encoder's output while they write a text.

Shape letters: B batch, T target length, S source length, J beams, I beams in whose places tokens are stored, K = T * J
places of a cache, D width, H head, W width of a head, N layers.
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
from ag_jax.models.encoder import over_layers


@flax.struct.dataclass
class DecoderContext:
    """Arguments that all decoder layers share besides the hidden states: source, segment ids, guides, dropout.

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


@flax.struct.dataclass
class DecoderCache:
    """Keys and values of the tokens that J beams of each sentence have decoded so far.

    They stay where they were stored when beams are replaced by others, because moving them would take longer than the
    rest of a step. Instead, `stored_BJT` says where the tokens of each beam are.

    layers: those of each layer, in the places that `MultiHeadAttention.at_step` describes, with room for T tokens of
        each beam.
    stored_BJT: for each beam and position, the beam in whose place of `layers` the keys and values of the token are.
    """

    layers: tuple[KeysAndValues, ...]
    stored_BJT: Array


def with_room(cache: DecoderCache, length: int) -> DecoderCache:
    """Return a decoder's cache, padded so that it has room for `length` tokens, more than before."""
    _, beams, before = cache.stored_BJT.shape

    def padded(leaf: Array, axis: int, count: int) -> Array:
        return jnp.pad(leaf, [(0, count if number == axis else 0) for number in range(leaf.ndim)])

    def grown(layer: KeysAndValues) -> KeysAndValues:
        more = (length - before) * beams
        key_BHWK = None if layer.key_BHWK is None else padded(layer.key_BHWK, 3, more)
        return KeysAndValues(key_BHWK, padded(layer.value_BHKW, 2, more))

    return DecoderCache(tuple(map(grown, cache.layers)), padded(cache.stored_BJT, 2, length - before))


def reorder(cache: DecoderCache, parents_BJ: Array) -> DecoderCache:
    """Return the decoder's cache after each beam j was replaced by beam `parents_BJ[:, j]` of the same sentence."""
    follow = jax.vmap(lambda stored_JT, parents_J: stored_JT[parents_J])
    return DecoderCache(cache.layers, follow(cache.stored_BJT, parents_BJ))


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
        self.attention_norm = layers.normalization(config)
        self.cross_attention = layers.attention(config, self.cross_attend)
        self.cross_attention_norm = layers.normalization(config)
        self.feedforward_in, self.feedforward_gate, self.feedforward_out = layers.feedforward_layers(config)
        self.feedforward_norm = layers.normalization(config)
        self.dropout = Dropout(config.dropout)

    def __call__(self, hidden_BTD: Array, context: DecoderContext) -> Array:
        """Return the hidden states `BTD` after the layer, in which a position attends to itself and those before it."""
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
        """Return this layer's cross-attention keys and values of the source, which stay the same during decoding."""
        return self.cross_attention.keys_and_values(source_BSD)

    def step(
        self,
        hidden_BJD: Array,
        earlier: KeysAndValues,
        source: KeysAndValues,
        visible_BJK: Array,
        source_segments_BS: Array,
        index: Array,
    ) -> tuple[Array, KeysAndValues]:
        """Return the layer's output for the next token of each of J beams, and the layer's cache with the token added.

        The token is at the position `index`, and there is no dropout.

        earlier: keys and values of the tokens before, of all beams.
        source: keys and values of the source, the same for all beams of a sentence.
        visible_BJK: which places of `earlier` each beam sees.

        Returns the hidden states after the layer, `BJD`, and `earlier` with the tokens' keys and values added.
        """
        cache = earlier

        def read_target(normed_BJD: Array) -> Array:
            nonlocal cache
            mixed_BJD, cache = self.attention.at_step(normed_BJD, earlier, visible_BJK, index)
            return mixed_BJD

        def read_source(normed_BJD: Array) -> Array:
            return self.cross_attention.read(normed_BJD, source, (source_segments_BS > 0)[:, None, :])

        return self._layer(hidden_BJD, read_target, read_source, deterministic=True), cache

    def _layer(self, x: Array, read_target: Any, read_source: Any, deterministic: bool) -> Array:
        """Apply self-attention, cross-attention and feed-forward, with both kinds of attention given as functions."""

        def drop(x: Array) -> Array:
            return self.dropout(x, deterministic=deterministic)

        config = self.config
        linear = layers.FeedForward(self.feedforward_in, self.feedforward_gate, self.feedforward_out)
        feedforward = layers.feedforward(config, linear)
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
            self.final_norm = layers.normalization(self.config)

    def __call__(self, hidden_BTD: Array, context: DecoderContext) -> Array:
        """Return the hidden states `BTD` after the last layer, from the embedded target tokens `hidden_BTD`."""

        def step(layer, hidden_BTD, context):
            return layer(hidden_BTD, context), None

        collections = ("params", "intermediates", "statistics")
        scanned = over_layers(self.config, step, self.decoder.layers, collections, in_axes=nn.broadcast)
        hidden_BTD, _ = scanned(self.layers, hidden_BTD, context)
        return self._finish(hidden_BTD)

    def source_keys_and_values(self, source_BSD: Array) -> tuple[KeysAndValues, ...]:
        """Return the cross-attention keys and values of the source in every layer."""
        return tuple(layer.source_keys_and_values(source_BSD) for layer in self._single_layers())

    def empty_cache(self, batch: int, beams: int, length: int) -> DecoderCache:
        """Return a decoding cache without any tokens yet, with room for T = `length` tokens in each beam."""
        config = self.config
        value_BHKW = jnp.zeros((batch, config.heads, length * beams, config.head_width), config.dtype)
        key_BHWK = None if self.decoder.fixed_attention.offsets else value_BHKW.swapaxes(2, 3)
        entries = (KeysAndValues(key_BHWK, value_BHKW),) * self.decoder.layers
        return DecoderCache(entries, jnp.zeros((batch, beams, length), jnp.int32))

    def step(
        self,
        hidden_BJD: Array,
        cache: DecoderCache,
        source: tuple[KeysAndValues, ...],
        source_segments_BS: Array,
        index: Array,
    ) -> tuple[Array, DecoderCache]:
        """Run all layers on the next token of each of J beams; return the last hidden states `BJD` and the new cache.

        cache: keys and values of the tokens before, in every layer (`empty_cache`).
        source: the result of `source_keys_and_values`.

        Returns the last hidden states, `BJD`, and `cache` with the tokens added.
        """
        batch, beams, length = cache.stored_BJT.shape
        beam_BJ1 = jnp.broadcast_to(jnp.arange(beams)[None, :, None], (batch, beams, 1))
        stored_BJT = jax.lax.dynamic_update_slice_in_dim(cache.stored_BJT, beam_BJ1, index, axis=2)
        written_T = jnp.arange(length) <= index
        # Position t has J places, and each beam sees one of them: the place I as which its token there was stored.
        visible_BJTI = jax.nn.one_hot(stored_BJT, beams, dtype=jnp.bool_) & written_T[None, None, :, None]
        visible_BJK = visible_BJTI.reshape(batch, beams, length * beams)
        entries = []
        for layer, earlier, layer_source in zip(self._single_layers(), cache.layers, source, strict=True):
            hidden_BJD, entry = layer.step(hidden_BJD, earlier, layer_source, visible_BJK, source_segments_BS, index)
            entries.append(entry)
        return self._finish(hidden_BJD), DecoderCache(tuple(entries), stored_BJT)

    def _single_layers(self) -> list[DecoderLayer]:
        """Return the decoder layers one by one, each bound to its slice of the stacked parameters.

        Decoding does not scan over layers: a scan copies a layer's cache out of the others' and back in every step.
        """
        stacked = nn.unbox(self.layers.variables["params"])
        return [
            DecoderLayer(self.config, self.decoder, parent=None).bind(
                {"params": jax.tree.map(lambda leaf, number=number: leaf[number], stacked)}
            )
            for number in range(self.decoder.layers)
        ]

    def _finish(self, x: Array) -> Array:
        return self.final_norm(x) if self.config.norm_position == "pre" else x

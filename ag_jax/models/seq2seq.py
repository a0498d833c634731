"""Encoder and decoder for translation, with tied word embeddings.

Shape letters: B batch, S source length, T target length, J beams, D width, E width of the embeddings, V vocabulary.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.attention.multihead import KeysAndValues
from ag_jax.models import encoder, layers
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.decoder import Decoder, DecoderCache, DecoderContext
from ag_jax.models.embeddings import Embeddings
from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.masked_lm import word_scores


@flax.struct.dataclass
class TargetPredictions:
    """Next-token distributions at every target position, stored as hidden states, embeddings and biases.

    hidden_BTD: the decoder's output; projected to the width of the embeddings if that differs.
    embedding_VD: the output embeddings.
    bias_V: bias of each word's logit.
    """

    hidden_BTD: Array
    embedding_VD: Array
    bias_V: Array

    @property
    def words_BTV(self) -> Array:
        """Logits of every word at every target position, float32."""
        return word_scores(self.hidden_BTD, self.embedding_VD, self.bias_V)


@flax.struct.dataclass
class Source:
    """Encoded source texts, as the cross-attention keys and values that decoding reads in every step.

    layers: keys and values of the source in every layer of the decoder.
    segments_BS: 1 on tokens, 0 on padding.
    """

    layers: tuple[KeysAndValues, ...]
    segments_BS: Array


class TranslationModel(nn.Module):
    """Encoder-decoder Transformer for translation (Vaswani et al. 2017).

    The decoder predicts each token of the target from the tokens before it and from the encoded source.

    The output layer is the table of the target's word embeddings and a bias, or with `tie=none` a table of its own.

    attend: implementation of attention in the encoder.
    decoder_attend: implementation of the decoder's self-attention.
    cross_attend: implementation of the decoder's attention to the source.
    """

    config: EncoderConfig
    decoder_config: DecoderConfig
    attend: Attend = reference.attend
    decoder_attend: Attend = reference.attend
    cross_attend: Attend = reference.attend

    def setup(self):
        config, decoder = self.config, self.decoder_config
        self.encoder = encoder.Encoder(config, self.attend)
        # With `tie=all`, the table of words in here is not used, and so it does not exist.
        self.target_embeddings = Embeddings(config)
        self.decoder = Decoder(config, decoder, self.decoder_attend, self.cross_attend)
        width = config.embedding_width or config.width
        if config.is_projected:
            self.output_projection = layers.dense(config, width, ("embed_out", "embed"))
        init = nn.initializers.normal(config.initializer_range)
        if decoder.tie == "none":
            self.output_words = nn.Embed(
                config.vocabulary_size,
                width,
                dtype=jnp.dtype(config.dtype),
                embedding_init=nn.with_logical_partitioning(init, ("vocabulary", "embed")),
            )
        bias_init: Any = nn.with_logical_partitioning(nn.initializers.zeros, ("vocabulary",))
        self.output_bias = self.param("output_bias", bias_init, (config.vocabulary_size,))

    def __call__(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> TargetPredictions:
        """Return the distribution of each target token, predicted from the source and the target tokens before it.

        batch: the fields of `ag_jax.data.parallel.batching`.
        """
        source_BSD = self.encoder(batch, ports=ports, deterministic=deterministic)
        segments_BT = batch["target_segment_ids"]
        context = DecoderContext(
            source_BSD,
            batch["segment_ids"],
            segments_BT,
            ports.decoder_guides,
            ports.cross_guides,
            deterministic=deterministic,
        )
        embedded_BTD = self._embedded(
            batch["target_tokens"], segments.order(segments_BT), segments_BT > 0, deterministic=deterministic
        )
        return self._predict(self.decoder(embedded_BTD, context))

    def encode(self, batch: Batch) -> Source:
        """Run the encoder on source texts, one a row; return their cross-attention keys and values for decoding."""
        source_BSD = self.encoder(batch, deterministic=True)
        return Source(self.decoder.source_keys_and_values(source_BSD), (batch["segment_ids"] > 0).astype(jnp.int32))

    def empty_cache(self, batch: int, beams: int, length: int) -> DecoderCache:
        """Return the decoder's cache before the first token, with room for `length` tokens in each beam."""
        return self.decoder.empty_cache(batch, beams, length)

    def step(self, source: Source, cache: DecoderCache, tokens_BJ: Array, index: Array) -> tuple[Array, DecoderCache]:
        """Return the log-probabilities of the next word in each of J beams, `BJV` float32, and the new decoding cache.

        tokens_BJ: the tokens at the position `index`, counted from 0; those at position 0 stand for the start.
        """
        hidden_BJD = self._embedded(tokens_BJ, jnp.broadcast_to(index, tokens_BJ.shape), deterministic=True)
        hidden_BJD, cache = self.decoder.step(hidden_BJD, cache, source.layers, source.segments_BS, index)
        return jax.nn.log_softmax(self._predict(hidden_BJD).words_BTV), cache

    def _embedded(self, tokens: Array, order: Array, is_token: Array | bool = True, *, deterministic: bool) -> Array:
        """Return the decoder's input: target tokens embedded at the positions `order`, in the decoder's width.

        With `decoder.start=zero`, the word embedding of a text's first token is zero.

        order: position of each token in its text, from 0.
        is_token: false on padding.
        """
        embeddings = self.target_embeddings
        words = (self.encoder.embeddings if self.decoder_config.tie == "all" else embeddings).word(tokens)
        if self.decoder_config.start == "zero":
            words = jnp.where((order == 0)[..., None], 0, words)
        return embeddings.project(embeddings.finish(embeddings.with_positions(words, order, is_token), deterministic))

    def _predict(self, hidden: Array) -> TargetPredictions:
        if self.config.is_projected:
            hidden = self.output_projection(hidden)
        tie = self.decoder_config.tie
        if tie == "none":
            table = self.output_words.embedding
        else:
            table = (self.encoder.embeddings if tie == "all" else self.target_embeddings).word.embedding
        return TargetPredictions(hidden, table.astype(hidden.dtype), self.output_bias)

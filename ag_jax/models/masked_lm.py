"""Encoder with the heads of masked-language pre-training and next-sentence prediction.

Shape letters: B batch, L length, M masked positions of a row, D width, V vocabulary.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jax import Array

from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.models import encoder, layers
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Ports


@flax.struct.dataclass
class Predictions:
    """Outputs of the masked-language and next-sentence heads for a batch.

    hidden_BMD: output of the word head at the masked positions.
    embedding_VD: word embeddings; with `hidden_BMD` and `bias_V` they give `words_BMV`, which training never needs in
        one piece (`objectives.word_loss`).
    bias_V: bias of each word's logit.
    next_B2: logits of `is the second segment a random one`, float32, or None.
    encoded_BLD: the encoder's last hidden states; None for a generator.
    """

    hidden_BMD: Array
    embedding_VD: Array
    bias_V: Array
    next_B2: Array | None
    encoded_BLD: Array | None = None

    @property
    def words_BMV(self) -> Array:
        """Logits of every word at the masked positions, float32."""
        return word_scores(self.hidden_BMD, self.embedding_VD, self.bias_V)


def word_scores(hidden_BMD: Array, embedding_VD: Array, bias_V: Array) -> Array:
    """Return the word logits h E^T + b at the masked positions, `BMV`, float32; E is the table of word embeddings."""
    scores_BMV = jnp.einsum("bmd,vd->bmv", hidden_BMD, embedding_VD, preferred_element_type=jnp.float32)
    return scores_BMV + bias_V[None, None, :]


class MaskedLanguageHead(nn.Module):
    """Masked-language head before the tied output layer: LayerNorm(gelu(W x + b)), and a bias for each word."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BMD: Array) -> tuple[Array, Array]:
        """Return a vector for each of the M masked positions, `BME`, and a bias for each word, `V`.

        With the embeddings, `word_scores` computes the words' logits from them.
        """
        config = self.config
        width = config.embedding_width or config.width
        dense = layers.dense(config, width, ("embed", "embed_out"), "dense", config.feedforward_biases)
        hidden_BMD = layers.gelu(dense(hidden_BMD))
        hidden_BMD = layers.normalization(config, "norm")(hidden_BMD)
        bias_init: Any = nn.with_logical_partitioning(nn.initializers.zeros, ("vocabulary",))
        bias_V = self.param("bias", bias_init, (config.vocabulary_size,))
        return hidden_BMD, bias_V


class NextSentenceHead(nn.Module):
    """Next-sentence head: two logits from tanh(W h + b) of the first token (Devlin et al. 2019)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, first_BD: Array) -> Array:
        """Return the two next-sentence logits of each row, `B2`, float32."""
        pooled_BD = nn.tanh(layers.dense(self.config, self.config.width, ("embed", "embed_out"), "pooler")(first_BD))
        return layers.dense(self.config, 2, ("embed", "classes"), "classifier")(pooled_BD).astype(jnp.float32)


class PretrainingModel(nn.Module):
    """Encoder with a masked-language head and, if `next_sentence`, a next-sentence head.

    The masked-language head gets only the vectors `BMD` at the masked positions, so no array of size B * L * V exists.
    """

    config: EncoderConfig
    next_sentence: bool = False
    attend: Attend = reference.attend

    def setup(self):
        self.encoder = encoder.Encoder(self.config, self.attend)
        self.word_head = MaskedLanguageHead(self.config)
        if self.next_sentence:
            self.next_head = NextSentenceHead(self.config)

    def __call__(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Predictions:
        """Return the outputs of the pre-training heads for a batch with the fields of `ag_jax.data.text.batching`."""
        hidden_BLD, decoded_BMD = self.encoder.with_mask_decoder(batch, ports=ports, deterministic=deterministic)
        hidden_BMD, bias_V = self.word_head(decoded_BMD)
        embedding_VD = self.encoder.embeddings.word.embedding.astype(hidden_BMD.dtype)
        next_B2 = self.next_head(hidden_BLD[:, 0]) if self.next_sentence else None
        return Predictions(hidden_BMD, embedding_VD, bias_V, next_B2, hidden_BLD)

"""The encoder with its pre-training heads.

Shape letters: B batch, L length, M masked positions of a row, D width, V vocabulary.
"""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from ag_jax.attention.fused import reference
from ag_jax.attention.fused.contract import Attend
from ag_jax.models import encoder, layers
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Ports

Array = jax.Array


@flax.struct.dataclass
class Predictions:
    """Logits in float32: of the words at the masked positions, and of `is the second segment a random one` or None."""

    words_BMV: Array
    next_B2: Array | None


class MaskedLanguageHead(nn.Module):
    """LayerNorm(gelu(W x + b)), whose product with the word embeddings, plus a bias, gives the logits."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BMD: Array, embeddings: nn.Module) -> Array:
        config = self.config
        hidden_BMD = layers.gelu(layers.dense(config, config.width, ("embed", "embed_out"), "dense")(hidden_BMD))
        hidden_BMD = layers.layer_norm(config, "norm")(hidden_BMD)
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros, ("vocabulary",))
        bias_V = self.param("bias", bias_init, (config.vocabulary_size,))
        return embeddings.word_scores(hidden_BMD) + bias_V[None, None, :]


class NextSentenceHead(nn.Module):
    """Two logits from tanh(W h + b) of the first token (Devlin et al. 2019)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, first_BD: Array) -> Array:
        pooled_BD = nn.tanh(layers.dense(self.config, self.config.width, ("embed", "embed_out"), "pooler")(first_BD))
        return layers.dense(self.config, 2, ("embed", "classes"), "classifier")(pooled_BD).astype(jnp.float32)


class PretrainingModel(nn.Module):
    """Encoder, masked-language head at the masked positions alone, and next-sentence head if asked for.

    The head sees `BMD` gathered vectors, so no array of the size B * L * V ever exists.
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
        """Predictions for a batch with the fields of `ag_jax.data.batching`."""
        hidden_BLD = self.encoder(batch, ports=ports, deterministic=deterministic)
        hidden_BMD = jnp.take_along_axis(hidden_BLD, batch["masked_positions"][:, :, None], axis=1)
        words_BMV = self.word_head(hidden_BMD, self.encoder.embeddings)
        next_B2 = self.next_head(hidden_BLD[:, 0]) if self.next_sentence else None
        return Predictions(words_BMV, next_B2)

"""ELECTRA: an encoder that detects replaced tokens, and the generator that samples the replacements.

Shape letters: B batch, L length, M masked positions of a row, D width, E width of the embeddings, V vocabulary.
"""

import dataclasses
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
from ag_jax.models.masked_lm import MaskedLanguageHead, Predictions


@flax.struct.dataclass
class Detection:
    """Outputs of the encoder that detects replaced tokens, and of its generator, for a batch.

    replaced_BL: logits of `this token was replaced`, float32.
    encoded_BLD: the encoder's last hidden states, from which `replaced_BL` is computed.
    words: the generator's predictions; None without a generator, or if it was not run.
    """

    replaced_BL: Array
    encoded_BLD: Array
    words: Predictions | None = None


class ReplacedTokenHead(nn.Module):
    """Detection head: the logit w . gelu(W h + b) + c of each token (Clark et al. 2020, section 2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BLD: Array) -> Array:
        """Return the logit of `this token was replaced` for each token, `BL`."""
        hidden_BLD = layers.dense(self.config, self.config.width, ("embed", "embed_out"), "dense")(hidden_BLD)
        return layers.dense(self.config, 1, ("embed", "classes"), "classifier")(layers.gelu(hidden_BLD))[..., 0]


class Generator(nn.Module):
    """Small encoder with a masked-language head, on embeddings shared with the detecting encoder."""

    config: EncoderConfig
    attend: Attend = reference.attend

    def setup(self):
        self.encoder = encoder.Encoder(self.config, self.attend)
        self.word_head = MaskedLanguageHead(self.config)

    def __call__(self, batch: Batch, embedded_BLE: Array, *, deterministic: bool) -> tuple[Array, Array]:
        """Return the generator's vector for each of the M masked positions, `BME`, and a bias for each word, `V`.

        With the embeddings, `word_scores` computes the words' logits from them.
        """
        _, decoded_BMD = self.encoder.with_mask_decoder(batch, embedded_BLE=embedded_BLE, deterministic=deterministic)
        return self.word_head(decoded_BMD)


class ReplacedTokensModel(nn.Module):
    """Encoder with a head that detects replaced tokens, and optionally the generator trained with it.

    Both share the embeddings of words, positions and token types, LayerNorm included, as in the released code (Clark et
    al. 2020, section 3.2); each projects them to its own width. Guidance and inspection apply to the detecting encoder:
    `encoder` has the same name and parameters as in `PretrainingModel`.

    generator_config: architecture of the generator; None for a model without one.
    generator_attend: the generator's implementation of attention.
    """

    config: EncoderConfig
    generator_config: EncoderConfig | None = None
    attend: Attend = reference.attend
    generator_attend: Attend = reference.attend

    def setup(self):
        self.encoder = encoder.Encoder(self.config, self.attend)
        self.discriminator_head = ReplacedTokenHead(self.config)
        if self.generator_config is not None:
            self.generator = Generator(self.generator_config, self.generator_attend)

    def __call__(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Detection:
        """Return the predictions of encoder and generator for the tokens of a batch, without sampling replacements.

        In a training step, the encoder gets the generator's samples instead.
        """
        words = None if self.generator_config is None else self.generate(batch, deterministic=deterministic)
        return dataclasses.replace(self.detect(batch, ports=ports, deterministic=deterministic), words=words)

    def detect(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Detection:
        """Return the encoder's detection logits for the tokens of a batch, without running the generator."""
        hidden_BLD = self.encoder(batch, ports=ports, deterministic=deterministic)
        return Detection(self.discriminator_head(hidden_BLD).astype(jnp.float32), hidden_BLD)

    def generate(self, batch: Batch, *, deterministic: bool) -> Predictions:
        """Return the generator's word predictions at the masked positions of `batch["tokens"]`."""
        embedded_BLE = self.encoder.embeddings(
            batch["tokens"], batch["segment_ids"], batch["token_type_ids"], None, deterministic=deterministic
        )
        hidden_BME, bias_V = self.generator(batch, embedded_BLE, deterministic=deterministic)
        embedding_VE = self.encoder.embeddings.word.embedding.astype(hidden_BME.dtype)
        return Predictions(hidden_BME, embedding_VE, bias_V, None)


def generator_parameters(params: dict[str, Any]) -> dict[str, Any]:
    """Return the generator's parameters and the shared embeddings, named like those of a `PretrainingModel`.

    params: parameters of a `ReplacedTokensModel` with a generator.
    """
    shared, generator = params["encoder"]["embeddings"], params["generator"]
    projection = generator["encoder"].get("embeddings", {})
    embeddings = {name: table for name, table in shared.items() if name != "projection"} | projection
    return {"encoder": {**generator["encoder"], "embeddings": embeddings}, "word_head": generator["word_head"]}

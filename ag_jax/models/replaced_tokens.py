"""ELECTRA: an encoder that says of every token whether it was replaced, beside the one that makes the replacements.

Shape letters: B batch, L length, M masked positions of a row, D width, E width of the embeddings, V vocabulary.
"""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.models import encoder, layers
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.masked_lm import MaskedLanguageHead, Predictions

Array = jax.Array


@flax.struct.dataclass
class Detection:
    """What model and generator say of a batch.

    replaced_BL: logits of `this token was replaced`, float32; encoded_BLD: the encoder's last hidden states, which they are of.
    words: the generator's, None without one or if it was not asked.
    """

    replaced_BL: Array
    encoded_BLD: Array
    words: Predictions | None = None


class ReplacedTokenHead(nn.Module):
    """The logit w . gelu(W h + b) + c of each token (Clark et al. 2020, section 2)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BLD: Array) -> Array:
        hidden_BLD = layers.dense(self.config, self.config.width, ("embed", "embed_out"), "dense")(hidden_BLD)
        return layers.dense(self.config, 1, ("embed", "classes"), "classifier")(layers.gelu(hidden_BLD))[..., 0]


class Generator(nn.Module):
    """A small encoder with a masked-language head, on embeddings that are not its own."""

    config: EncoderConfig
    attend: Attend = reference.attend

    def setup(self):
        self.encoder = encoder.Encoder(self.config, self.attend)
        self.word_head = MaskedLanguageHead(self.config)

    def __call__(self, batch: Batch, embedded_BLE: Array, *, deterministic: bool) -> tuple[Array, Array]:
        """Vectors `BME` of the masked positions, to be multiplied with the word embeddings, and the bias of the words."""
        _, decoded_BMD = self.encoder.with_mask_decoder(batch, embedded_BLE=embedded_BLE, deterministic=deterministic)
        return self.word_head(decoded_BMD)


class ReplacedTokensModel(nn.Module):
    """Encoder with a head that detects replaced tokens, and, if it has a config, the generator trained beside it.

    Both look words, positions and segments up in the same tables, LayerNorm included, as in the released code (Clark et al.
    2020, section 3.2); each projects them to its own width. What is guided and looked at is the encoder: `encoder` has the
    same name and parameters as in `PretrainingModel`.
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
        """Both predictions for the tokens of a batch as they are; a training step puts samples in between."""
        words = None if self.generator_config is None else self.generate(batch, deterministic=deterministic)
        return self.detect(batch, ports=ports, deterministic=deterministic).replace(words=words)

    def detect(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Detection:
        """What the model alone says of the tokens as they are."""
        hidden_BLD = self.encoder(batch, ports=ports, deterministic=deterministic)
        return Detection(self.discriminator_head(hidden_BLD).astype(jnp.float32), hidden_BLD)

    def generate(self, batch: Batch, *, deterministic: bool) -> Predictions:
        """The generator's words for the masked positions of `batch["tokens"]`."""
        embedded_BLE = self.encoder.embeddings(
            batch["tokens"], batch["sequences"], batch["segments"], None, deterministic=deterministic
        )
        hidden_BME, bias_V = self.generator(batch, embedded_BLE, deterministic=deterministic)
        embedding_VE = self.encoder.embeddings.word.embedding.astype(hidden_BME.dtype)
        return Predictions(hidden_BME, embedding_VE, bias_V, None)


def generator_parameters(params: dict[str, Any]) -> dict[str, Any]:
    """The generator of a `ReplacedTokensModel` as the parameters of a `PretrainingModel` of its own, shared tables included."""
    shared, own = params["encoder"]["embeddings"], params["generator"]
    projection = own["encoder"].get("embeddings", {})
    embeddings = {name: table for name, table in shared.items() if name != "projection"} | projection
    return {"encoder": {**own["encoder"], "embeddings": embeddings}, "word_head": own["word_head"]}

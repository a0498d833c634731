"""The encoder: embeddings and a scanned stack of layers.

Shape letters: B batch, L length, D width, E width of the embeddings.
"""

import flax.linen as nn
import flax.struct
import jax

from ag_jax.attention import guidance
from ag_jax.attention.fused import reference
from ag_jax.attention.fused.contract import KEPT, Attend
from ag_jax.models import embeddings, layers
from ag_jax.models.config import EncoderConfig

Array = jax.Array
Batch = dict[str, Array]

REMAT_POLICIES = {
    "layer": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable, jax.checkpoint_policies.save_only_these_names(KEPT)
    ),
}


@flax.struct.dataclass
class Ports:
    """Where guidance and adversaries plug into an encoder; nothing by default.

    guides: patterns for the guided heads, whose statistics are then sown.
    embedding_delta: `BLD`, added to the word embeddings.
    attention_bias: broadcasts to `BHQK`, added to the scores of every layer.
    """

    guides: guidance.Guides | None = None
    embedding_delta: Array | None = None
    attention_bias: Array | None = None


class Encoder(nn.Module):
    """A bidirectional Transformer encoder (RoBERTa as published; see `EncoderConfig` for the rest).

    The layers are one scanned layer whose parameters have a leading axis of length `layers`, so compile time does not
    grow with depth. What attention sows has the same leading axis: with `mutable=["intermediates"]`,
    `intermediates["encoder"]["layers"]["attention"]["attention_weights"][0]` is `NBHQK` for all N layers.

    attend: the implementation of attention (`attention.fused.choice`); it changes nothing but speed and memory.
    """

    config: EncoderConfig
    attend: Attend = reference.attend

    def setup(self):
        config = self.config
        self.embeddings = embeddings.Embeddings(config)
        layer = layers.EncoderLayer
        if config.remat != "none":
            layer = nn.remat(layer, policy=REMAT_POLICIES[config.remat], prevent_cse=False, static_argnums=(5,))
        self.layers = nn.scan(
            layer,
            variable_axes={"params": 0, "intermediates": 0, "statistics": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(nn.broadcast, nn.broadcast, nn.broadcast, nn.broadcast),
            length=config.layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(config, self.attend)

    def __call__(
        self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool, embedded_BLE: Array | None = None
    ) -> Array:
        """Hidden states `BLD` of the last layer for `batch["tokens"]`, each text of `batch["sequences"]` on its own.

        `embedded_BLE` are embeddings, not projected yet, of another encoder; this one then has none of its own.
        """
        sequences_BL = batch["sequences"]
        if embedded_BLE is None:
            embedded_BLE = self.embeddings(
                batch["tokens"], sequences_BL, batch["segments"], ports.embedding_delta, deterministic=deterministic
            )
        hidden_BLD = self.embeddings.project(embedded_BLE)
        hidden_BLD, _ = self.layers(hidden_BLD, sequences_BL, ports.guides, ports.attention_bias, deterministic)
        return hidden_BLD

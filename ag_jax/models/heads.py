"""The encoder with the head of a task.

Shape letters: B batch, C candidates of an example, T classes, L length, D width.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from ag_jax.attention.dropout import Dropout
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.models import encoder, layers
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Ports

Array = jax.Array

CANDIDATES = ("choice", "ranking")  # kinds whose examples are several texts, of which one is right
OF_TEXTS = ("classification", "regression", *CANDIDATES)  # kinds that read the first token
KINDS = (*OF_TEXTS, "tagging", "span")
NEVER = -1e9  # the logit of what must not be chosen; finite, so that gradients are

# Each style of a head for texts: activation, and whether dropout comes before the dense layer, too.
STYLES = {
    "roberta": (nn.tanh, True),
    "bert": (nn.tanh, False),
    "electra": (layers.gelu, True),
    "deberta": (layers.gelu, False),
}


def task_encoder(config: EncoderConfig) -> EncoderConfig:
    """The encoder's config without what only the prediction of masked words reads: DeBERTa's mask decoder and its positions."""
    if not config.mask_decoder_passes:
        return config
    return dataclasses.replace(config, mask_decoder_passes=0, absolute_positions="none")


def example(kind: str) -> Batch:
    """A batch of one row, for the shapes of parameters."""
    shape = (1, 2, 4) if kind in CANDIDATES else (1, 4)
    tokens, weights = jnp.ones(shape, jnp.int32), jnp.ones(shape)
    fields = {"tokens": tokens, "sequences": tokens, "segments": jnp.zeros_like(tokens)}
    return fields | {"choice_weights": weights[..., 0], "span_weights": weights}


class TextHead(nn.Module):
    """W2 dropout(activation(W1 h + b1)) + b2 of the first token's vector, in the manner of `STYLES[style]`.

    BERT calls the first half the pooler (Devlin et al. 2019), DeBERTa the context pooler.
    """

    config: EncoderConfig
    classes: int
    style: str

    @nn.compact
    def __call__(self, first_BD: Array, *, deterministic: bool) -> Array:
        """Logits `BT`, float32."""
        config, (activation, drops_first) = self.config, STYLES[self.style]
        if drops_first:
            first_BD = Dropout(config.dropout, name="dropout_first")(first_BD, deterministic=deterministic)
        pooled_BD = activation(layers.dense(config, config.width, ("embed", "embed_out"), "dense")(first_BD))
        pooled_BD = Dropout(config.dropout, name="dropout")(pooled_BD, deterministic=deterministic)
        return layers.dense(config, self.classes, ("embed", "classes"), "classifier")(pooled_BD).astype(jnp.float32)


class TokenHead(nn.Module):
    """W h + b of every token; `drops` says whether dropout comes before it, as in all families' taggers."""

    config: EncoderConfig
    classes: int
    drops: bool

    @nn.compact
    def __call__(self, hidden_BLD: Array, *, deterministic: bool) -> Array:
        """Logits `BLT`, float32."""
        if self.drops:
            hidden_BLD = Dropout(self.config.dropout, name="dropout")(hidden_BLD, deterministic=deterministic)
        return layers.dense(self.config, self.classes, ("embed", "classes"), "classifier")(hidden_BLD).astype(
            jnp.float32
        )


class TaskModel(nn.Module):
    """An encoder with the head of one kind of task.

    kind: one of `KINDS`; classes: of `classification` and `tagging`; style: how a head for texts is built (`STYLES`).
    The encoder has the same name and parameters as in `PretrainingModel`.
    """

    config: EncoderConfig
    kind: str
    classes: int = 1
    style: str = "roberta"
    attend: Attend = reference.attend

    def setup(self):
        if self.kind not in KINDS:
            raise ValueError(f"the kind of a task must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.style not in STYLES:
            raise ValueError(f"the style of a head must be one of {', '.join(STYLES)}, got {self.style!r}")
        self.encoder = encoder.Encoder(self.config, self.attend)
        if self.kind in OF_TEXTS:
            self.task_head = TextHead(self.config, self.classes if self.kind == "classification" else 1, self.style)
        else:
            is_span = self.kind == "span"
            self.task_head = TokenHead(self.config, 2 if is_span else self.classes, drops=not is_span)

    def __call__(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Array:
        """Logits, float32: `BT` of classes, `B` of numbers, `BC` of candidates, `BLT` of tags, `BL2` of starts and ends.

        The candidates of a batch, `BCL`, are rows of their own for the encoder and its ports. Where `choice_weights` or
        `span_weights` of the batch are 0, nothing may be chosen and the logit is `NEVER`.
        """
        hidden_BLD = self.encoder(encoder.rows(batch), ports=ports, deterministic=deterministic)
        if self.kind in OF_TEXTS:
            logits = self.task_head(hidden_BLD[:, 0], deterministic=deterministic)
            if self.kind == "classification":
                return logits
            if self.kind == "regression":
                return logits[:, 0]
            return jnp.where(batch["choice_weights"] > 0, logits.reshape(batch["choice_weights"].shape), NEVER)
        logits_BLT = self.task_head(hidden_BLD, deterministic=deterministic)
        return (
            logits_BLT
            if self.kind == "tagging"
            else jnp.where(batch["span_weights"][:, :, None] > 0, logits_BLT, NEVER)
        )

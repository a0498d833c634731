"""Encoder with the head of a fine-tuning task.

Shape letters: B batch, C classes or candidates of an example, L length, M tokens of a phrase, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention.dropout import Dropout
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.models import encoder, layers
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.masked_lm import MaskedLanguageHead, word_scores

NEVER = -1e9  # the logit of what must not be chosen; finite, so that gradients are finite

PHRASE = 16  # the most tokens of a phrase that a `PhraseHead` scores

# Style of a text head: its activation, and whether dropout is also applied before the dense layer.
STYLES: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "roberta": (nn.tanh, True),
    "bert": (nn.tanh, False),
    "electra": (layers.gelu, True),
    "deberta": (layers.gelu, False),
}


def task_encoder(config: EncoderConfig) -> EncoderConfig:
    """Return `config` without DeBERTa's mask decoder, which is needed only to predict masked words.

    Absolute positions, which are added in the mask decoder, go with it.
    """
    if not config.mask_decoder_passes:
        return config
    return dataclasses.replace(config, mask_decoder_passes=0, absolute_positions="none")


def example(kind: str) -> Batch:
    """Return a dummy batch with one example of a kind of task, to derive parameter shapes from."""
    shape = (1, 2, 4) if head_of(kind).has_candidates else (1, 4)
    tokens, weights = jnp.ones(shape, jnp.int32), jnp.ones(shape)
    fields = {"tokens": tokens, "segment_ids": tokens, "token_type_ids": jnp.zeros_like(tokens)}
    fields |= {"choice_weights": weights[..., 0], "span_weights": weights}
    return fields | {"word_ids": tokens, "word_weights": weights}


class TextHead(nn.Module):
    """Text head: W2 dropout(activation(W1 h + b1)) + b2, where h is the first token's hidden state.

    BERT calls the first half the pooler (Devlin et al. 2019), DeBERTa the context pooler.

    classes: number of logits.
    style: key of `STYLES`: the activation, and whether dropout is also applied to h.
    """

    config: EncoderConfig
    classes: int
    style: str

    @nn.compact
    def __call__(self, first_BD: Array, *, deterministic: bool) -> Array:
        """Return the logits `BC` of C classes, float32, from the vector of the first token."""
        config, (activation, drops_first) = self.config, STYLES[self.style]
        if drops_first:
            first_BD = Dropout(config.dropout, name="dropout_first")(first_BD, deterministic=deterministic)
        pooled_BD = activation(layers.dense(config, config.width, ("embed", "embed_out"), "dense")(first_BD))
        pooled_BD = Dropout(config.dropout, name="dropout")(pooled_BD, deterministic=deterministic)
        return layers.dense(config, self.classes, ("embed", "classes"), "classifier")(pooled_BD).astype(jnp.float32)


class TokenHead(nn.Module):
    """Token head: W h + b for the hidden state h of each token.

    classes: number of logits.
    drops: whether dropout is applied to h, as in the taggers of all families.
    """

    config: EncoderConfig
    classes: int
    drops: bool

    @nn.compact
    def __call__(self, hidden_BLD: Array, *, deterministic: bool) -> Array:
        """Return the logits `BLC` of C classes for each token, float32."""
        if self.drops:
            hidden_BLD = Dropout(self.config.dropout, name="dropout")(hidden_BLD, deterministic=deterministic)
        return layers.dense(self.config, self.classes, ("embed", "classes"), "classifier")(hidden_BLD).astype(
            jnp.float32
        )


class AnswerHead(nn.Module):
    """Head for answers to questions that may have none (Liu et al. 2019, section 5.2).

    W h + b for each token, as a `TokenHead`, and the classifier's w h_0 + c for the first token.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BLD: Array, *, deterministic: bool) -> Array:
        """Return logits `BL3`, float32: of each token to begin the answer and to end it, and of two classes.

        The third column holds the logit of "no answer" at the first token, 0 for "an answer" at the second one, and
        `NEVER` at the others, so that it is a distribution over the same axis as the first two.
        """
        del deterministic  # as a head for spans, this one has no dropout
        ends_BL2 = layers.dense(self.config, 2, ("embed", "classes"), "classifier")(hidden_BLD)
        none_B1 = layers.dense(self.config, 1, ("embed", "classes"), "refusal")(hidden_BLD[:, 0])
        classes_B2 = jnp.concatenate([none_B1, jnp.zeros_like(none_B1)], axis=1).astype(jnp.float32)
        column_BL = jnp.pad(classes_B2, ((0, 0), (0, hidden_BLD.shape[1] - 2)), constant_values=NEVER)
        return jnp.concatenate([ends_BL2.astype(jnp.float32), column_BL[:, :, None]], axis=2)


class PhraseHead(nn.Module):
    """Head for phrases in the place of a pronoun: their mean log-probability by a head for masked words.

    sum_m log P(w_m | text with M masks for the pronoun) / M over the M tokens w_m of the phrase (Liu et al. 2019,
    section 5.1, and the released program). Only the first `PHRASE` tokens of a longer phrase count.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BLD: Array, embedding_VD: Array, batch: Batch, *, deterministic: bool) -> Array:
        """Return the score of each row, `B1`, float32.

        embedding_VD: word embeddings.
        batch: with `word_ids` and `word_weights`, which is 1 at the masks.
        """
        del deterministic  # as the head for masked words, this one has no dropout
        length = hidden_BLD.shape[1]
        ids_BL, weights_BL = (batch[name].reshape(-1, length) for name in ("word_ids", "word_weights"))
        # Of equal weights, top_k takes the first ones.
        weights_BM, places_BM = jax.lax.top_k(weights_BL, min(PHRASE, length))
        masked_BMD = jnp.take_along_axis(hidden_BLD, places_BM[:, :, None], axis=1)
        decoded_BMD, bias_V = MaskedLanguageHead(self.config, name="words")(masked_BMD)
        logs_BMV = jax.nn.log_softmax(word_scores(decoded_BMD, embedding_VD.astype(decoded_BMD.dtype), bias_V))
        words_BM = jnp.take_along_axis(ids_BL, places_BM, axis=1)
        logs_BM = jnp.take_along_axis(logs_BMV, words_BM[:, :, None], axis=2)[:, :, 0]
        count_B = jnp.maximum(weights_BM.sum(-1), 1)  # padding has no masks
        return ((logs_BM * weights_BM).sum(-1) / count_B)[:, None]


def _classes(logits_BC: Array, batch: Batch) -> Array:
    del batch
    return logits_BC


def _numbers(logits_B1: Array, batch: Batch) -> Array:
    del batch
    return logits_B1[:, 0]


def _candidates(logits_B1: Array, batch: Batch) -> Array:
    weights_BC = batch["choice_weights"]
    return jnp.where(weights_BC > 0, logits_B1.reshape(weights_BC.shape), NEVER)


def _ends(logits_BL2: Array, batch: Batch) -> Array:
    return jnp.where(batch["span_weights"][:, :, None] > 0, logits_BL2, NEVER)


def _ends_or_none(logits_BL3: Array, batch: Batch) -> Array:
    return jnp.concatenate([_ends(logits_BL3[:, :, :2], batch), logits_BL3[:, :, 2:]], axis=2)


@dataclasses.dataclass(frozen=True)
class HeadKind:
    """Definition of one kind of task head: its module, its input, and how logits are computed from its output.

    build: (config, number of classes, style) -> module.
    logits: (output of the module, batch) -> logits.
    reads_first: whether the module gets only the first token's hidden state; otherwise it gets those of all tokens.
    has_candidates: whether an example consists of several texts, of which one is right.
    reads_words: whether the module is a `PhraseHead`, which gets the word embeddings and the batch, too.
    has_dropout: whether the module applies dropout.
    """

    build: Callable[[EncoderConfig, int, str], nn.Module]
    logits: Callable[[Array, Batch], Array]
    reads_first: bool = True
    has_candidates: bool = False
    reads_words: bool = False
    has_dropout: bool = True


def _text_head(config: EncoderConfig, classes: int, style: str) -> TextHead:
    return TextHead(config, classes, style)


def _score_head(config: EncoderConfig, classes: int, style: str) -> TextHead:
    del classes
    return TextHead(config, 1, style)


def _tag_head(config: EncoderConfig, classes: int, style: str) -> TokenHead:
    del style
    return TokenHead(config, classes, drops=True)


def _span_head(config: EncoderConfig, classes: int, style: str) -> TokenHead:
    del classes, style
    return TokenHead(config, 2, drops=False)


def _answer_head(config: EncoderConfig, classes: int, style: str) -> AnswerHead:
    del classes, style
    return AnswerHead(config)


def _phrase_head(config: EncoderConfig, classes: int, style: str) -> PhraseHead:
    del classes, style
    return PhraseHead(config)


HEADS = {
    "classification": HeadKind(_text_head, _classes),
    "regression": HeadKind(_score_head, _numbers),
    "choice": HeadKind(_score_head, _candidates, has_candidates=True),
    "ranking": HeadKind(_score_head, _candidates, has_candidates=True),
    "tagging": HeadKind(_tag_head, _classes, reads_first=False),
    "span": HeadKind(_span_head, _ends, reads_first=False, has_dropout=False),
    "span_or_none": HeadKind(_answer_head, _ends_or_none, reads_first=False, has_dropout=False),
    "referent": HeadKind(
        _phrase_head, _candidates, reads_first=False, has_candidates=True, reads_words=True, has_dropout=False
    ),
}
KINDS = tuple(HEADS)


def head_of(kind: str) -> HeadKind:
    """Return the `HeadKind` for a kind of task. Raises ValueError for an unknown kind."""
    if kind not in HEADS:
        raise ValueError(f"the kind of a task must be one of {', '.join(KINDS)}, got {kind!r}")
    return HEADS[kind]


class TaskModel(nn.Module):
    """Encoder with the head of one kind of task.

    The encoder has the same name and parameters as in `PretrainingModel`.

    kind: one of `KINDS`.
    classes: number of classes of `classification` and `tagging`; other kinds ignore it.
    style: key of `STYLES`, for text heads.
    head_dropout: dropout rate of the head, if it has dropout; None takes that of the encoder.
    """

    config: EncoderConfig
    kind: str
    classes: int = 1
    style: str = "roberta"
    attend: Attend = reference.attend
    head_dropout: float | None = None

    def setup(self):
        if self.style not in STYLES:
            raise ValueError(f"the style of a head must be one of {', '.join(STYLES)}, got {self.style!r}")
        self.encoder = encoder.Encoder(self.config, self.attend)
        rate = self.config.dropout if self.head_dropout is None else self.head_dropout
        of_head = dataclasses.replace(self.config, dropout=rate)
        self.task_head = head_of(self.kind).build(of_head, self.classes, self.style)

    def __call__(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Array:
        """Return the logits, float32, in a shape that depends on the kind of task.

        `BC` for classes and candidates, `B` for numbers, `BLC` for tags, `BL2` for starts and ends of spans, `BL3` with
        the classes of `AnswerHead`.

        The encoder and its ports see each candidate of `BCL` as a row. The logit is `NEVER` where `choice_weights` or
        `span_weights` of the batch are 0, because these must not be chosen.
        """
        head = HEADS[self.kind]
        hidden_BLD = self.encoder(encoder.rows(batch), ports=ports, deterministic=deterministic)
        if head.reads_words:
            embedding_VD = self.encoder.embeddings.word.embedding
            return head.logits(self.task_head(hidden_BLD, embedding_VD, batch, deterministic=deterministic), batch)
        read = hidden_BLD[:, 0] if head.reads_first else hidden_BLD
        return head.logits(self.task_head(read, deterministic=deterministic), batch)

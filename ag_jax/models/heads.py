"""Encoder with the head of a fine-tuning task.

Shape letters: B batch, C classes or candidates of an example, L length, M tokens of a phrase, D width, V vocabulary.
"""

import dataclasses
import typing
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention.dropout import Dropout
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.models import encoder, layers
from ag_jax.models.config import EncoderConfig, Pooling
from ag_jax.models.encoder import Batch, Ports
from ag_jax.models.masked_lm import MaskedLanguageHead, word_scores

NEVER = -1e9  # the logit of what must not be chosen; finite, so that gradients are finite

PHRASE = 16  # the most tokens of a phrase that a `PhraseHead` scores


@dataclasses.dataclass(frozen=True)
class Style:
    """How a model family builds its task heads: activation, dropout and LayerNorm in front of the classifier.

    activation: of the dense layer in front of the classifier.
    drops_first: whether dropout is also applied before the dense layer.
    normalizes: whether the activation is followed by LayerNorm, and heads for tags and spans also have the dense layer,
        LayerNorm and dropout. The dense layer has a bias if those of the feed-forward part have one.
    """

    activation: Callable[[Array], Array]
    drops_first: bool = False
    normalizes: bool = False


STYLES = {
    "roberta": Style(nn.tanh, drops_first=True),
    "bert": Style(nn.tanh),
    "electra": Style(layers.gelu, drops_first=True),
    "deberta": Style(layers.gelu),
    "modernbert": Style(layers.gelu, normalizes=True),
}
POOLINGS = typing.get_args(Pooling)


def task_encoder(config: EncoderConfig) -> EncoderConfig:
    """Return `config` without DeBERTa's mask decoder, which is needed only to predict masked words.

    Absolute positions, which are added in the mask decoder, go with it.
    """
    if not config.mask_decoder_passes:
        return config
    return dataclasses.replace(config, mask_decoder_passes=0, absolute_positions="none")


def example(kind: str) -> Batch:
    """Return a dummy batch with one example for a kind of task, from which parameter shapes are derived."""
    shape = (1, 2, 4) if head_of(kind).has_candidates else (1, 4)
    tokens, weights = jnp.ones(shape, jnp.int32), jnp.ones(shape)
    fields = {"tokens": tokens, "segment_ids": tokens, "token_type_ids": jnp.zeros_like(tokens)}
    fields |= {"choice_weights": weights[..., 0], "span_weights": weights}
    return fields | {"word_ids": tokens, "word_weights": weights}


def _transform(config: EncoderConfig, style: Style, hidden: Array) -> Array:
    """Apply a task head's dense layer to vectors h: activation(W h + b), in ModernBERT LayerNorm(activation(W h))."""
    biases = config.feedforward_biases if style.normalizes else True
    dense = layers.dense(config, config.width, ("embed", "embed_out"), "dense", biases, is_last=style.normalizes)
    hidden = style.activation(dense(hidden))
    return layers.normalization(config, "norm")(hidden) if style.normalizes else hidden


def _classifier(config: EncoderConfig, style: Style, classes: int) -> nn.Dense:
    if style.normalizes:  # initial weights as those of ModernBERT
        config = dataclasses.replace(config, initializer_range=config.width**-0.5)
    return layers.dense(config, classes, ("embed", "classes"), "classifier")


class TextHead(nn.Module):
    """Task head for whole texts: W2 dropout(activation(W1 h + b1)) + b2, where h is the vector of a text.

    BERT calls the first half the pooler (Devlin et al. 2019), DeBERTa the context pooler. ModernBERT has LayerNorm
    after the activation.

    classes: number of logits.
    style: key of `STYLES`.
    """

    config: EncoderConfig
    classes: int
    style: str

    @nn.compact
    def __call__(self, text_BD: Array, *, deterministic: bool) -> Array:
        """Return the logits `BC` of C classes, float32, from the vector of each text."""
        config, style = self.config, STYLES[self.style]
        if style.drops_first:
            text_BD = Dropout(config.dropout, name="dropout_first")(text_BD, deterministic=deterministic)
        pooled_BD = _transform(config, style, text_BD)
        pooled_BD = Dropout(config.dropout, name="dropout")(pooled_BD, deterministic=deterministic)
        return _classifier(config, style, self.classes)(pooled_BD).astype(jnp.float32)


class TokenHead(nn.Module):
    """Task head for single tokens: logits W h + b from the hidden state h of each token.

    With the style `modernbert`, LayerNorm(gelu(W1 h)) stands for h.

    classes: number of logits.
    style: key of `STYLES`.
    drops: whether dropout is applied before the classifier, as in the taggers of all families.
    """

    config: EncoderConfig
    classes: int
    style: str
    drops: bool

    @nn.compact
    def __call__(self, hidden_BLD: Array, *, deterministic: bool) -> Array:
        """Return the logits `BLC` of C classes for each token, float32."""
        config, style = self.config, STYLES[self.style]
        if style.normalizes:
            hidden_BLD = _transform(config, style, hidden_BLD)
        if self.drops:
            hidden_BLD = Dropout(config.dropout, name="dropout")(hidden_BLD, deterministic=deterministic)
        return _classifier(config, style, self.classes)(hidden_BLD).astype(jnp.float32)


class AnswerHead(nn.Module):
    """Task head for answer spans in texts that may contain no answer (Liu et al. 2019, section 5.2).

    W h + b for each token, as a `TokenHead`, and the classifier's w h_0 + c for the first token. With the style
    `modernbert`, both read dropout(LayerNorm(gelu(W1 h))) instead of h.

    style: key of `STYLES`.
    """

    config: EncoderConfig
    style: str

    @nn.compact
    def __call__(self, hidden_BLD: Array, *, deterministic: bool) -> Array:
        """Return float32 logits `BL3` over the tokens: start of the answer, end of the answer, and answer or none.

        The third column holds the logit of "no answer" at the first token, 0 for "an answer" at the second one, and
        `NEVER` at the others, so that it is a distribution over the same axis as the first two.
        """
        config, style = self.config, STYLES[self.style]
        if style.normalizes:  # otherwise this head has no dropout, as those for spans
            hidden_BLD = _transform(config, style, hidden_BLD)
            hidden_BLD = Dropout(config.dropout, name="dropout")(hidden_BLD, deterministic=deterministic)
        ends_BL2 = _classifier(config, style, 2)(hidden_BLD)
        none_B1 = layers.dense(config, 1, ("embed", "classes"), "refusal")(hidden_BLD[:, 0])
        classes_B2 = jnp.concatenate([none_B1, jnp.zeros_like(none_B1)], axis=1).astype(jnp.float32)
        column_BL = jnp.pad(classes_B2, ((0, 0), (0, hidden_BLD.shape[1] - 2)), constant_values=NEVER)
        return jnp.concatenate([ends_BL2.astype(jnp.float32), column_BL[:, :, None]], axis=2)


class PhraseHead(nn.Module):
    """Task head that scores phrases in place of a pronoun by their mean log-probability from a masked-language head.

    sum_m log P(w_m | text with M masks for the pronoun) / M over the M tokens w_m of the phrase (Liu et al. 2019,
    section 5.1, and the released program). Only the first `PHRASE` tokens of a longer phrase count.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, hidden_BLD: Array, embedding_VD: Array, batch: Batch, *, deterministic: bool) -> Array:
        """Return the score of the phrase in each row, `B1`, float32.

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
    reads_text: whether the module gets one vector for each text (`TaskModel.pooling`); otherwise it gets the hidden
        states of all tokens.
    has_candidates: whether an example consists of several texts, of which one is right.
    reads_words: whether the module is a `PhraseHead`, which gets the word embeddings and the batch, too.
    has_dropout: whether the module applies dropout in styles other than `modernbert` (`has_dropout`).
    """

    build: Callable[[EncoderConfig, int, str], nn.Module]
    logits: Callable[[Array, Batch], Array]
    reads_text: bool = True
    has_candidates: bool = False
    reads_words: bool = False
    has_dropout: bool = True


def _text_head(config: EncoderConfig, classes: int, style: str) -> TextHead:
    return TextHead(config, classes, style)


def _score_head(config: EncoderConfig, classes: int, style: str) -> TextHead:
    del classes
    return TextHead(config, 1, style)


def _tag_head(config: EncoderConfig, classes: int, style: str) -> TokenHead:
    return TokenHead(config, classes, style, drops=True)


def _span_head(config: EncoderConfig, classes: int, style: str) -> TokenHead:
    del classes
    return TokenHead(config, 2, style, drops=STYLES[style].normalizes)


def _answer_head(config: EncoderConfig, classes: int, style: str) -> AnswerHead:
    del classes
    return AnswerHead(config, style)


def _phrase_head(config: EncoderConfig, classes: int, style: str) -> PhraseHead:
    del classes, style
    return PhraseHead(config)


HEADS = {
    "classification": HeadKind(_text_head, _classes),
    "multilabel": HeadKind(_text_head, _classes),
    "regression": HeadKind(_score_head, _numbers),
    "choice": HeadKind(_score_head, _candidates, has_candidates=True),
    "ranking": HeadKind(_score_head, _candidates, has_candidates=True),
    "tagging": HeadKind(_tag_head, _classes, reads_text=False),
    "span": HeadKind(_span_head, _ends, reads_text=False, has_dropout=False),
    "span_or_none": HeadKind(_answer_head, _ends_or_none, reads_text=False, has_dropout=False),
    "referent": HeadKind(
        _phrase_head, _candidates, reads_text=False, has_candidates=True, reads_words=True, has_dropout=False
    ),
}
KINDS = tuple(HEADS)


def head_of(kind: str) -> HeadKind:
    """Return the `HeadKind` for a kind of task, or raise ValueError for an unknown kind."""
    if kind not in HEADS:
        raise ValueError(f"the kind of a task must be one of {', '.join(KINDS)}, got {kind!r}")
    return HEADS[kind]


def has_dropout(kind: str, style: str) -> bool:
    """Return whether the head for a kind of task, in the style of a model family, applies dropout."""
    head = head_of(kind)
    return head.has_dropout or (STYLES[style].normalizes and not head.reads_words)


def pooled(hidden_BLD: Array, segment_ids_BL: Array, pooling: str) -> Array:
    """Return a vector for each text, `BD`: the hidden state of the first token, or the mean over all tokens.

    pooling: one of `POOLINGS`. The mean leaves out padding, and is 0 for a row without tokens.
    """
    if pooling == "first":
        return hidden_BLD[:, 0]
    is_token_BL = (segment_ids_BL > 0).astype(jnp.float32)
    total_BD = jnp.einsum("bld,bl->bd", hidden_BLD.astype(jnp.float32), is_token_BL)
    return (total_BD / jnp.maximum(is_token_BL.sum(1, keepdims=True), 1)).astype(hidden_BLD.dtype)


class TaskModel(nn.Module):
    """Encoder with the head for one kind of fine-tuning task, such as classification or tagging.

    The encoder has the same name and parameters as in `PretrainingModel`.

    kind: one of `KINDS`.
    classes: number of classes of `classification` and `tagging`, or of labels of `multilabel`; other kinds ignore it.
    style: key of `STYLES`.
    head_dropout: dropout rate of the head, if it has dropout; None takes that of the encoder.
    pooling: what a head for texts reads, one of `POOLINGS`.
    """

    config: EncoderConfig
    kind: str
    classes: int = 1
    style: str = "roberta"
    attend: Attend = reference.attend
    head_dropout: float | None = None
    pooling: Pooling = "first"

    def setup(self):
        if self.style not in STYLES:
            raise ValueError(f"the style of a head must be one of {', '.join(STYLES)}, got {self.style!r}")
        self.encoder = encoder.Encoder(self.config, self.attend)
        rate = self.config.dropout if self.head_dropout is None else self.head_dropout
        head_config = dataclasses.replace(self.config, dropout=rate)
        self.task_head = head_of(self.kind).build(head_config, self.classes, self.style)

    def __call__(self, batch: Batch, *, ports: Ports = Ports(), deterministic: bool) -> Array:
        """Return the task's logits, float32, in a shape that depends on the kind of task.

        `BC` for classes, labels and candidates, `B` for numbers, `BLC` for tags, `BL2` for starts and ends of spans,
        `BL3` with the classes of `AnswerHead`.

        The encoder and its ports see each candidate of `BCL` as a row. The logit is `NEVER` where `choice_weights` or
        `span_weights` of the batch are 0, because these must not be chosen.
        """
        head = HEADS[self.kind]
        rows = encoder.rows(batch)
        hidden_BLD = self.encoder(rows, ports=ports, deterministic=deterministic)
        if head.reads_words:
            embedding_VD = self.encoder.embeddings.word.embedding
            return head.logits(self.task_head(hidden_BLD, embedding_VD, batch, deterministic=deterministic), batch)
        states = pooled(hidden_BLD, rows["segment_ids"], self.pooling) if head.reads_text else hidden_BLD
        return head.logits(self.task_head(states, deterministic=deterministic), batch)

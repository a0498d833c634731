"""Attention maps of a text and its translation: of the encoder, the decoder and the cross-attention.

Shape letters: N layers, H heads, S source length, T target length.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ag_jax.analysis import maps, words
from ag_jax.analysis.maps import AttentionMaps, Heads
from ag_jax.data.json_files import check_unicode
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.models.encoder import Ports
from ag_jax.models.seq2seq import TranslationModel

START = "<start>"  # label of the decoder's first input, if that is no token


class PairMaps(NamedTuple):
    """Attention maps of a source text and its translation: encoder, decoder and cross-attention.

    encoder: of the source to itself, `NHSS`.
    decoder: of the target to itself, `NHTT`; a token attends to itself and to the tokens before it.
    cross: of the target to the source, `NHTS`.

    The target's tokens are those that the decoder reads: its start, and the translation without an end token. At each
    of them it predicts the next one, at the last the end token.
    """

    encoder: AttentionMaps
    decoder: AttentionMaps
    cross: AttentionMaps


def pair_maps(
    model: TranslationModel,
    params: Any,
    tokenizer: Tokenizer,
    source: str,
    target: str,
    max_tokens: int,
    without: Heads = (),
) -> PairMaps:
    """Return a translation model's attention maps of a source and a given translation that the decoder reads.

    Spaces around a side are removed. A side of more than `max_tokens` tokens is cut at its end, and a warning is
    logged. Raises ValueError if there is no source, or no room for any of its tokens.

    target: the translation; it may be empty, and the decoder then reads its start alone.
    max_tokens: maximum number of tokens of each side, including the source's end token and the decoder's start; the
        model's `max_length` also applies.
    without: heads of the encoder whose outputs are zeroed, which changes all attention behind them.
    """
    check_unicode(source + target, "the texts")
    # Without spaces around them, as in training and in translations.
    encoded = list(tokenizer.encode(source.strip())) if source.strip() else []
    if not encoded:
        raise ValueError(f"attention maps need a text with at least one token, got {source!r}")
    room = min(max_tokens, model.config.max_length) - 1
    translated = list(tokenizer.encode_targets([target.strip()])[0]) if target.strip() else []
    specials = tokenizer.specials
    begins = model.decoder_config.start == "begin"
    source_ids = [*maps.cut(encoded, room, "source"), specials.end]
    # In place of the padding token the decoder reads the zero vector, as `decoder.start=zero` says.
    target_ids = [specials.begin if begins else specials.pad, *maps.cut(translated, room, "target")]
    source_L, target_L = np.asarray(source_ids, np.int32), np.asarray(target_ids, np.int32)
    head_mask_NH = maps.head_mask(model.config, without)
    encoder_NHSS, decoder_NHTT, cross_NHTS = map(
        np.asarray, _attention_weights(model, params, source_L, target_L, head_mask_NH)
    )

    source_tokens = tuple(tokenizer.tokens(source_ids))
    start = tokenizer.tokens(target_ids[:1]) if begins else [START]
    target_tokens = (*start, *tokenizer.tokens(target_ids[1:]))
    left_out = max(0, len(encoded) - room), max(0, len(translated) - room)
    source_words = words.tokenized(tokenizer, source.strip(), source_ids[:-1], 0)
    target_words = words.tokenized(tokenizer, target.strip(), target_ids[1:], 1)
    fixed = [bool(config.fixed_attention.offsets) for config in (model.config, model.decoder_config)]
    return PairMaps(
        AttentionMaps(
            source_tokens,
            source_L,
            encoder_NHSS,
            left_out[0],
            is_fixed=fixed[0],
            without=without,
            text=source,
            words=source_words,
        ),
        AttentionMaps(
            target_tokens,
            target_L,
            decoder_NHTT,
            left_out[1],
            "decoder",
            is_fixed=fixed[1],
            without=without,
            text=target,
            words=target_words,
        ),
        AttentionMaps(
            source_tokens,
            source_L,
            cross_NHTS,
            sum(left_out),
            "cross",
            target_tokens,
            without=without,
            text=f"{source} → {target}",
            words=source_words,
            query_words=target_words,
        ),
    )


@functools.partial(jax.jit, static_argnames=("model",))
def _attention_weights(
    model: TranslationModel, params: Any, source_S: jax.Array, target_T: jax.Array, head_mask_NH: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    tokens_BS, target_BT = source_S[None], target_T[None]
    batch = {
        "tokens": tokens_BS,
        "segment_ids": jnp.ones_like(tokens_BS),
        "token_type_ids": jnp.zeros_like(tokens_BS),
        "target_tokens": target_BT,
        "target_segment_ids": jnp.ones_like(target_BT),
    }
    fields: dict[str, Any] = {"head_mask_NH": head_mask_NH}
    ports = Ports(**fields)
    _, collections = model.apply({"params": params}, batch, ports=ports, deterministic=True, mutable=["intermediates"])
    sown = collections["intermediates"]
    attentions = (
        sown["encoder"]["layers"]["attention"],
        sown["decoder"]["layers"]["attention"],
        sown["decoder"]["layers"]["cross_attention"],
    )
    encoder_NHSS, decoder_NHTT, cross_NHTS = (attention["attention_weights"][0][:, 0] for attention in attentions)
    return encoder_NHSS, decoder_NHTT, cross_NHTS

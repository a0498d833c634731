"""The supported model families of `transformers` by `model_type`, and the choice of a family for an export."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ag_jax.interop import marian, modernbert
from ag_jax.interop.deberta import DEBERTA, DEBERTA_V2
from ag_jax.interop.families import BERT, CAMEMBERT, ELECTRA, ROBERTA, Family, unlike_bert
from ag_jax.interop.modernbert import MODERNBERT
from ag_jax.models.config import DecoderConfig, EncoderConfig

# The families of encoders.
FAMILIES = {
    family.model_type: family for family in (BERT, ROBERTA, CAMEMBERT, ELECTRA, DEBERTA, DEBERTA_V2, MODERNBERT)
}
KNOWN = (*FAMILIES, marian.MODEL_TYPE)


def named(model_type: object) -> Family:
    """Return the family of encoders with the given `model_type`, as a config.json has it.

    Raises ValueError that lists the known families.
    """
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"expected a model_type among {', '.join(KNOWN)}, got {model_type!r}")
    return FAMILIES[model_type]


def of_config(values: Mapping[str, Any]) -> Family:
    """Return the family of an encoder or a translation model, given the content of its config.json.

    Raises ValueError that lists the known families.
    """
    if values.get("model_type") == marian.MODEL_TYPE:
        return marian.MARIAN[marian.tie_of(values)]
    return named(values.get("model_type"))


def translating(config: EncoderConfig, decoder: DecoderConfig) -> Family:
    """Return the family to export a translation model as. Raises ValueError with the reasons if there is none."""
    if reasons := marian.misfits(config, decoder):
        listed = "\n".join(f"  {reason}" for reason in reasons)
        raise ValueError(
            "translation models are exported as MarianMT, and that does not compute what this model does. Train one "
            f"with settings that fit; reasons against it:\n{listed}"
        )
    return marian.MARIAN[decoder.tie]


def misfits(family: Family, config: EncoderConfig, heads: Collection[str], pad: int) -> list[str]:
    """Return the reasons why an encoder cannot be exported as a model of `family`; [] if it can.

    heads: names of the model's heads for pre-training, such as `word_head`.
    pad: token id of padding.
    """
    lacking = [f"it has no {head}" for head in sorted(set(heads) - set(family.heads))]
    if family is MODERNBERT:
        return lacking + modernbert.misfits(config)
    relative = config.relative
    conditions = {
        f"its positions are learned (model.positions={config.positions})": config.positions == "learned",
        f"its activation is GELU (model.activation={config.activation})": config.activation == "gelu",
        "its LayerNorm is after the residual sum (model.norm_position=pre)": config.norm_position == "post",
        **dict.fromkeys(unlike_bert(config), False),
        "it applies LayerNorm to embeddings (model.embedding_norm=False)": config.embedding_norm,
        "it does not scale embeddings (model.embedding_scale)": not config.embedding_scale,
        "its attention is learnt (model.fixed_attention.offsets)": not config.fixed_attention.offsets,
        "its linear layers have biases (model.attention_biases=False)": config.attention_biases,
        "its linear layers have biases (model.feedforward_biases=False)": config.feedforward_biases,
    }
    if family.root == "deberta":
        has_positions = bool(relative.terms) or config.absolute_positions == "input"
        conditions |= {
            "its embeddings have the width of the encoder (model.embedding_width)": not config.is_projected,
            "its index is that of the released code (model.relative.index=paper)": relative.index == "code",
            "it needs positions of some kind": has_positions,
        }
    else:
        conditions |= {
            "it has no relative positions (model.relative.terms)": not relative.terms,
            "it has no enhanced mask decoder (model.mask_decoder_passes)": not config.mask_decoder_passes,
            "it has no convolution (model.convolution)": not config.convolution,
            "it adds positions to the input (model.absolute_positions)": config.absolute_positions == "input",
            "it has segment embeddings (model.token_types=0)": config.token_types > 0,
        }
    if family is DEBERTA:
        conditions |= {
            "its keys have no bias (model.relative.key_bias)": not relative.key_bias,
            "distances have projections of their own (model.relative.shared)": not relative.shared,
            "it has no buckets (model.relative.buckets)": not relative.buckets,
            "it does not normalise relative embeddings (model.relative.normalized)": not relative.normalized,
            "it has no convolution (model.convolution)": not config.convolution,
        }
    if family is DEBERTA_V2:
        conditions["its keys have a bias (model.relative.key_bias)"] = relative.key_bias or not relative.terms
    if family is not ELECTRA:
        conditions["its embeddings have the width of the encoder (model.embedding_width)"] = not config.is_projected
    if family.root == "roberta":
        first = pad + 1
        reason = (
            f"it counts positions from the padding id + 1 = {first} (model.position_offset={config.position_offset})"
        )
        conditions[reason] = config.position_offset == first
    return lacking + [reason for reason, holds in conditions.items() if not holds]


def fitting(
    config: EncoderConfig,
    heads: Collection[str],
    pad: int,
    wish: str = "",
    more: Callable[[Family], list[str]] = lambda family: [],
) -> Family:
    """Return the family to export a model as: `wish` if it fits, else the first that fits by `misfits` and `more`.

    heads, pad: as for `misfits`.
    wish: a `model_type`; empty, or that of a translation model, for no preference.
    more: returns further reasons against a family.
    Raises ValueError with the reasons against each family if none fits.
    """
    # RoBERTa has token types, too, but its own tokenizers give none, and programs that only know these leave them out.
    usual = [ROBERTA, BERT] if config.token_types <= 1 else [BERT, ROBERTA]
    order = ([named(wish)] if wish not in ("", marian.MODEL_TYPE) else []) + [
        *usual,
        ELECTRA,
        DEBERTA,
        DEBERTA_V2,
        MODERNBERT,
    ]
    reasons = {family: misfits(family, config, heads, pad) + more(family) for family in order}
    for family, of_family in reasons.items():
        if not of_family:
            return family
    listed = "\n".join(f"  {family.model_type}: {'; '.join(of_family)}" for family, of_family in reasons.items())
    raise ValueError(
        "no family of transformers computes what this model does, so it cannot be exported. Train one with settings "
        f"that fit one of these families; reasons against each:\n{listed}"
    )

"""The families by their `model_type`, and which of them a model of ours is written as."""

from collections.abc import Callable, Collection

from ag_jax.interop.deberta import DEBERTA, DEBERTA_V2
from ag_jax.interop.families import BERT, CAMEMBERT, ELECTRA, ROBERTA, Family
from ag_jax.models.config import EncoderConfig

FAMILIES = {family.model_type: family for family in (BERT, ROBERTA, CAMEMBERT, ELECTRA, DEBERTA, DEBERTA_V2)}


def named(model_type: object) -> Family:
    """The family of a config.json. Raises ValueError that lists the known ones."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"model_type={model_type!r} is not known here; known are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def misfits(family: Family, config: EncoderConfig, heads: Collection[str], pad: int) -> list[str]:
    """Why a model cannot be written as one of this family; empty if it can."""
    relative, found = config.relative, []

    def refuse(unless: bool, reason: str) -> None:
        if not unless:
            found.append(reason)

    for head in sorted(set(heads) - set(family.heads)):
        refuse(False, f"it has no {head}")
    if family.root == "deberta":
        refuse(not config.is_projected, "its embeddings have the width of the encoder (model.embedding_width)")
        refuse(relative.index == "code", "its index is that of the released code (model.relative.index=paper)")
        refuse(bool(relative.terms) or config.absolute_positions == "input", "it needs positions of some kind")
    else:
        refuse(not relative.terms, "it has no relative positions (model.relative.terms)")
        refuse(not config.mask_decoder_passes, "it has no enhanced mask decoder (model.mask_decoder_passes)")
        refuse(not config.convolution, "it has no convolution (model.convolution)")
        refuse(config.absolute_positions == "input", "it adds positions to the input (model.absolute_positions)")
        refuse(config.token_types > 0, "it has segment embeddings (model.token_types=0)")
    if family is DEBERTA:
        refuse(not relative.key_bias, "its keys have no bias (model.relative.key_bias)")
        refuse(not relative.shared, "distances have projections of their own (model.relative.shared)")
        refuse(not relative.buckets, "it has no buckets (model.relative.buckets)")
        refuse(not relative.normalized, "it does not normalise relative embeddings (model.relative.normalized)")
        refuse(not config.convolution, "it has no convolution (model.convolution)")
    if family is DEBERTA_V2:
        refuse(relative.key_bias or not relative.terms, "its keys have a bias (model.relative.key_bias)")
    if family is not ELECTRA:
        refuse(not config.is_projected, "its embeddings have the width of the encoder (model.embedding_width)")
    if family.root == "roberta":
        refuse(
            config.position_offset == pad + 1,
            f"it counts positions from the padding id + 1 = {pad + 1} (model.position_offset={config.position_offset})",
        )
    return list(dict.fromkeys(found))


def fitting(
    config: EncoderConfig,
    heads: Collection[str],
    pad: int,
    wish: str = "",
    more: Callable[[Family], list[str]] = lambda family: [],
) -> Family:
    """The family to write a model as: the one that is wished for if it fits, else the first that does.

    more: further reasons against a family. Raises ValueError with the reasons of each if there is none.
    """
    order = ([named(wish)] if wish else []) + [ROBERTA, BERT, ELECTRA, DEBERTA, DEBERTA_V2]
    reasons = {family: misfits(family, config, heads, pad) + more(family) for family in order}
    for family, why in reasons.items():
        if not why:
            return family
    listed = "\n".join(f"  {family.model_type}: {'; '.join(why)}" for family, why in reasons.items())
    raise ValueError(f"no family of transformers computes what this model does:\n{listed}")

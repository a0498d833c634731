"""DeBERTa v1, v2 and v3 in the format of `transformers`: names of tensors, settings, heads.

v1 projects to query, key and value by one fused matrix, keys without a bias, and has separate projections for
distances; v2 and v3 have three matrices, and by default use them for distances, too.
"""

from collections.abc import Collection
from typing import Any

from ag_jax.interop import families
from ag_jax.interop.families import Family, norm, to_heads
from ag_jax.interop.layouts import BY_HEAD, CONVOLUTION, FUSED, TO_HEADS
from ag_jax.interop.names import LAYERS, Name
from ag_jax.interop.settings import Settings
from ag_jax.models.config import EncoderConfig

_SELF = "deberta.encoder.layer.{layer}.attention.self"
_OURS = f"{LAYERS}attention"
_POSITIONS = "deberta.embeddings.position_embeddings.weight"
_CONVOLUTION = "deberta.encoder.conv.conv.weight"
_PASSES = 2  # of the released enhanced mask decoder, for which config.json has no key
# The section of an exported config.json with settings for which transformers has no key.
SECTION = "ag_jax"


def _names(attention: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return the name table of a DeBERTa (tensor of transformers, parameter here), given the entries for attention."""
    return (
        *families.embeddings("deberta"),
        *attention,
        *families.after_attention("deberta"),
        Name("deberta.encoder.rel_embeddings.weight", "encoder/relative/embedding"),
        *families.bert_word_head(),
    )


_V1 = _names(
    (
        Name(f"{_SELF}.in_proj.weight", tuple(f"{_OURS}/{name}/kernel" for name in ("query", "key", "value")), FUSED),
        Name(f"{_SELF}.q_bias", f"{_OURS}/query/bias", BY_HEAD),
        Name(f"{_SELF}.v_bias", f"{_OURS}/value/bias", BY_HEAD),
        Name(f"{_SELF}.pos_proj.weight", f"{_OURS}/relative_key/kernel", TO_HEADS),
        *to_heads(f"{_SELF}.pos_q_proj", f"{_OURS}/relative_query"),
    )
)
_V2 = (
    *_names(
        (
            *to_heads(f"{_SELF}.query_proj", f"{_OURS}/query"),
            *to_heads(f"{_SELF}.key_proj", f"{_OURS}/key"),
            *to_heads(f"{_SELF}.value_proj", f"{_OURS}/value"),
            *to_heads(f"{_SELF}.pos_key_proj", f"{_OURS}/relative_key"),
            *to_heads(f"{_SELF}.pos_query_proj", f"{_OURS}/relative_query"),
        )
    ),
    *norm("deberta.encoder.LayerNorm", "encoder/relative_norm"),
    Name(_CONVOLUTION, "encoder/convolution/kernel", CONVOLUTION),
    Name("deberta.encoder.conv.conv.bias", "encoder/convolution/bias"),
    *norm("deberta.encoder.conv.LayerNorm", "encoder/convolution_norm"),
)


def _terms(settings: Settings) -> str:
    """Return the terms of disentangled attention in a config.json, such as `c2p,p2c`; empty if there are none."""
    if not settings.take("relative_attention", False):
        return ""
    value = settings.raw("pos_att_type") or []
    if not isinstance(value, str | list):
        settings.problems.append(f"pos_att_type must be a text or a list, got {value!r}")
        return ""
    terms = [term for term in value.split("|") if term] if isinstance(value, str) else value
    if unknown := [term for term in terms if term not in ("c2p", "p2c")]:
        settings.problems.append(
            f"pos_att_type={value!r}: {', '.join(map(str, unknown))} is not supported, only c2p and p2c"
        )
        return ""
    if not terms:
        settings.problems.append("relative_attention without pos_att_type is not supported: expected c2p, p2c or both")
    return ",".join(terms)


def _read(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the fields of an EncoderConfig that are read in the same way from configs of DeBERTa v1, v2 and v3."""
    common = families.read_common(settings)
    settings.only("embedding_size", common["width"])
    settings.only("attention_head_size", common["width"] // common["heads"])
    settings.only("talking_head", False)
    settings.only("pooler_dropout", 0)  # of the task head's input, which has no dropout here
    terms = _terms(settings)
    positions = settings.need("max_position_embeddings")
    span = settings.take("max_relative_positions", -1)
    section = Settings(settings.take(SECTION, {}))
    passes = section.take("decoder_passes", _PASSES)
    settings.problems += [f"{SECTION}: {problem}" for problem in section.problems]
    # Position embeddings that are stored but not added to the input belong to the enhanced mask decoder.
    in_decoder = not settings.take("position_biased_input", True) and _POSITIONS in names
    input_or_none = "input" if settings.take("position_biased_input", True) else "none"
    if input_or_none == "none" and not terms:
        settings.problems.append(
            "position_biased_input=False needs relative_attention with c2p or p2c: there is no order of words"
        )
    return common | {
        "layer_norm_epsilon": float(settings.take("layer_norm_eps", 1e-7)),
        "max_length": positions,
        "position_offset": 0,
        "token_types": settings.take("type_vocab_size", 0),
        "absolute_positions": "decoder" if in_decoder else input_or_none,
        "mask_decoder_passes": passes if in_decoder else 0,
        "relative": {"terms": terms, "span": span if span > 0 else positions},
    }


def _read_v1(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    fields = _read(settings, names)
    fields["relative"] |= {"shared": False, "key_bias": False}
    return fields


def _read_v2(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    fields = _read(settings, names)
    settings.only("conv_groups", 1)
    normalisation = settings.take("norm_rel_ebd", "none").strip()
    if normalisation not in ("none", "layer_norm"):
        settings.problems.append(f"norm_rel_ebd={normalisation!r} is not supported, only 'none' and 'layer_norm'")
    # After a problem the width becomes 0, so that one wrong width is not reported twice.
    width = settings.take("conv_kernel_size", 0)
    if width > 0 and width % 2 == 0:
        settings.problems.append(f"conv_kernel_size={width} is not supported, only odd widths")
        width = 0
    if width > 0 and _CONVOLUTION not in names:
        settings.problems.append(f"conv_kernel_size={width}, but there is no {_CONVOLUTION}")
        width = 0
    activation = settings.take("conv_act", "tanh")
    if width and activation not in ("tanh", "gelu"):
        settings.problems.append(f"conv_act={activation!r} is not supported, only 'tanh' and 'gelu'")
        activation = "tanh"
    fields["relative"] |= {
        "shared": settings.take("share_att_key", False),
        "buckets": max(settings.take("position_buckets", -1), 0) or None,
        "normalized": normalisation == "layer_norm",
        "key_bias": True,
    }
    return fields | {"convolution": width if width > 0 else None, "convolution_activation": activation}


def _write(config: EncoderConfig, pad: int) -> dict[str, Any]:
    relative = config.relative
    values = families.write_common(config, pad) | {
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.token_types,
        "position_biased_input": config.absolute_positions == "input",
        "relative_attention": bool(relative.terms),
        "pos_att_type": list(relative.names),
        "max_relative_positions": relative.span,
        "pooler_hidden_size": config.width,
        "pooler_dropout": 0.0,
        "pooler_hidden_act": "gelu",
        "legacy": True,
    }
    return values | ({SECTION: {"decoder_passes": config.mask_decoder_passes}} if config.mask_decoder_passes else {})


def _write_v2(config: EncoderConfig, pad: int) -> dict[str, Any]:
    relative = config.relative
    return _write(config, pad) | {
        "share_att_key": relative.shared,
        "position_buckets": relative.buckets or -1,
        "norm_rel_ebd": "layer_norm" if relative.normalized else "none",
        "conv_kernel_size": config.convolution or 0,
        "conv_act": config.convolution_activation,
    }


_COMMON: dict[str, Any] = {
    "root": "deberta",
    "sizes": families.encoder_sizes("deberta"),
    "layers": families.encoder_layers("deberta"),
    **families.head_dropout_under("cls_dropout"),
    "heads": {"word_head": ("cls.predictions.",)},
    "architectures": {"ForMaskedLM": ("word_head",), "Model": ()},
    "tied": {
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    # Names of the word head in Microsoft's own files, and in transformers with `legacy=False`.
    "aliases": {
        "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
        "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
    },
}
DEBERTA = Family("deberta", classes="Deberta", names=_V1, read=_read_v1, write=_write, **_COMMON)
DEBERTA_V2 = Family("deberta-v2", classes="DebertaV2", names=_V2, read=_read_v2, write=_write_v2, **_COMMON)

"""ModernBERT in the format of `transformers` (Warner et al. 2024): names of tensors, settings, heads.

Ettin and mmBERT have the same class. One tensor of a layer holds the projections to queries, keys and values, and one
the two linear layers before the product of the gated feed-forward part.
"""

import dataclasses
from collections.abc import Collection
from typing import Any

from ag_jax.interop import families
from ag_jax.interop.families import Family, HeadSettings, dense, norm, read_dropout
from ag_jax.interop.layouts import FROM_HEADS, STACKED, STACKED_BIASES
from ag_jax.interop.names import LAYER, LAYERS, Name
from ag_jax.interop.settings import Settings
from ag_jax.models.config import EncoderConfig, Pooling

_LAYER = f"model.layers.{LAYER}"
_QKV = tuple(f"{LAYERS}attention/{name}" for name in ("query", "key", "value"))
_INNER = (f"{LAYERS}feedforward_in", f"{LAYERS}feedforward_gate")  # activated, gate
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
# Options of config.json that no encoder here has, each with its only supported value.
_ONLY = {
    "decoder_bias": True,
    "tie_word_embeddings": True,
    "classifier_activation": "gelu",
    "initializer_cutoff_factor": 2.0,
    "sparse_prediction": False,
    "rope_scaling": None,
    "quantization_config": None,
}
_POOLINGS: dict[str, Pooling] = {"cls": "first", "mean": "mean"}  # `classifier_pooling`
_BASES = {_GLOBAL: ("global_rope_theta", 160_000.0), _LOCAL: ("local_rope_theta", 10_000.0)}


def _stacked(theirs: str, ours: tuple[str, ...]) -> tuple[Name, Name]:
    """Return the name-table entries (tensor of transformers, parameter) for linear layers stacked in one tensor."""
    return (
        Name(f"{theirs}.weight", tuple(f"{path}/kernel" for path in ours), STACKED),
        Name(f"{theirs}.bias", tuple(f"{path}/bias" for path in ours), STACKED_BIASES),
    )


_NAMES = (
    Name("model.embeddings.tok_embeddings.weight", "encoder/embeddings/word/embedding"),
    *norm("model.embeddings.norm", "encoder/embeddings/norm"),
    # The first layer has no LayerNorm before attention.
    *(dataclasses.replace(name, first=1) for name in norm(f"{_LAYER}.attn_norm", f"{LAYERS}attention_norm")),
    *_stacked(f"{_LAYER}.attn.Wqkv", _QKV),
    Name(f"{_LAYER}.attn.Wo.weight", f"{LAYERS}attention/output/kernel", FROM_HEADS),
    Name(f"{_LAYER}.attn.Wo.bias", f"{LAYERS}attention/output/bias"),
    *norm(f"{_LAYER}.mlp_norm", f"{LAYERS}feedforward_norm"),
    *_stacked(f"{_LAYER}.mlp.Wi", _INNER),
    *dense(f"{_LAYER}.mlp.Wo", f"{LAYERS}feedforward_out"),
    *norm("model.final_norm", "encoder/final_norm"),
    *dense("head.dense", "word_head/dense"),
    *norm("head.norm", "word_head/norm"),
    Name("decoder.bias", "word_head/bias"),
)


def _base(settings: Settings, kind: str) -> float:
    """Return the base of the rotary positions in layers of one kind, with global or with local attention.

    It is in `rope_parameters`, or in `global_rope_theta` and `local_rope_theta`. If the latter is null, it is that of
    the layers without a window.
    """
    parameters = settings.take("rope_parameters", {})
    of_kind = parameters.get(kind) or {}
    old, default = _BASES[kind]
    # Earlier versions of transformers call `rope_type` just `type`.
    if not isinstance(of_kind, dict) or of_kind.get("rope_type", of_kind.get("type", "default")) != "default":
        settings.problems.append(f"rope_parameters.{kind}={of_kind!r} is not supported, only rope_type='default'")
        return default
    if kind == _LOCAL and not of_kind and settings.has(old) and settings.raw(old) is None:
        return _base(settings, _GLOBAL)
    bases = Settings({"rope_theta": of_kind.get("rope_theta"), old: settings.raw(old)})
    base = bases.take("rope_theta", bases.take(old, default))
    settings.problems += bases.problems
    return float(base)


def _windows(settings: Settings, layers: int) -> dict[str, Any]:
    """Return the fields `window` and `global_every` of an EncoderConfig; {} if every layer attends globally.

    They are from `layer_types` or else from `global_attn_every_n_layers`.
    """
    every = settings.take("global_attn_every_n_layers", 3)
    default = [_LOCAL if index % max(every, 1) else _GLOBAL for index in range(layers)]
    types = settings.take("layer_types", default)
    window = settings.take("local_attention", 128)
    for choice in (1, *range(2, layers + 1), None):
        windows = {} if choice == 1 else {"window": window, "global_every": choice}
        kinds = [_GLOBAL if choice and index % choice == 0 else _LOCAL for index in range(layers)]
        if types == kinds:
            return windows
    settings.problems.append(
        f"layer_types={types!r} is not supported, only a {_GLOBAL} in layer 0 and every n layers after it, or in none"
    )
    return {}


def _read(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    for key, supported in _ONLY.items():
        settings.only(key, supported)
    biases = settings.take("mlp_bias", False)
    settings.only("classifier_bias", biases, default=False)
    activation = settings.take("hidden_activation", "gelu")
    if activation not in ("gelu", "relu", "silu"):
        settings.problems.append(f"hidden_activation={activation!r} is not supported, only gelu, relu and silu")
        activation = "gelu"
    dropout = float(settings.take("mlp_dropout", 0.0))
    settings.only("embedding_dropout", dropout, default=0.0)  # `model.dropout` is the rate of both
    sizes = families.read_sizes(settings)
    windows = _windows(settings, sizes["layers"])
    base, local = _base(settings, _GLOBAL), _base(settings, _LOCAL)
    if windows and windows["global_every"] is None:  # no layer has the other base
        base = local
    return (
        windows
        | sizes
        | {
            "max_length": settings.need("max_position_embeddings"),
            "position_offset": 0,
            "token_types": 0,
            "positions": "rotary",
            "rotary_base": base,
            "rotary_base_local": local if windows and local != base else None,
            "norm_position": "pre",
            "norm_biases": settings.take("norm_bias", False),
            "first_norm": False,
            "gated": True,
            "activation": activation,
            "attention_biases": settings.take("attention_bias", False),
            "feedforward_biases": biases,
            "dropout": dropout,
            "attention_dropout": float(settings.take("attention_dropout", 0.0)),
            "initializer": "scaled",
            "initializer_range": float(settings.take("initializer_range", 0.02)),
            "layer_norm_epsilon": float(settings.take("norm_eps", 1e-5)),
        }
    )


def _read_heads(settings: Settings) -> HeadSettings:
    pooling = settings.take("classifier_pooling", "cls")
    if pooling not in _POOLINGS:
        settings.problems.append(f"classifier_pooling={pooling!r} is not supported, only {' and '.join(_POOLINGS)}")
    # A missing key stands for no dropout, whatever that of the encoder is.
    return HeadSettings(_POOLINGS.get(pooling, "first"), read_dropout(settings, "classifier_dropout") or 0.0)


def _write_heads(heads: HeadSettings, config: EncoderConfig) -> dict[str, Any]:
    theirs = next(key for key, ours in _POOLINGS.items() if ours == heads.pooling)
    dropout = config.dropout if heads.dropout is None else heads.dropout
    return {"classifier_pooling": theirs, "classifier_dropout": dropout}


def _write(config: EncoderConfig, pad: int) -> dict[str, Any]:
    bases = {_GLOBAL: config.rotary_base, _LOCAL: config.rotary_base_local or config.rotary_base}
    return families.write_sizes(config) | {
        "max_position_embeddings": config.max_length,
        "layer_types": [_LOCAL if is_local else _GLOBAL for is_local in config.local_layers],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
        **({} if config.window is None else {"local_attention": config.window}),
        "hidden_activation": config.activation,
        "norm_eps": config.layer_norm_epsilon,
        "norm_bias": config.norm_biases,
        "attention_bias": config.attention_biases,
        "mlp_bias": config.feedforward_biases,
        "classifier_bias": config.feedforward_biases,
        "decoder_bias": True,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "tie_word_embeddings": True,
        "pad_token_id": pad,
        # transformers would take those of the published tokenizer for keys that are missing.
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    }


def misfits(config: EncoderConfig) -> list[str]:
    """Return the properties of every ModernBERT that an encoder lacks, each with the setting that decides it."""
    conditions = {
        f"its positions are rotary (model.positions={config.positions})": config.positions == "rotary",
        f"it has LayerNorm before attention and feed-forward (model.norm_position={config.norm_position})": (
            config.norm_position == "pre"
        ),
        "its first layer has no LayerNorm before attention (model.first_norm)": not config.first_norm,
        f"it has LayerNorm (model.norm={config.norm})": config.norm == "layer",
        "its feed-forward part is gated (model.gated=False)": config.gated,
        "it does not normalise queries and keys (model.query_key_norm)": not config.query_key_norm,
        "it applies LayerNorm to embeddings (model.embedding_norm=False)": config.embedding_norm,
        "it does not scale embeddings (model.embedding_scale)": not config.embedding_scale,
        "it has no token type embeddings (model.token_types)": not config.token_types,
        "its embeddings have the width of the encoder (model.embedding_width)": not config.is_projected,
    }
    return [reason for reason, holds in conditions.items() if not holds]


MODERNBERT = Family(
    model_type="modernbert",
    root="model",
    classes="ModernBert",
    names=_NAMES,
    heads={"word_head": ("decoder.",)},
    architectures={"ForMaskedLM": ("word_head",), "Model": ()},
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    read=_read,
    write=_write,
    sizes={
        "vocab_size": ("model.embeddings.tok_embeddings.weight", 0),
        "hidden_size": ("model.embeddings.tok_embeddings.weight", 1),
        "intermediate_size": ("model.layers.0.mlp.Wo.weight", 1),
    },
    layers={"num_hidden_layers": f"{_LAYER}."},
    read_heads=_read_heads,
    write_heads=_write_heads,
)

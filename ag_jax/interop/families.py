"""BERT, RoBERTa, CamemBERT and ELECTRA in the format of `transformers`: names of tensors, settings, heads."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from ag_jax.interop.layouts import AS_IS, BY_HEAD, FROM_HEADS, TO_HEADS, TRANSPOSED
from ag_jax.interop.names import LAYER, LAYERS, Name
from ag_jax.interop.settings import Settings
from ag_jax.interop.tensors import Tensors
from ag_jax.models.config import EncoderConfig, Pooling

# Options that no encoder here has: each key of config.json with its only supported value.
EVERYWHERE = {
    "hidden_act": "gelu",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "tie_word_embeddings": True,
    "position_embedding_type": "absolute",
    "quantization_config": None,
}


@dataclasses.dataclass(frozen=True)
class HeadSettings:
    """Pooling and dropout rate of task heads, as config.json states them.

    pooling: what heads for texts read.
    dropout: dropout rate of the heads; None for that of the encoder.
    """

    pooling: Pooling = "first"
    dropout: float | None = None


def read_dropout(settings: Settings, key: str) -> float | None:
    """Return the dropout rate under a key of config.json, None if the key is missing or null.

    A value that is not a rate (at least 0 and below 1) is added to `settings.problems`.
    """
    if settings.raw(key) is None:
        return None
    rate = float(settings.take(key, 0.0))
    if not 0 <= rate < 1:
        settings.problems.append(f"{key} must be at least 0 and below 1, got {rate:g}")
    return rate


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """A `model_type` of transformers: names of its tensors and classes, and how its config.json is read and written.

    root: prefix of the names of the encoder's tensors.
    classes: prefix of the names of its classes.
    names: the name table; its `pooler/` is the pooler of an encoder without a head that reads it.
    heads: prefixes of tensor names by the head here that has them.
    architectures: heads of a class by the ending of its name.
    tied: tensors that some files hold twice: name of the second copy to name of the first.
    read: returns the fields of an EncoderConfig, given config.json and the names of the tensors.
    write: returns the keys of a config.json, given the config and the token id of padding.
    read_heads: returns the settings of task heads.
    write_heads: returns the keys of config.json for the settings of task heads, given these and the encoder's config.
    sizes: keys of config.json that are sizes, each with a tensor and the axis of it that has this size.
    layers: keys of config.json that are numbers of layers, each with what the names of a layer's tensors begin with,
        `{layer}` included.
    aliases: prefixes of names that stand for other prefixes.
    left_out: prefixes of the names of tensors that have no use here.
    constants: returns tensors of the files that hold no parameters, such as tables of sinusoids, given the config.
    from_constants: returns fields of an EncoderConfig that only these tensors tell, given the tensors and the others.
    """

    model_type: str
    root: str
    classes: str
    names: tuple[Name, ...]
    heads: Mapping[str, tuple[str, ...]]
    architectures: Mapping[str, tuple[str, ...]]
    tied: Mapping[str, str]
    read: Callable[[Settings, Collection[str]], dict[str, Any]]
    write: Callable[[EncoderConfig, int], dict[str, Any]]
    sizes: Mapping[str, tuple[str, int]]
    layers: Mapping[str, str]
    read_heads: Callable[[Settings], HeadSettings] = lambda settings: HeadSettings()
    write_heads: Callable[[HeadSettings, EncoderConfig], dict[str, Any]] = lambda heads, config: {}
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    constants: Callable[[EncoderConfig], dict[str, np.ndarray]] = lambda config: {}
    from_constants: Callable[[Tensors, Mapping[str, Any]], dict[str, Any]] = lambda tensors, fields: {}


def unlike_bert(config: EncoderConfig) -> list[str]:
    """Return the properties of BERT's layers that an encoder lacks, each with the setting that decides it."""
    conditions = {
        "it has LayerNorm with biases (model.norm, model.norm_biases)": config.norm == "layer" and config.norm_biases,
        "its feed-forward part is not gated (model.gated)": not config.gated,
        "it does not normalise queries and keys (model.query_key_norm)": not config.query_key_norm,
        "its attention has no window (model.window)": config.window is None,
    }
    return [reason for reason, holds in conditions.items() if not holds]


def encoder_sizes(root: str) -> dict[str, tuple[str, int]]:
    """Return {key of config.json: (tensor, axis of the tensor with this size)} for the sizes of an encoder."""
    tables, layer = f"{root}.embeddings", f"{root}.encoder.layer.0"
    return {
        "vocab_size": (f"{tables}.word_embeddings.weight", 0),
        "embedding_size": (f"{tables}.word_embeddings.weight", 1),
        "max_position_embeddings": (f"{tables}.position_embeddings.weight", 0),
        "type_vocab_size": (f"{tables}.token_type_embeddings.weight", 0),
        "hidden_size": (f"{layer}.output.dense.weight", 0),
        "intermediate_size": (f"{layer}.intermediate.dense.weight", 0),
        "conv_kernel_size": (f"{root}.encoder.conv.conv.weight", 2),
    }


def encoder_layers(root: str) -> dict[str, str]:
    """Return {key of config.json for the number of layers: prefix of the names of a layer's tensors} of an encoder."""
    return {"num_hidden_layers": f"{root}.encoder.layer.{LAYER}."}


def dense(theirs: str, ours: str) -> tuple[Name, Name]:
    """Return the name-table entries (tensor of transformers, parameter) for kernel and bias of a linear layer.

    theirs, ours: the layer's prefix of tensor names in transformers, and of parameter paths in ag_jax.
    """
    return Name(f"{theirs}.weight", f"{ours}/kernel", TRANSPOSED), Name(f"{theirs}.bias", f"{ours}/bias")


def norm(theirs: str, ours: str) -> tuple[Name, Name]:
    """Return the name-table entries (tensor of transformers, parameter) for scale and bias of a LayerNorm."""
    return Name(f"{theirs}.weight", f"{ours}/scale"), Name(f"{theirs}.bias", f"{ours}/bias")


def to_heads(theirs: str, ours: str) -> tuple[Name, Name]:
    """Return the name-table entries (tensor of transformers, parameter) for a projection to queries, keys or values.

    The kernel and bias are split by head in ag_jax, and not in transformers.
    """
    return Name(f"{theirs}.weight", f"{ours}/kernel", TO_HEADS), Name(f"{theirs}.bias", f"{ours}/bias", BY_HEAD)


def embeddings(root: str) -> tuple[Name, ...]:
    """Return the name-table entries (tensor of transformers, parameter) for the input embeddings and their LayerNorm.

    The embeddings are those of words, positions and token types.
    """
    kinds = (("word", "word"), ("position", "position"), ("token_type", "segment"))
    tables = (
        Name(f"{root}.embeddings.{theirs}_embeddings.weight", f"encoder/embeddings/{ours}/embedding", AS_IS)
        for theirs, ours in kinds
    )
    return *tables, *norm(f"{root}.embeddings.LayerNorm", "encoder/embeddings/norm")


def after_attention(root: str) -> tuple[Name, ...]:
    """Return the name-table entries (tensor of transformers, parameter) for the parts of a layer after self-attention.

    These are the output projection of attention, the feed-forward network and both LayerNorms.
    """
    layer = f"{root}.encoder.layer.{{layer}}"
    return (
        Name(f"{layer}.attention.output.dense.weight", f"{LAYERS}attention/output/kernel", FROM_HEADS),
        Name(f"{layer}.attention.output.dense.bias", f"{LAYERS}attention/output/bias"),
        *norm(f"{layer}.attention.output.LayerNorm", f"{LAYERS}attention_norm"),
        *dense(f"{layer}.intermediate.dense", f"{LAYERS}feedforward_in"),
        *dense(f"{layer}.output.dense", f"{LAYERS}feedforward_out"),
        *norm(f"{layer}.output.LayerNorm", f"{LAYERS}feedforward_norm"),
    )


def _bert_like(root: str) -> tuple[Name, ...]:
    """Return the name-table entries (tensor of transformers, parameter) for an encoder like BERT.

    Such an encoder has absolute positions and separate projections to query, key and value.
    """
    attention = f"{root}.encoder.layer.{{layer}}.attention.self"
    projections = (to_heads(f"{attention}.{name}", f"{LAYERS}attention/{name}") for name in ("query", "key", "value"))
    return *embeddings(root), *(name for pair in projections for name in pair), *after_attention(root)


def bert_word_head() -> tuple[Name, ...]:
    """Return the name-table entries (tensor of transformers, parameter) for the head for masked words.

    BERT and DeBERTa have this head, as `cls.predictions`.
    """
    return (
        *dense("cls.predictions.transform.dense", "word_head/dense"),
        *norm("cls.predictions.transform.LayerNorm", "word_head/norm"),
        Name("cls.predictions.bias", "word_head/bias"),
    )


_SIZES = {  # field of EncoderConfig to key of config.json
    "vocabulary_size": "vocab_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "width": "hidden_size",
    "feedforward": "intermediate_size",
}


def read_sizes(settings: Settings) -> dict[str, int]:
    """Return the fields of an EncoderConfig that are sizes, whose keys in config.json all encoders share."""
    return {field: settings.need(key) for field, key in _SIZES.items()}


def write_sizes(config: EncoderConfig) -> dict[str, Any]:
    """Return {key: value} of config.json for an encoder's sizes, the inverse of `read_sizes`."""
    values = {key: getattr(config, field) for field, key in _SIZES.items()}
    return values | {"intermediate_size": config.feedforward or 4 * config.width}


def read_common(settings: Settings) -> dict[str, Any]:
    """Return the fields of an EncoderConfig whose keys in config.json BERT, RoBERTa, ELECTRA and DeBERTa share.

    Adds unsupported options to `settings.problems`.
    """
    for key, supported in EVERYWHERE.items():
        settings.only(key, supported)
    return read_sizes(settings) | {
        "dropout": float(settings.take("hidden_dropout_prob", 0.1)),
        "attention_dropout": float(settings.take("attention_probs_dropout_prob", 0.1)),
        "initializer_range": float(settings.take("initializer_range", 0.02)),
        "layer_norm_epsilon": float(settings.take("layer_norm_eps", 1e-12)),
    }


def write_common(config: EncoderConfig, pad: int) -> dict[str, Any]:
    """Return {key: value} of config.json for the keys that BERT-like families share: the inverse of `read_common`."""
    return write_sizes(config) | {
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "layer_norm_eps": config.layer_norm_epsilon,
        "pad_token_id": pad,
        "tie_word_embeddings": True,
    }


def head_dropout_under(key: str) -> dict[str, Any]:
    """Return arguments of `Family` to read and write the dropout rate of task heads under `key` of config.json.

    They are `read_heads` and `write_heads`.

    Without the key in config.json, the heads have the encoder's rate. Heads for texts read the first token.
    """
    return {
        "read_heads": lambda settings: HeadSettings(dropout=read_dropout(settings, key)),
        "write_heads": lambda heads, config: {} if heads.dropout is None else {key: heads.dropout},
    }


_HEADS = head_dropout_under("classifier_dropout")


def _read_bert(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    common = read_common(settings)
    return common | {
        "max_length": settings.need("max_position_embeddings"),
        "position_offset": 0,
        "token_types": settings.take("type_vocab_size", 2),
    }


def _write_bert(config: EncoderConfig, pad: int) -> dict[str, Any]:
    positions = {"max_position_embeddings": config.max_length, "type_vocab_size": config.token_types}
    return write_common(config, pad) | positions


def _read_roberta(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    common = read_common(settings)
    # Positions count from the padding id + 1, so the table's rows before that are no positions.
    offset, positions = settings.take("pad_token_id", 1) + 1, settings.need("max_position_embeddings")
    if positions <= offset:
        settings.problems.append(
            f"max_position_embeddings={positions} leaves no position: the first is pad_token_id + 1 = {offset}"
        )
    token_types = settings.take("type_vocab_size", 2)
    return common | {"max_length": max(positions - offset, 1), "position_offset": offset, "token_types": token_types}


def _write_roberta(config: EncoderConfig, pad: int) -> dict[str, Any]:
    positions = config.max_length + config.position_offset
    return write_common(config, pad) | {"max_position_embeddings": positions, "type_vocab_size": config.token_types}


def _read_electra(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    fields = _read_bert(settings, names)
    width = settings.take("embedding_size", 128)
    return fields | {"embedding_width": None if width == fields["width"] else width}


def _write_electra(config: EncoderConfig, pad: int) -> dict[str, Any]:
    return _write_bert(config, pad) | {"embedding_size": config.embedding_width or config.width}


BERT = Family(
    model_type="bert",
    root="bert",
    classes="Bert",
    names=(
        *_bert_like("bert"),
        *bert_word_head(),
        *dense("bert.pooler.dense", "next_head/pooler"),
        *dense("cls.seq_relationship", "next_head/classifier"),
        *dense("bert.pooler.dense", "pooler"),
    ),
    heads={"word_head": ("cls.predictions.",), "next_head": ("cls.seq_relationship.",)},
    architectures={
        "ForMaskedLM": ("word_head",),
        "ForPreTraining": ("word_head", "next_head"),
        "ForNextSentencePrediction": ("next_head",),
        "Model": (),
    },
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    read=_read_bert,
    write=_write_bert,
    sizes=encoder_sizes("bert"),
    layers=encoder_layers("bert"),
    **_HEADS,
    left_out=("bert.pooler.",),
)

ROBERTA = Family(
    model_type="roberta",
    root="roberta",
    classes="Roberta",
    names=(
        *_bert_like("roberta"),
        *dense("lm_head.dense", "word_head/dense"),
        *norm("lm_head.layer_norm", "word_head/norm"),
        Name("lm_head.bias", "word_head/bias"),
    ),
    heads={"word_head": ("lm_head.",)},
    architectures={"ForMaskedLM": ("word_head",), "Model": ()},
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    read=_read_roberta,
    write=_write_roberta,
    sizes=encoder_sizes("roberta"),
    layers=encoder_layers("roberta"),
    **_HEADS,
    left_out=("roberta.pooler.", "classification_heads."),  # the latter are fairseq's
)

CAMEMBERT = dataclasses.replace(ROBERTA, model_type="camembert", classes="Camembert")

ELECTRA = Family(
    model_type="electra",
    root="electra",
    classes="Electra",
    names=(
        *_bert_like("electra"),
        *dense("electra.embeddings_project", "encoder/embeddings/projection"),
        *dense("generator_predictions.dense", "word_head/dense"),
        *norm("generator_predictions.LayerNorm", "word_head/norm"),
        Name("generator_lm_head.bias", "word_head/bias"),
        *dense("discriminator_predictions.dense", "discriminator_head/dense"),
        *dense("discriminator_predictions.dense_prediction", "discriminator_head/classifier"),
    ),
    heads={
        "word_head": ("generator_predictions.", "generator_lm_head."),
        "discriminator_head": ("discriminator_predictions.",),
    },
    architectures={"ForMaskedLM": ("word_head",), "ForPreTraining": ("discriminator_head",), "Model": ()},
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    read=_read_electra,
    write=_write_electra,
    sizes=encoder_sizes("electra"),
    layers=encoder_layers("electra"),
    **_HEADS,
)

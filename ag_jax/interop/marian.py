"""MarianMT, the translation models of `transformers`: names of tensors, settings, sinusoids, generation.

A MarianMT has one table of word embeddings for source, target and output, one for the source and one for target and
output, or three tables (`DecoderConfig.tie`). Each of the three forms has a `Family` of its own, because names and tied
tensors differ.
"""

import dataclasses
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from ag_jax.data.json_files import reading
from ag_jax.data.tokenizers import SpecialTokens
from ag_jax.interop.families import Family, dense, norm, to_heads, unlike_bert
from ag_jax.interop.layouts import FROM_HEADS, ROW
from ag_jax.interop.names import LAYER, Name
from ag_jax.interop.settings import Settings
from ag_jax.interop.tensors import Tensors
from ag_jax.models import embeddings
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.models.decoding_config import DecodingConfig, parse_length
from ag_jax.settings import schema

MODEL_TYPE = "marian"
SIDES = ("encoder", "decoder")
EPSILON = 1e-5  # of every LayerNorm, for which config.json has no key
POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in SIDES)
# A table of the wrong form is off by more than this; a right one by rounding, most if it is stored in 16 bits.
TOLERANCE = 4e-3
# The final bias of a word that is never predicted: its probability is 0 even if its embedding is the zero vector.
NEVER = -100.0
BIAS = "output_bias"
_TIES = {(True, True): "all", (False, True): "target", (False, False): "none"}  # by shared embeddings, tied output
_WORDS = {
    "all": {"encoder/embeddings/word/embedding": "model.shared.weight"},
    "target": {
        "encoder/embeddings/word/embedding": "model.encoder.embed_tokens.weight",
        "target_embeddings/word/embedding": "model.decoder.embed_tokens.weight",
    },
}
_WORDS["none"] = _WORDS["target"] | {"output_words/embedding": "lm_head.weight"}
# The parameter with the target's word embeddings.
_TARGET = {"all": "encoder/embeddings/word/embedding"} | dict.fromkeys(
    ("target", "none"), "target_embeddings/word/embedding"
)
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "swish": "silu", "silu": "silu"}
# Options that no model here has: each key of config.json with its only supported value.
_ONLY = {
    "is_encoder_decoder": True,
    "is_decoder": False,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "quantization_config": None,
}
# Keys of generation_config.json that change translations and are not supported, each with the value that does not.
_NEUTRAL: dict[str, Any] = {
    "do_sample": False,
    "num_beam_groups": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "diversity_penalty": 0.0,
    "forced_bos_token_id": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "force_words_ids": None,
    "constraints": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "token_healing": False,
    "stop_strings": None,
    "max_time": None,
}


def _attention(theirs: str, ours: str) -> tuple[Name, ...]:
    """Return the name-table entries (tensor of transformers, parameter) for the projections of attention."""
    inputs = (to_heads(f"{theirs}.{name[0]}_proj", f"{ours}/{name}") for name in ("query", "key", "value"))
    return (
        *(name for pair in inputs for name in pair),
        Name(f"{theirs}.out_proj.weight", f"{ours}/output/kernel", FROM_HEADS),
        Name(f"{theirs}.out_proj.bias", f"{ours}/output/bias"),
    )


def _names(tie: str) -> tuple[Name, ...]:
    """Return the name table (tensor of transformers, parameter) of a MarianMT.

    tie: which tables of word embeddings are tied, as in `DecoderConfig.tie`.
    """
    names = [Name(theirs, ours) for ours, theirs in _WORDS[tie].items()]
    for side in SIDES:
        theirs, ours = f"model.{side}.layers.{LAYER}", f"{side}/layers"
        names += _attention(f"{theirs}.self_attn", f"{ours}/attention")
        names += norm(f"{theirs}.self_attn_layer_norm", f"{ours}/attention_norm")
        if side == "decoder":
            names += _attention(f"{theirs}.encoder_attn", f"{ours}/cross_attention")
            names += norm(f"{theirs}.encoder_attn_layer_norm", f"{ours}/cross_attention_norm")
        names += dense(f"{theirs}.fc1", f"{ours}/feedforward_in")
        names += dense(f"{theirs}.fc2", f"{ours}/feedforward_out")
        names += norm(f"{theirs}.final_layer_norm", f"{ours}/feedforward_norm")
    return (*names, Name("final_logits_bias", BIAS, ROW))


def _equal_sizes(settings: Settings, key: str) -> int:
    """Return the size, such as `ffn_dim`, that config.json must give equally for the encoder and the decoder."""
    sizes = [settings.need(f"{side}_{key}") for side in SIDES]
    if sizes[0] != sizes[1]:
        settings.problems.append(
            f"encoder_{key}={sizes[0]} and decoder_{key}={sizes[1]} are not supported, only equal ones"
        )
    return sizes[0]


def tie_of(values: Mapping[str, Any]) -> str:
    """Return which tables of word embeddings config.json ties (`DecoderConfig.tie`); "all" if its keys contradict."""
    keys = ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    shared, tied = (values.get(key) is not False for key in keys)
    return _TIES.get((shared, tied), "all")


def _read(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Return the fields of an EncoderConfig from config.json, and under `decoder` the fields of a DecoderConfig.

    The field `start` of the latter is left out.
    """
    del names
    for key, supported in _ONLY.items():
        settings.only(key, supported)
    words = settings.need("vocab_size")
    settings.only("decoder_vocab_size", words)
    shared = settings.take("share_encoder_decoder_embeddings", True)
    tied = settings.take("tie_word_embeddings", True)
    # Values that are not supported become problems; defaults stand in below, so that all problems are told at once.
    if (shared, tied) not in _TIES:
        settings.problems.append(
            "tie_word_embeddings=False is not supported together with share_encoder_decoder_embeddings=True, only with "
            "False"
        )
    activation = settings.take("activation_function", "gelu")
    if activation not in _ACTIVATIONS:
        settings.problems.append(
            f"activation_function={activation!r} is not supported, only {', '.join(map(repr, _ACTIVATIONS))}"
        )
    architectures = settings.take("architectures", ["MarianMTModel"])
    if architectures != ["MarianMTModel"]:
        settings.problems.append(f"architectures={architectures!r} is not supported, only ['MarianMTModel']")
    return {
        "vocabulary_size": words,
        "layers": settings.need("encoder_layers"),
        "heads": _equal_sizes(settings, "attention_heads"),
        "width": settings.need("d_model"),
        "feedforward": _equal_sizes(settings, "ffn_dim"),
        "max_length": settings.need("max_position_embeddings"),
        "position_offset": 0,
        "positions": "sinusoidal",
        "token_types": 0,
        "embedding_norm": False,
        "embedding_scale": settings.take("scale_embedding", False),
        "activation": _ACTIVATIONS.get(activation, "gelu"),
        "dropout": float(settings.take("dropout", 0.1)),
        "attention_dropout": float(settings.take("attention_dropout", 0.0)),
        "layer_norm_epsilon": EPSILON,
        "initializer_range": float(settings.take("init_std", 0.02)),
        "decoder": {"layers": settings.need("decoder_layers"), "tie": _TIES.get((shared, tied), "all")},
    }


def _write(config: EncoderConfig, pad: int) -> dict[str, Any]:
    """Return {key: value} of a MarianMT's config.json, without the keys for the decoder (`decoder_settings`)."""
    activations = {"silu": "swish"}
    return {
        "vocab_size": config.vocabulary_size,
        "decoder_vocab_size": config.vocabulary_size,
        "d_model": config.width,
        "encoder_layers": config.layers,
        **{f"{side}_attention_heads": config.heads for side in SIDES},
        **{f"{side}_ffn_dim": config.feedforward or 4 * config.width for side in SIDES},
        **{f"{side}_layerdrop": 0.0 for side in SIDES},
        "activation_function": activations.get(config.activation, config.activation),
        "scale_embedding": config.embedding_scale,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "max_position_embeddings": config.max_length,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "init_std": config.initializer_range,
        "is_encoder_decoder": True,
        "pad_token_id": pad,
    }


def decoder_settings(decoder: DecoderConfig, start: int) -> dict[str, Any]:
    """Return {key: value} of a MarianMT's config.json for the decoder.

    start: id of the token that the decoder reads first.
    """
    shared, tied = next(flags for flags, tie in _TIES.items() if tie == decoder.tie)
    return {
        "decoder_layers": decoder.layers,
        "share_encoder_decoder_embeddings": shared,
        "tie_word_embeddings": tied,
        "decoder_start_token_id": start,
        "forced_eos_token_id": None,
    }


def _tables(config: EncoderConfig) -> dict[str, np.ndarray]:
    """Return {name of a tensor: table of sinusoids} for the positions of encoder and decoder.

    transformers does not save them, but takes those that are in a file, of whatever form.
    """
    table = np.asarray(embeddings.sinusoids(config, jnp.arange(config.max_length), config.width))
    return dict.fromkeys(POSITIONS, table)


def _form_of_sinusoids(tensors: Tensors, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"sinusoid": "marian" or "tensor2tensor"}, the form of a model's position tables; "marian" without tables.

    Raises ValueError if a table is of neither form, or if encoder and decoder have different ones.
    """
    forms = {}
    for name in POSITIONS:
        if name not in tensors.shapes:
            continue
        table = np.asarray(tensors.read(name), np.float32)
        shape = (fields["max_length"], fields["width"])
        if table.shape != shape:
            raise ValueError(
                f"{name} must have the shape {shape} (max_position_embeddings, d_model), got {table.shape}"
            )
        errors = {}
        for form in ("marian", "tensor2tensor"):
            config = EncoderConfig(width=shape[1], heads=1, max_length=shape[0], positions="sinusoidal", sinusoid=form)
            errors[form] = float(np.abs(table - _tables(config)[name]).max())
        nearest = min(errors, key=lambda form: errors[form])
        if not errors[nearest] <= TOLERANCE:  # NaN is not, either
            raise ValueError(
                f"{name} in {tensors.file(name)} is no table of sinusoids, it is up to {errors['marian']:.3g} away "
                f"from Marian's and {errors['tensor2tensor']:.3g} from tensor2tensor's; choose a model without learned "
                "positions"
            )
        forms[name] = nearest
    if len(set(forms.values())) > 1:
        listed = " and ".join(f"{name} has those of {form}" for name, form in forms.items())
        raise ValueError(f"encoder and decoder have different sinusoids, which is not supported: {listed}")
    return {"sinusoid": next(iter(forms.values()), "marian")}


def _family(tie: str) -> Family:
    words = _WORDS[tie]
    first, target = next(iter(words.values())), words[_TARGET[tie]]
    copies = [f"model.{side}.embed_tokens.weight" for side in SIDES]
    tied = {"all": dict.fromkeys((*copies, "lm_head.weight"), first), "target": {"lm_head.weight": target}}
    parts = {path.partition("/")[0]: (theirs,) for path, theirs in list(words.items())[1:]}
    return Family(
        model_type=MODEL_TYPE,
        root="model",
        classes="Marian",
        names=_names(tie),
        heads={"decoder": ("model.decoder.layers.",), BIAS: ("final_logits_bias",), **parts},
        architectures={"MTModel": ("decoder", BIAS, *parts)},
        tied=tied.get(tie, {}),
        read=_read,
        write=_write,
        sizes={
            "vocab_size": (first, 0),
            "d_model": (first, 1),
            "max_position_embeddings": (POSITIONS[0], 0),
            **{f"{side}_ffn_dim": (f"model.{side}.layers.0.fc1.weight", 0) for side in SIDES},
        },
        layers={f"{side}_layers": f"model.{side}.layers.{LAYER}." for side in SIDES},
        constants=_tables,
        from_constants=_form_of_sinusoids,
    )


MARIAN = {tie: _family(tie) for tie in _WORDS}  # by `DecoderConfig.tie`


def misfits(config: EncoderConfig, decoder: DecoderConfig) -> list[str]:
    """Return the reasons why a translation model cannot be exported as a MarianMT; empty if it can."""
    learnt = "hard-coded heads have neither queries nor keys, which its layers need"
    epsilon = f"the epsilon of its LayerNorm is {EPSILON} (model.layer_norm_epsilon={config.layer_norm_epsilon})"
    conditions = {
        f"{learnt} (model.fixed_attention.offsets)": not config.fixed_attention.offsets,
        f"{learnt} (decoder.fixed_attention.offsets)": not decoder.fixed_attention.offsets,
        "it has LayerNorm after the residual sums (model.norm_position)": config.norm_position == "post",
        **dict.fromkeys(unlike_bert(config), False),
        "it has no LayerNorm on the embeddings (model.embedding_norm)": not config.embedding_norm,
        "its positions are sinusoidal (model.positions)": config.positions == "sinusoidal",
        "it adds positions to the input (model.absolute_positions)": config.absolute_positions == "input",
        "it has no token type embeddings (model.token_types)": not config.token_types,
        "its embeddings have the width of the layers (model.embedding_width)": not config.is_projected,
        epsilon: config.layer_norm_epsilon == EPSILON,
    }
    return [reason for reason, holds in conditions.items() if not holds]


def with_biases(params: Mapping[str, np.ndarray], tie: str) -> dict[str, np.ndarray]:
    """Return the parameters with zeros for the biases that a MarianMT has and the model lacks.

    params: {path: array}.
    """
    arrays = dict(params)
    for name in MARIAN[tie].names:
        (path,) = name.paths
        kernel = arrays.get(re.sub("/bias$", "/kernel", path))
        if path not in arrays and kernel is not None:
            # The axes of a projection from the width to heads are layer, width, head and width of a head.
            to_heads = path.split("/")[-2] in ("query", "key", "value")
            shape = (kernel.shape[0], *kernel.shape[2:]) if to_heads else (kernel.shape[0], kernel.shape[-1])
            arrays[path] = np.zeros(shape, kernel.dtype)
    return arrays


def vocabulary_order(rows: int, pad: int, start: str) -> np.ndarray:
    """Return the order of the vocabulary in an export: an array with the run's token id for each id of the export.

    With `decoder.start=zero`, padding becomes the last word. CTranslate2 drops the last word of a MarianMT and lets the
    decoder begin with the zero vector, as transformers does if padding has a zero embedding. With `begin` the order
    stays, so unless padding is the last word already, CTranslate2 rejects the model, which it would translate wrongly.

    rows: number of word embeddings.
    """
    ids = np.arange(rows)
    return np.append(np.delete(ids, pad), pad) if start == "zero" else ids


def reordered(params: Mapping[str, np.ndarray], decoder: DecoderConfig, pad: int, tokens: int) -> dict[str, np.ndarray]:
    """Return the parameters {path: array} with the word embeddings and output bias in the order of `vocabulary_order`.

    With `decoder.start=zero`, the embedding of padding, from which the decoder of a MarianMT starts, becomes the zero
    vector. Padding stays improbable by its final bias, unless the vector was zero before. So do words beyond the
    vocabulary of the tokenizer, which are never predicted here.

    tokens: size of the tokenizer's vocabulary.
    """
    arrays, tables = dict(params), _WORDS[decoder.tie]
    if tokens < len(arrays[BIAS]):
        arrays[BIAS] = np.append(arrays[BIAS][:tokens], np.minimum(arrays[BIAS][tokens:], NEVER))
    if decoder.start == "zero":
        path = _TARGET[decoder.tie]
        table, bias = arrays[path].copy(), arrays[BIAS].copy()
        if table[pad].any() and decoder.tie != "none":  # otherwise another table holds the output's vectors
            bias[pad] = NEVER
        table[pad] = 0
        arrays |= {path: table, BIAS: bias}
    order = vocabulary_order(len(arrays[BIAS]), pad, decoder.start)
    return {path: leaf[order] if path in (*tables, BIAS) else leaf for path, leaf in arrays.items()}


def without_padding(params: dict[str, Any], pad: int) -> dict[str, Any]:
    """Return the nested parameters with an output bias so low for padding that padding has no probability."""
    bias = np.array(params[BIAS])
    bias[pad] = min(bias[pad], NEVER)
    return params | {BIAS: bias}


def target_words(tie: str) -> str:
    """Return the name of the tensor with the target's word embeddings."""
    return _WORDS[tie][_TARGET[tie]]


def start_of(
    values: Mapping[str, Any], table: np.ndarray, specials: SpecialTokens, file: pathlib.Path
) -> Literal["zero", "begin"]:
    """Return what an imported model's decoder starts from: the zero vector ("zero") or the begin token ("begin").

    values: the content of config.json, with that of generation_config.json over it.
    table: the target's word embeddings.
    file: the file that says it, for error messages.

    Raises ValueError if it is neither the zero vector nor the begin token, which without a token of its own is padding.
    """
    stored, default = values.get("decoder_start_token_id"), values.get("pad_token_id")
    start = default if stored is None else stored
    if type(start) is not int or not 0 <= start < len(table):
        raise ValueError(f"{file}: decoder_start_token_id must be a token id below {len(table)}, got {start!r}")
    if not table[start].any():
        return "zero"
    if start != specials.begin:
        raise ValueError(
            f"{file}: expected the decoder_start_token_id {specials.begin}, or that of a token whose embedding is the "
            f"zero vector, got {start}; choose another model"
        )
    return "begin"


def check_tokens(values: Mapping[str, Any], specials: SpecialTokens, file: pathlib.Path) -> None:
    """Raise ValueError if the ids of padding and of the end token in a file are not those of the tokenizer.

    values: the content of config.json or generation_config.json.
    file: that file, for the error message.
    """
    for key, expected in (("pad_token_id", specials.pad), ("eos_token_id", specials.end)):
        stored = values.get(key, expected)
        if stored not in (expected, [expected]):
            raise ValueError(
                f"{file}: {key}={stored!r}, but the tokenizer's id is {expected}: copy both from the same model"
            )


@dataclasses.dataclass(frozen=True)
class Generation:
    """Decoding settings of an imported translation model, with notes on its settings that are not supported here.

    decoding: the settings here.
    notes: settings that change translations in transformers and are not supported here.
    without_padding: whether padding has no probability, so that those of all other words sum to 1.
    """

    decoding: DecodingConfig
    notes: tuple[str, ...]
    without_padding: bool = False


def read_generation(
    values: Mapping[str, Any], positions: int, specials: SpecialTokens, file: pathlib.Path
) -> Generation:
    """Return the decoding settings of an imported translation model, with notes on those that are not supported here.

    Scores are normalized as in transformers (`power`). `early_stopping` sets `decoding.stop`: true means `full`,
    "never" and false mean `bound`. With false, transformers only estimates the best score that can still be reached, so
    that its translations may differ.

    values: the content of generation_config.json, or of config.json if there is no such file.
    positions: number of positions of the model. A `max_length` equal to it is ignored: the default of
        `decoding.max_length` holds.
    specials: the special tokens.
    file: the file of these settings, for messages.

    Raises ValueError for invalid values.
    """
    settings = Settings(values)
    beams, penalty = settings.take("num_beams", 1), settings.take("length_penalty", 1.0)
    # `min_new_tokens`, which comes before `min_length`, counts neither the start nor the end token.
    shortest = settings.take("min_new_tokens", -1) + 1 or settings.take("min_length", 0)
    longest = settings.take("max_new_tokens", 0) or settings.take("max_length", positions) - 1
    early = settings.raw("early_stopping")
    if not (early is None or isinstance(early, bool) or early == "never"):
        settings.problems.append(f"early_stopping must be true, false or 'never', got {early!r}")
    if settings.problems:
        raise ValueError(f"{file}: " + "; ".join(settings.problems) + "; copy the file anew")
    is_greedy = beams == 1
    with reading(file, "set another value"):
        decoding = DecodingConfig(
            beam_size=beams,
            normalization="power",
            length_penalty=float(penalty),
            stop="full" if early is True or is_greedy else "bound",
            ends="first",
            min_length=str(shortest),
            max_length=DecodingConfig.max_length if longest >= positions - 1 else str(longest),
        )
        schema.check(decoding, "decoding")
    unsupported = [key for key, neutral in _NEUTRAL.items() if values.get(key) not in (None, neutral)]
    # Padding, begin and mask token are never predicted here. The model converted from Marian has a vector for padding,
    # which Marian had not, so that transformers must leave it out before it compares hypotheses.
    forbidden = values.get("bad_words_ids") or []
    never = [[id] for id in (specials.pad, specials.begin, specials.mask)]
    if not isinstance(forbidden, list) or any(words not in never for words in forbidden):
        unsupported.append("bad_words_ids")
    without_padding = values.get("renormalize_logits") is True and forbidden == [[specials.pad]]
    if values.get("renormalize_logits") and not without_padding:
        unsupported.append("renormalize_logits")
    notes = tuple(f"{key}={values[key]!r} ({file.name})" for key in unsupported)
    return Generation(decoding, notes, without_padding)


def write_generation(
    config: DecodingConfig, positions: int, forbidden: Sequence[int], tokens: Mapping[str, int]
) -> tuple[dict[str, Any], list[str]]:
    """Return (content of generation_config.json, sentences about the decoding settings that it cannot express).

    positions: number of positions of the model.
    forbidden: ids that are never generated.
    tokens: further keys, for the ids of special tokens.
    """
    longest, shortest = (parse_length(text, "decoding") for text in (config.max_length, config.min_length))
    # In transformers, lengths count the token from which the decoder starts.
    maximum = positions if longest.factor else min(longest.constant, positions) + 1
    values: dict[str, Any] = {
        **tokens,
        "bad_words_ids": [[id] for id in forbidden],
        "forced_eos_token_id": None,
        "num_beams": config.beam_size,
        "max_length": maximum,
    }
    not_carried = []
    if config.beam_size > 1:
        values["early_stopping"] = "never" if config.stop == "bound" else True
        if config.normalization == "gnmt" and config.length_penalty:  # a penalty of 0 is the same for all lengths
            not_carried.append(
                f"decoding.normalization=gnmt with length_penalty={config.length_penalty}: transformers divides scores "
                "by the length to the power of a penalty, which is left at its default of 1, so translations may "
                "differ."
            )
        else:
            values["length_penalty"] = 0.0 if config.normalization == "none" else config.length_penalty
        if config.ends == "all":
            not_carried.append(
                "decoding.ends=all: in transformers, hypotheses end only among the first beams (ends=first), so "
                "translations may differ in rare cases."
            )
    elif (config.stop, config.ends) != ("full", "first"):
        not_carried.append("Beam search with a single beam: transformers appends the most probable token instead.")
    if longest.factor:
        not_carried.append(
            f"decoding.max_length={config.max_length}: in transformers, the maximum length does not depend on the "
            f"source; it is {maximum}."
        )
    if shortest.factor:
        not_carried.append(
            f"decoding.min_length={config.min_length}: in transformers, it does not depend on the source."
        )
    elif shortest.constant:
        values["min_length"] = shortest.constant
    return values, not_carried

"""Read a RoBERTa of fairseq as one of transformers: the settings, the names of tensors, and the vocabulary.

model.safetensors   the tensors of the checkpoint and its settings, as `CONVERSION` copies them from there
dict.txt            the vocabulary: a line for each symbol, with the number of its occurrences
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from etils import epath

from ag_jax.data.json_files import parse_json, reading
from ag_jax.data.tokenizer_backends import ROBERTA_SPECIALS
from ag_jax.interop import tensors as stored_tensors
from ag_jax.interop.settings import Settings
from ag_jax.interop.tensors import WHOLE, Tensors

VOCABULARY = "dict.txt"
SETTINGS = "fairseq"  # what the metadata of model.safetensors has them as
# A checkpoint holds its settings as an `argparse.Namespace`, in `args` or, since version 0.12, in `cfg`.
CONVERSION = (
    'python -c "import argparse, json, torch, safetensors.torch as s; '
    "torch.serialization.add_safe_globals([argparse.Namespace]); "
    "p = torch.load('{file}', map_location='cpu', weights_only=True); "
    "a = p.get('args') or p['cfg']['model']; a = a if isinstance(a, dict) else vars(a); "
    "t = {{k: v.clone().contiguous() for k, v in p['model'].items()}}; "
    "s.save_file(t, '{directory}/" + WHOLE + "', {{'" + SETTINGS + "': json.dumps(a, default=str)}})\""
)
_CHECKPOINTS = ("model.pt", "checkpoint_best.pt")  # of several checkpoints, the one to be read
_OVERWRITE = "#fairseq:overwrite"
# Settings that change what the model computes: each with its only supported value.
_ONLY = {
    "activation_fn": "gelu",
    "encoder_normalize_before": False,
    "layernorm_embedding": True,
    "no_scale_embedding": True,
    "encoder_learned_pos": True,
    "no_token_positional_embeddings": False,
    "untie_weights_roberta": False,
    "adaptive_input": False,
}
_SIZES = {  # of config.json, with the settings of fairseq
    "hidden_size": "encoder_embed_dim",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_embed_dim",
}
_WORDS, _POSITIONS = "roberta.embeddings.word_embeddings.weight", "roberta.embeddings.position_embeddings.weight"
_TYPES = "roberta.embeddings.token_type_embeddings.weight"
_ROOTS = ("encoder.", "decoder.")  # the latter in early versions
_ENCODER = {  # beginnings of names
    "embed_tokens.": "embeddings.word_embeddings.",
    "embed_positions.": "embeddings.position_embeddings.",
    "emb_layer_norm.": "embeddings.LayerNorm.",
    "layernorm_embedding.": "embeddings.LayerNorm.",
}
_LAYER = {  # beginnings of names within a layer
    "self_attn.q_proj.": "attention.self.query.",
    "self_attn.k_proj.": "attention.self.key.",
    "self_attn.v_proj.": "attention.self.value.",
    "self_attn.out_proj.": "attention.output.dense.",
    "self_attn_layer_norm.": "attention.output.LayerNorm.",
    "fc1.": "intermediate.dense.",
    "fc2.": "output.dense.",
    "final_layer_norm.": "output.LayerNorm.",
}
_FUSED = "self_attn.in_proj_"  # queries, keys and values of early versions in one tensor, one below the other


def is_here(directory: pathlib.Path | epath.Path) -> bool:
    """Return whether a directory has a model of fairseq and none of transformers."""
    return (directory / VOCABULARY).exists() and not (directory / "config.json").exists()


def read(directory: pathlib.Path) -> tuple[dict[str, Any], Tensors]:
    """Return (keys of the config.json that transformers would have, tensors by its names) of a RoBERTa of fairseq.

    Raises ValueError if the checkpoint is a pickle, with the command that converts it, if it is no RoBERTa, and for
    settings that are not supported; FileNotFoundError if there is no checkpoint.
    """
    file = directory / WHOLE
    if not file.exists():
        checkpoint = _checkpoint(directory)
        raise stored_tensors.unread_pickle(checkpoint, CONVERSION.format(file=checkpoint, directory=directory))
    tensors = stored_tensors.open_directory(directory)
    with reading(file, "remove it, and import prints the command that writes it with the settings of the checkpoint"):
        settings = Settings(parse_json(stored_tensors.metadata(directory)[SETTINGS]))
        arch = settings.raw("arch") or settings.raw("_name")
        tensors = _renamed(tensors)
    if missing := [name for name in (_WORDS, _POSITIONS) if name not in tensors.shapes]:
        raise ValueError(
            f"{file} is no RoBERTa of fairseq (arch={arch}): expected tensors such as "
            f"encoder.sentence_encoder.embed_tokens.weight, got none for {' and '.join(missing)}; choose a RoBERTa"
        )
    with reading(file, "copy the checkpoint anew"):
        (rows, width), (positions, _) = tensors.shapes[_WORDS], tensors.shapes[_POSITIONS]
    if rows != len(words := symbols(directory / VOCABULARY)):
        raise ValueError(
            f"{directory / VOCABULARY} stands for {len(words)} tokens with the special ones, but the embedding has "
            f"{rows} rows, so ids would be of other tokens: take the {VOCABULARY} that the model was trained with"
        )
    for key, supported in _ONLY.items():
        settings.only(key, supported)
    values = {key: settings.need(name) for key, name in _SIZES.items()} | {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "vocab_size": rows,
        "max_position_embeddings": positions,
        "type_vocab_size": 1,
        "hidden_dropout_prob": settings.take("dropout", 0.1),
        "attention_probs_dropout_prob": settings.take("attention_dropout", 0.1),
        "layer_norm_eps": 1e-5,
        "pad_token_id": ROBERTA_SPECIALS.index("<pad>"),
    }
    if settings.problems:
        listed = "\n".join(f"  {problem}" for problem in settings.problems)
        raise ValueError(
            f"{file} has settings of fairseq (arch={arch}) that are wrong, or that ag-jax does not support:\n{listed}\n"
            "Choose a model without them"
        )
    # fairseq has no token types. A row of zeros computes the same, and transformers has one for every text.
    return values, tensors.with_zeros(_TYPES, (1, width))


def _checkpoint(directory: pathlib.Path) -> pathlib.Path:
    """Return the checkpoint of a directory.

    Raises FileNotFoundError if there is none, and ValueError if there are several, none of which has a usual name.
    """
    found = sorted(file.name for file in directory.glob("*.pt"))
    if not found:
        raise FileNotFoundError(
            f"{directory} has {VOCABULARY} but no weights: expected {WHOLE}, or model.pt of fairseq"
        )
    usual = [name for name in _CHECKPOINTS if name in found]
    if len(found) > 1 and not usual:
        raise ValueError(
            f"expected one checkpoint of fairseq in {directory}, got {', '.join(found)}: copy the wanted one with "
            f"{VOCABULARY} to a directory of its own"
        )
    return directory / (usual or found)[0]


def _renamed(tensors: Tensors) -> Tensors:
    """Return the tensors by the names of transformers; those without such a name keep theirs."""
    for name, shape in tensors.shapes.items():
        if _FUSED in name:
            rows = shape[0] // 3
            parts = {
                name.replace(_FUSED, f"self_attn.{kind}_proj."): (rows * number, rows * (number + 1))
                for number, kind in enumerate("qkv")
            }
            tensors = tensors.cut(name, parts)
    return tensors.renamed(_name)


def _name(name: str) -> str:
    """Return the name in transformers of a tensor of fairseq; the same name if it has none."""
    short = next((name.removeprefix(root) for root in _ROOTS if name.startswith(root)), name)
    if short == "lm_head.weight":
        return "lm_head.decoder.weight"
    if short.startswith("lm_head."):
        return short
    kind, _, rest = short.partition(".")
    if kind != "sentence_encoder":
        return name
    before, table = "roberta.", _ENCODER
    if rest.startswith("layers."):
        _, layer, rest = rest.split(".", 2)
        before, table = f"roberta.encoder.layer.{layer}.", _LAYER
    new = (before + theirs + rest.removeprefix(ours) for ours, theirs in table.items() if rest.startswith(ours))
    return next(new, name)


def symbols(file: pathlib.Path | epath.Path) -> list[str]:
    """Return the symbols of a dict.txt in the order of their token ids, with the special tokens around them.

    Where a line is marked as overwriting a symbol, the earlier one gets NOTUSED at its end, as in CamemBERT's tokenizer
    in transformers; of <unk>, which keeps its id, the later one gets it.

    Raises ValueError for a line that is no symbol with a count, and for a symbol that is there twice, or is one of the
    special tokens before the lines, without that mark.
    """
    *found, mask = ROBERTA_SPECIALS
    ids = {symbol: id for id, symbol in enumerate(found)}
    with reading(file, f"copy {VOCABULARY} anew from the model"):
        for symbol, overwrites in _lines(pathlib.Path(file)):
            if symbol in ids:
                if not overwrites:
                    raise ValueError(f"expected different symbols, got {symbol!r} twice")
                if symbol == "<unk>":
                    symbol += "NOTUSED"
                else:
                    found[ids[symbol]] += "NOTUSED"
            ids[symbol] = len(found)
            found.append(symbol)
    return found if mask in ids else [*found, mask]


def _lines(file: pathlib.Path) -> Iterator[tuple[str, bool]]:
    """Yield (symbol, whether it overwrites an earlier one) for each line of a dict.txt."""
    with file.open(encoding="utf-8") as opened:
        for number, line in enumerate(opened, 1):
            text = line.rstrip()
            overwrites = text.endswith(f" {_OVERWRITE}")
            symbol, space, count = text.removesuffix(f" {_OVERWRITE}").rpartition(" ")
            if not (space and count.lstrip("-").isdecimal()):
                raise ValueError(f"expected a symbol and the number of its occurrences in line {number}, got {text!r}")
            yield symbol, overwrites

"""Read a directory of transformers or fairseq: family, encoder config, heads, tensors.

Unsupported options raise an error.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.attention.config import DisentangledConfig
from ag_jax.data.json_files import read_json, reading
from ag_jax.interop import catalogue, fairseq, tokenizer_files
from ag_jax.interop.card import Card, read_card
from ag_jax.interop.families import Family, HeadSettings
from ag_jax.interop.names import LAYER
from ag_jax.interop.settings import Settings
from ag_jax.interop.tensors import WHOLE, Tensors, open_directory
from ag_jax.models.config import DecoderConfig, EncoderConfig
from ag_jax.settings import schema

_OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # as TensorFlow's checkpoints had it
# Of an encoder that was saved without heads.
_BARE = ("embeddings.", "embeddings_project.", "encoder.", "pooler.", "layers.", "final_norm.")


@dataclasses.dataclass(frozen=True)
class Source:
    """Model of a Hugging Face directory: its family, config and heads, with the tensors still on disk.

    decoder: the config of its decoder; one with 0 layers for models that do not translate.
    heads: the heads for pre-training for which it has tensors, or which the classes in its config.json have; of a model
        that translates, all parts besides the encoder.
    tensors: by the names that transformers gives them today.
    architectures: the classes in its config.json.
    card: the statements of its model card.
    head_settings: pooling and dropout rate of task heads.
    values: the keys of its config.json; those that say the same of a model of fairseq.
    left_out: parts of tensors that have no use here.
    """

    directory: pathlib.Path
    family: Family
    config: EncoderConfig
    decoder: DecoderConfig
    heads: tuple[str, ...]
    tensors: Tensors
    architectures: tuple[str, ...]
    card: Card
    head_settings: HeadSettings
    values: dict[str, Any]
    left_out: tuple[str, ...] = ()


def read(directory: pathlib.Path) -> Source:
    """Read the model in a directory of transformers or fairseq, leaving its tensors on disk.

    Raises ValueError that names every unsupported option.
    """
    if fairseq.is_here(directory):
        file, (values, tensors) = directory / WHOLE, fairseq.read(directory)
        family = catalogue.of_config(values)
    else:
        file = directory / "config.json"
        values = read_json(file)
        with reading(file, "choose a model of one of these families"):
            family = catalogue.of_config(values)
        tensors = open_directory(directory)
    tensors = tensors.renamed(_current_names(list(tensors.shapes), family).__getitem__)
    tensors = tensors.renamed(lambda name: _original_name(name, family, tensors.shapes))
    settings = Settings(values)
    fields, head_settings = family.read(settings, tensors.shapes), family.read_heads(settings)
    architectures = tuple(map(str, settings.take("architectures", [])))
    if settings.problems:
        listed = "\n".join(f"  {problem}" for problem in settings.problems)
        raise ValueError(
            f"{file} has values that are wrong, or that ag-jax does not support:\n{listed}\nChoose a model without them"
        )
    _check_sizes(file, values, family, tensors)
    tensors, left_out = _without_unused_types(directory, family, fields, tensors)
    with reading(file, "copy the file anew, or choose another model"):
        decoder = DecoderConfig(**fields.pop("decoder", {}))
        schema.check(decoder, "decoder")
        config = EncoderConfig(**_with_relative(fields | family.from_constants(tensors, fields)))
        schema.check(config, "model")
    # A declared head without tensors counts, too, so that its tensors are reported as missing. So does every part of a
    # model that translates, because none of them could be randomly initialised.
    heads = (
        set(family.heads) if decoder.layers else {head for name in architectures for head in _declared(family, name)}
    )
    for head, beginnings in family.heads.items():
        if any(name.startswith(beginnings) for name in tensors.shapes):
            heads.add(head)
    return Source(
        directory,
        family,
        config,
        decoder,
        tuple(sorted(heads)),
        tensors,
        architectures,
        read_card(directory / "README.md"),
        head_settings,
        values,
        left_out,
    )


def _without_unused_types(
    directory: pathlib.Path, family: Family, fields: dict[str, Any], tensors: Tensors
) -> tuple[Tensors, tuple[str, ...]]:
    """Return (tensors, what was left out): the further token types of a RoBERTa whose tokenizer gives type 0 alone.

    RoBERTa's class in transformers makes a table of two types by default. Rows of types that the tokenizer never gives
    were never trained.

    fields: of the EncoderConfig, in which `token_types` is set to 1 then.
    """
    name = f"{family.root}.embeddings.token_type_embeddings.weight"
    if family.root != "roberta" or fields["token_types"] < 2 or name not in tensors.shapes:
        return tensors, ()
    if tokenizer_files.second_type(directory):
        return tensors, ()
    fields["token_types"] = 1
    return tensors.cut(name, {name: (0, 1)}), (f"{name}[1:], because the tokenizer gives all texts the token type 0",)


def _check_sizes(file: pathlib.Path, values: Mapping[str, Any], family: Family, tensors: Tensors) -> None:
    """Raise ValueError if sizes in config.json differ from the tensors' shapes. No model is initialised for this."""
    shapes, problems = tensors.shapes, list[str]()
    for key, layer in family.layers.items():
        pattern = re.compile(re.escape(layer).replace(re.escape(LAYER), r"(\d+)"))
        stored = {match[1] for match in map(pattern.match, shapes) if match}
        # Stored layers that are not declared are reported later, with all tensors that have no place (`names.check`).
        if values[key] > len(stored):
            problems.append(f"{key}={values[key]}, but the tensors {layer}* are of {len(stored)} layers")
    for key, (name, axis) in family.sizes.items():
        size, shape = values.get(key), shapes.get(name)
        if size is not None and shape is not None and (len(shape) <= axis or shape[axis] != size):
            problems.append(f"{key}={size}, but {name} is {shape}")
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ValueError(f"{file} and {tensors.source.name} are of different models:\n{listed}\nCopy both of them anew")


def untied_shapes(source: Source) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of a model's tensors, without stored duplicates of tied tensors and without constants.

    Raises ValueError if a duplicate differs from its original.
    """
    shapes = dict(source.tensors.shapes)
    for second, first in source.family.tied.items():
        if second not in shapes:
            continue
        if shapes[second] != shapes[first] or not np.array_equal(
            source.tensors.read(second), source.tensors.read(first)
        ):
            raise ValueError(
                f"{second} {shapes[second]} and {first} {shapes[first]} of {source.directory} differ, but here output "
                "layers share the input embeddings: choose a model with tied embeddings"
            )
        del shapes[second]
    constants = source.family.constants(source.config)
    return {name: shape for name, shape in shapes.items() if name not in constants}


def _current_names(names: Sequence[str], family: Family) -> dict[str, str]:
    """Return the name in current transformers of each stored tensor, {stored name: name}.

    A prefix that all names share, as `module.`, `_orig_mod.` or `base_model.model.` of wrappers, is left out if more
    tensors have a place without it.
    """
    table = {name.theirs for name in family.names}

    def without(depth: int) -> dict[str, str]:
        short = {name: name.split(".", depth)[-1] for name in names}
        has_root = any(name.startswith(f"{family.root}.") for name in short.values())
        return {name: _current_name(shorter, family, has_root) for name, shorter in short.items()}

    def fitting(depth: int) -> int:
        return sum(re.sub(r"\b\d+\b", LAYER, name) in table for name in without(depth).values())

    parts = zip(*(name.split(".")[:-1] for name in names), strict=False)
    shared = len([*itertools.takewhile(lambda part: len({*part}) == 1, parts)])
    return without(max(range(shared + 1), key=fitting))


def _current_name(name: str, family: Family, has_root: bool) -> str:
    """Return the name, in current transformers, of a tensor that may be stored under an older name.

    The returned name begins with the family's prefix, such as `bert.`, if the tensor belongs to the encoder.

    has_root: whether the names in the file already have this prefix.
    """
    for old, new in _OLD.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if not has_root and name.startswith(_BARE):
        name = f"{family.root}.{name}"
    for beginning, meant in family.aliases.items():
        if name.startswith(beginning):
            return meant + name.removeprefix(beginning)
    return name


def _original_name(name: str, family: Family, names: Collection[str]) -> str:
    """Return the name of a stored tensor, or of its original if it is a tied copy whose original is not stored.

    A tied copy is, for example, the output layer's weight, with the word embeddings as the original.

    names: names of all stored tensors.
    """
    first = family.tied.get(name, name)
    return name if first in names else first


def _with_relative(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | ({"relative": DisentangledConfig(**fields["relative"])} if "relative" in fields else {})


def _declared(family: Family, architecture: str) -> Sequence[str]:
    """Return the names of the pre-training heads that the `transformers` class `architecture` has."""
    return family.architectures.get(architecture.removeprefix(family.classes), ())

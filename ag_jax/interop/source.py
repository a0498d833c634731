"""Read a Hugging Face directory: family, encoder config, heads, tensors. Unsupported options raise an error."""

import dataclasses
import pathlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax import config_reader
from ag_jax.attention.disentangled import DisentangledConfig
from ag_jax.data.json_files import read_json
from ag_jax.interop import catalogue
from ag_jax.interop.card import Card, read_card
from ag_jax.interop.families import Family
from ag_jax.interop.settings import Settings
from ag_jax.interop.tensors import Tensors, open_directory
from ag_jax.models.config import EncoderConfig

_OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # as TensorFlow's checkpoints had it
_BARE = ("embeddings.", "embeddings_project.", "encoder.", "pooler.")  # of an encoder that was saved without heads


@dataclasses.dataclass(frozen=True)
class Source:
    """Model of a Hugging Face directory: its family, encoder config and heads, with the tensors still on disk.

    heads: the heads for pre-training for which it has tensors, or which the classes in its config.json have.
    tensors: by the names that transformers gives them today.
    architectures: the classes in its config.json.
    card: the statements of its model card.
    values: the keys of its config.json.
    """

    directory: pathlib.Path
    family: Family
    config: EncoderConfig
    heads: tuple[str, ...]
    tensors: Tensors
    architectures: tuple[str, ...]
    card: Card
    values: dict[str, Any]


def read(directory: pathlib.Path) -> Source:
    """Read a model's directory, leaving tensors on disk. Raises ValueError that names every unsupported option."""
    file = directory / "config.json"
    values = _json(file)
    try:
        family = catalogue.named(values.get("model_type"))
    except ValueError as error:
        raise ValueError(
            f"{file}: expected a model_type of a supported family ({', '.join(catalogue.FAMILIES)}), "
            f"got {values.get('model_type')!r}; choose a model of one of these families"
        ) from error
    tensors = open_directory(directory)
    has_root = any(name.startswith(f"{family.root}.") for name in tensors.shapes)
    tensors = tensors.renamed(lambda name: _current_name(name, family, has_root))
    tensors = tensors.renamed(lambda name: _original_name(name, family, tensors.shapes))
    settings = Settings(values)
    fields = family.read(settings, tensors.shapes)
    architectures = tuple(map(str, settings.take("architectures", [])))
    if settings.problems:
        listed = "\n".join(f"  {problem}" for problem in settings.problems)
        raise ValueError(
            f"{file} has values that are wrong, or that ag-jax does not support:\n{listed}\n"
            "Choose a model without them, or copy the file anew if it is damaged"
        )
    _check_sizes(file, values, family, fields, tensors)
    try:
        config = EncoderConfig(**_with_relative(fields))
        config_reader.check(config, "model")
    except ValueError as error:
        raise ValueError(
            f"{file} describes an encoder that cannot work: {error}\n"
            "(These are ag-jax's names for the settings.) Copy the file anew, or choose another model"
        ) from error
    # A declared head without tensors counts, too, so that its tensors are reported as missing.
    heads = {head for name in architectures for head in _declared(family, name)}
    for head, beginnings in family.heads.items():
        if any(name.startswith(beginnings) for name in tensors.shapes):
            heads.add(head)
    return Source(
        directory,
        family,
        config,
        tuple(sorted(heads)),
        tensors,
        architectures,
        read_card(directory / "README.md"),
        values,
    )


def _check_sizes(
    file: pathlib.Path,
    values: Mapping[str, Any],
    family: Family,
    fields: Mapping[str, Any],
    tensors: Tensors,
) -> None:
    """Raise ValueError if sizes in config.json differ from the tensors' shapes. No model is initialised for this."""
    root, layers = family.root, re.compile(rf"{family.root}\.encoder\.layer\.(\d+)\.")
    shapes = tensors.shapes
    stored = {found[1] for name in shapes if (found := layers.match(name))}
    problems = []
    # Stored layers that are not declared are reported later, with all tensors that have no place (`names.check`).
    if fields["layers"] > len(stored):
        problems.append(f"num_hidden_layers={fields['layers']}, but the tensors are of {len(stored)} layers")
    tables = {
        "vocab_size": (f"{root}.embeddings.word_embeddings.weight", 0),
        "embedding_size": (f"{root}.embeddings.word_embeddings.weight", 1),
        "max_position_embeddings": (f"{root}.embeddings.position_embeddings.weight", 0),
        "type_vocab_size": (f"{root}.embeddings.token_type_embeddings.weight", 0),
        "hidden_size": (f"{root}.encoder.layer.0.output.dense.weight", 0),
        "intermediate_size": (f"{root}.encoder.layer.0.intermediate.dense.weight", 0),
        "conv_kernel_size": (f"{root}.encoder.conv.conv.weight", 2),
    }
    declared = {key: values[key] for key in tables if values.get(key) is not None}
    for key, size in declared.items():
        name, axis = tables[key]
        shape = shapes.get(name)
        if shape is not None and (len(shape) <= axis or shape[axis] != size):
            problems.append(f"{key}={size}, but {name} is {shape}")
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ValueError(f"{file} and {tensors.source.name} are of different models:\n{listed}\nCopy both of them anew")


def untied_shapes(source: Source) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of a model's tensors, without stored duplicates of tied tensors.

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
                f"{second} {shapes[second]} and {first} {shapes[first]} of {source.directory} differ: ag-jax supports "
                "only models whose output layer shares its values with the input embeddings (tied embeddings). Choose "
                "a model with tied embeddings"
            )
        del shapes[second]
    return shapes


def _json(file: pathlib.Path) -> dict[str, Any]:
    try:
        return read_json(file)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file} is missing: expected a model's directory as transformers saves it") from error


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
    """Return the name under which the stored tensor `name` is read: the original's name if the tensor is a tied copy
    whose original is not stored, otherwise `name`.

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

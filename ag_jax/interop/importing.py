"""From a Hugging Face directory to a run directory that stands at step 0."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import jax
import numpy as np
from etils import epath

from ag_jax import learner, run
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.experiment import ExperimentConfig
from ag_jax.interop import directories, names, tokenizer_files
from ag_jax.interop import source as sources
from ag_jax.interop.source import Source
from ag_jax.objectives.replaced_tokens import ReplacedTokensConfig
from ag_jax.training import sharding
from ag_jax.training.config import TrainingConfig

ORIGIN = "origin.json"  # what an imported run was, for whoever exports it again
SEQUENCE_LENGTH = 128  # of the run, where the model's positions allow it


@dataclasses.dataclass(frozen=True)
class Imported:
    """What became of a model: new heads had no tensors and have fresh values, left_out tensors have no use here."""

    family: str
    parameters: int
    new: tuple[str, ...]
    left_out: tuple[str, ...]


def convert(path: str, workdir: epath.Path, expected: Sequence[str] = ()) -> Imported:
    """Write the model of `path` as the run `workdir`. `expected`: beginnings of names of tensors that may be left out.

    Raises ValueError or FileNotFoundError for whatever does not fit, with nothing written.
    """
    source = sources.read(directories.find(path))
    tokenizer = tokenizer_files.read(source.directory, source.family)
    tokenizer_files.check_size(tokenizer, source.config.vocabulary_size)
    _check_padding(source, tokenizer)
    target = pathlib.Path(workdir)
    with directories.whole(target) as partial:
        config = experiment_config(source, target / "tokenizer")
        params, new, left_out = parameters(source, config, tokenizer, expected)
        run.write(config, epath.Path(partial), tokenizer, params)
        origin = {
            "model_type": source.family.model_type,
            "name": source.directory.name if pathlib.Path(path).expanduser().is_dir() else path,
            "architectures": source.architectures,
            "license": source.license,
            "new": new,
            "left_out": left_out,
        }
        (partial / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n")
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    return Imported(source.family.model_type, count, tuple(new), tuple(left_out))


def experiment_config(source: Source, tokenizer: pathlib.Path) -> ExperimentConfig:
    """The config of an imported run: its model, its heads, and defaults for what only training would need."""
    length = min(SEQUENCE_LENGTH, source.config.max_length)
    pairs, detects = "next_head" in source.heads, "discriminator_head" in source.heads
    return ExperimentConfig(
        title=f"{source.family.model_type} from {source.directory.name}",
        data=DataConfig(
            format="segment_pair_nsp" if pairs else "full_sentences",
            sequence_length=length,
            tokenizer=TokenizerConfig(path=str(tokenizer)),
            masking=MaskingConfig(replacement="unigram" if detects else "mask"),
        ),
        model=source.config,
        replaced_tokens=ReplacedTokensConfig(generator="unigram" if detects else "none"),
        training=TrainingConfig(batch_size=32),
    )


def parameters(
    source: Source, config: ExperimentConfig, tokenizer: Tokenizer, expected: Sequence[str]
) -> tuple[dict, list[str], list[str]]:
    """The nested parameters, the heads among them that are new, and the names of tensors that are left out.

    Raises ValueError that lists every missing, extra and misshapen tensor.
    """
    mesh = sharding.make_mesh(sharding.MeshConfig(data=1), jax.devices()[:1])
    init = learner.make_learner(config, tokenizer, mesh).init
    fresh = names.flat(learner.unboxed(jax.eval_shape(init)))
    shapes = {path: leaf.shape for path, leaf in fresh.items()}
    new = sorted({path.partition("/")[0] for path in shapes} - {"encoder", *source.heads})
    known = {path: shape for path, shape in shapes.items() if path.partition("/")[0] not in new}
    wanted = names.places(source.family.names, known)
    found = sources.untie(source)
    left_out = names.check(
        wanted,
        found,
        f"the tensors of {source.directory} are not those of the {source.family.model_type} in its config.json",
        (*expected, *source.family.left_out),
        "\nTo leave out what has no place here, name the beginnings: --expect=classifier,qa_outputs",
    )
    arrays = names.load(wanted, source.tensors.read, shapes)
    if new:
        values = names.flat(learner.unboxed(jax.jit(init)()))
        arrays |= {path: np.asarray(values[path]) for path in shapes if path.partition("/")[0] in new}
    return names.nested(arrays), new, left_out


def _check_padding(source: Source, tokenizer: Tokenizer) -> None:
    """RoBERTa counts positions from the padding id on, which must then be the tokenizer's."""
    if source.family.root == "roberta" and source.config.position_offset != tokenizer.specials.pad + 1:
        raise ValueError(
            f"config.json counts positions from pad_token_id + 1 = {source.config.position_offset}, but the tokenizer's padding "
            f"is {tokenizer.specials.pad}: one of them is of another model"
        )

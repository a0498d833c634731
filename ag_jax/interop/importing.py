"""Import a directory of transformers or fairseq as a run directory at step 0, or as a fine-tuned model."""

import dataclasses
import os
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.json_files import read_json
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import storage
from ag_jax.interop import directories, finetuned, marian, names, sentence_vectors, task_heads, tokenizer_files
from ag_jax.interop import source as sources
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.marian import Generation
from ag_jax.interop.source import Source
from ag_jax.models.heads import task_encoder
from ag_jax.models.one_line import one_line
from ag_jax.objectives.config import ReplacedTokensConfig
from ag_jax.pretraining import build, initial_weights
from ag_jax.pretraining import origin as origins
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.origin import Origin, Pooler
from ag_jax.training import sharding
from ag_jax.training.config import MeshConfig, TrainingConfig

POSITIONS = "encoder/embeddings/position/embedding"
GENERATION = "generation_config.json"
SEQUENCE_LENGTH = 128  # of the run, where the model's positions allow it


@dataclasses.dataclass(frozen=True)
class Imported:
    """Facts about an imported model: its family, its size, and what was randomly initialised or left out.

    family: the `model_type`, with the kind of task for a fine-tuned model.
    parameters: number of parameters written.
    new: heads without tensors, which were randomly initialised.
    left_out: names of tensors that have no use here.
    notes: settings of generation that are not supported.
    """

    family: str
    parameters: int
    new: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class OpenModel:
    """The model of a Hugging Face directory, converted to the config and parameters of a run.

    params: of the encoder and the heads for pre-training, or of encoder and decoder.
    pooler: BERT's, whether or not a head for pre-training reads it.
    new, left_out, notes: see `Imported`.
    """

    source: Source
    config: ExperimentConfig
    tokenizer: Tokenizer
    params: dict[str, Any]
    pooler: Pooler
    new: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()

    __repr__ = one_line


def convert(path: epath.PathLike, workdir: epath.PathLike, expected: Sequence[str] = ()) -> Imported:
    """Import a model from a directory or the hub: as a fine-tuned model if it has a task head, else as a run at step 0.

    path: a directory, or a name on the hub.
    workdir: the directory to be written.
    expected: prefixes of the names of tensors that may be left out.
    Raises ValueError or FileNotFoundError for whatever does not fit, with nothing written.
    """
    workdir = storage.directory(workdir)
    directories.check_free(workdir)
    source = sources.read(directories.find(path))
    if _kind(source, expected):
        tuned, left_out = open_finetuned(path, expected)
        with directories.whole_anywhere(workdir) as place:
            finetuned.save(tuned, place)
        family = f"{source.family.model_type} for {tuned.head.kind}"
        return Imported(family, _count(tuned.params), (), left_out)
    opened = open_model(path, expected, workdir / "tokenizer")
    with directories.whole_anywhere(workdir) as place:
        initial_weights.write(opened.config, place, opened.tokenizer, opened.params)
        pooler = {} if "next_head" in opened.params else opened.pooler
        origins.write(place, origin_of(opened, path), pooler)
    count = _count(opened.params) + _count(pooler)
    return Imported(source.family.model_type, count, opened.new, opened.left_out, opened.notes)


def _count(params: dict[str, Any]) -> int:
    """Return the number of elements of all arrays in a tree of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def open_model(
    path: epath.PathLike, expected: Sequence[str] = (), tokenizer_place: epath.Path | None = None
) -> OpenModel:
    """Open a Hugging Face model for use as a run, without its task head if it has one, and without writing anything.

    path: a directory, or a name on the hub.

    expected: prefixes of the names of tensors that may be left out.
    tokenizer_place: the tokenizer's path in the returned config, by default the model's directory.
    """
    _check_expected(expected)
    source = sources.read(directories.find(path))
    tokenizer = _tokenizer(source)
    place = tokenizer_place or source.directory
    if source.decoder.layers:  # a translation model, whose files also say how it generates
        generation = _generation(source, tokenizer)
        config = translation_config(source, tokenizer, place, generation)
    else:
        generation, config = None, experiment_config(source, place)
    # The head of a fine-tuned model is no error: a run does not have it.
    kind = task_heads.kind_of(source.family, source.architectures)
    heads = [name.theirs for name in task_heads.names(source.family, kind)] if kind else []
    params, new, left_out = parameters(source, config, tokenizer, expected, heads)
    if generation and generation.without_padding:
        params = marian.without_padding(params, tokenizer.specials.pad)
    # A pooler belongs to the next-sentence head where there is one; otherwise it may begin the head of a task.
    pooler = params.pop("pooler", {}) if "next_head" not in params else params["next_head"]["pooler"]
    return OpenModel(
        source, config, tokenizer, params, pooler, tuple(new), tuple(left_out), generation.notes if generation else ()
    )


def origin_of(opened: OpenModel, path: epath.PathLike) -> Origin:
    """Return the name, licence etc. of a model opened from `path`, to be stored with runs that start from it."""
    return dataclasses.replace(_origin(opened.source, path, opened.tokenizer), new=opened.new, left_out=opened.left_out)


def has_task_head(path: epath.PathLike) -> bool:
    """Return whether a Hugging Face model, in a directory or on the hub, has the head of a task."""
    source = sources.read(directories.find(path))
    return task_heads.kind_of(source.family, source.architectures) is not None


def open_finetuned(path: epath.PathLike, expected: Sequence[str] = ()) -> tuple[FineTuned, tuple[str, ...]]:
    """Return the fine-tuned model of a directory with its task head, and the names of tensors that were not used.

    path: a directory, or a name on the hub.
    expected: prefixes of the names of tensors that may be left out.
    Raises ValueError if the model has no task head, or anything does not fit.
    """
    _check_expected(expected)
    source = sources.read(directories.find(path))
    kind = task_heads.kind_of(source.family, source.architectures)
    if kind is None:
        raise ValueError(
            f"{path} has no head of a task: the classes in its config.json are {', '.join(source.architectures)}; "
            "fine-tune it with `ag-jax finetune`"
        )
    config = task_encoder(source.config)
    head = task_heads.read(source.family, kind, source.values, source.head_settings, config.max_length)
    shapes = finetuned.shapes(head, config)
    entries = names.stored_tensors((*source.family.names, *task_heads.names(source.family, head.kind)), shapes)
    # `task_encoder` changes only a config with a mask decoder, and then drops the positions, which only that reads.
    unread = [POSITIONS] if config != source.config else []
    left_out = names.check(
        entries,
        sources.untied_shapes(source),
        f"the tensors of {source.tensors.source} are not those of the {source.family.model_type} for {head.kind} in "
        "its config.json",
        (*expected, *source.family.left_out, *(name.theirs for name in source.family.names if name.ours in unread)),
        "\nTo leave out tensors without a parameter, list prefixes of their names: --expect=cls,lm_head",
    )
    params = names.nested(names.load(entries, source.tensors, shapes))
    tokenizer = _tokenizer(source)
    tuned = FineTuned(head, config, tokenizer, params, _origin(source, path, tokenizer))
    return tuned, (*source.left_out, *left_out)


def _check_expected(expected: Sequence[str]) -> None:
    """Raise ValueError if a prefix of names of tensors to leave out is empty, because every name begins with it."""
    if "" in expected:
        raise ValueError("--expect has an empty name, with which every tensor's name begins: remove the extra comma")


def _kind(source: Source, expected: Sequence[str]) -> str | None:
    """Return the kind of task of a model's head; None without a task head, or if `expected` leaves the head out.

    expected: prefixes of the names of tensors that may be left out. If they match all tensors of the classifier, the
        head is left out.
    """
    kind = task_heads.kind_of(source.family, source.architectures)
    # The last two names are the classifier's; a dense layer before it may be the encoder's pooler.
    if kind and all(name.theirs.startswith(tuple(expected)) for name in task_heads.names(source.family, kind)[-2:]):
        return None
    return kind


def _origin(source: Source, path: epath.PathLike, tokenizer: Tokenizer) -> Origin:
    is_local = pathlib.Path(path).expanduser().is_dir()
    name, commit = (
        (source.directory.name, "") if is_local else (os.fspath(path).partition("@")[0], source.directory.name)
    )
    return Origin(
        model_type=source.family.model_type,
        name=name,
        commit=commit,
        base_model=source.card.base_model if is_local else name,
        architectures=source.architectures,
        license=source.card.license,
        citation=source.card.citation,
        pooling=source.head_settings.pooling,
        head_dropout=source.head_settings.dropout,
        vectors=sentence_vectors.read(source.directory),
        second_type=tokenizer.specials.second_type,
    )


def _tokenizer(source: Source) -> Tokenizer:
    """Return the tokenizer of a Hugging Face directory.

    Raises ValueError if its size or special tokens do not fit the model.
    """
    tokenizer = tokenizer_files.read(source.directory, source.family)
    tokenizer_files.check_size(tokenizer, source.config.vocabulary_size, source.directory)
    if source.decoder.layers:
        marian.check_tokens(source.values, tokenizer.specials, source.directory / "config.json")
    else:
        _check_special_ids(source, tokenizer)
    return tokenizer


def experiment_config(source: Source, tokenizer: pathlib.Path) -> ExperimentConfig:
    """Return the config of an imported run, with objectives for the model's heads and defaults for training.

    tokenizer: path of the tokenizer.
    """
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


def _generation_file(source: Source) -> tuple[dict[str, Any], pathlib.Path]:
    """Return (settings of generation that are not null, their file) of a translation model.

    Earlier versions of transformers had them in config.json. If there is a generation_config.json, later versions
    ignore them there.
    """
    file = source.directory / GENERATION
    if not file.exists():
        return source.values, source.directory / "config.json"
    return {key: value for key, value in read_json(file).items() if value is not None}, file


def _generation(source: Source, tokenizer: Tokenizer) -> Generation:
    values, file = _generation_file(source)
    marian.check_tokens(values, tokenizer.specials, file)
    return marian.read_generation(values, source.config.max_length, tokenizer.specials, file)


def translation_config(
    source: Source, tokenizer: Tokenizer, place: pathlib.Path, generation: Generation
) -> ExperimentConfig:
    """Return the config of a run with an imported translation model.

    The files of its text are named after the languages and do not exist: they are to be set before it is trained.

    place: path of the tokenizer.
    generation: how the model translates.
    Raises ValueError if the decoder starts from a token from which it cannot start here.
    """
    values, file = _generation_file(source)
    # The embeddings show whether the decoder's first token is a vector of zeros.
    words = source.tensors.read(marian.target_words(source.decoder.tie))
    start = marian.start_of(source.values | values, np.asarray(words), tokenizer.specials, file)
    languages = [name or side for name, side in zip(tokenizer.languages, ("source", "target"), strict=True)]
    return ExperimentConfig(
        title=f"{source.family.model_type} from {source.directory.name}",
        data=DataConfig(
            format="parallel",
            source=f"train.{languages[0]}",
            target=f"train.{languages[1]}",
            pack=True,
            sequence_length=min(SEQUENCE_LENGTH, source.config.max_length),
            tokenizer=TokenizerConfig(path=str(place)),
        ),
        model=source.config,
        decoder=dataclasses.replace(source.decoder, start=start),
        decoding=generation.decoding,
        training=TrainingConfig(batch_size=32),
    )


def parameters(
    source: Source,
    config: ExperimentConfig,
    tokenizer: Tokenizer,
    expected: Sequence[str],
    task_head: Sequence[str] = (),
) -> tuple[dict, list[str], list[str]]:
    """Return (nested parameters, names of randomly initialised heads, names of unused tensors) of an imported model.

    The parameters include those of the randomly initialised heads, and `pooler` if the files have a pooler that no
    head reads.

    expected: prefixes of the names of tensors that may be left out.
    task_head: names of the tensors of the model's task head, which are left out where no parameter has them.
    Raises ValueError that names missing, extra and misshapen tensors (`names.check`).
    """
    mesh = sharding.make_mesh(MeshConfig(data=1), jax.devices()[:1])
    program = build.make_program(config, tokenizer, mesh)
    fresh = names.flat(program.abstract.params)
    stored = sources.untied_shapes(source)
    # Heads that the run needs and the directory lacks are randomly initialised below; everything else must be stored.
    shapes = {path: leaf.shape for path, leaf in fresh.items()} | _pooler_shapes(source, stored, expected)
    new = sorted({path.partition("/")[0] for path in fresh} - {"encoder", *source.heads})
    imported = {path: shape for path, shape in shapes.items() if path.partition("/")[0] not in new}
    entries = names.stored_tensors(source.family.names, imported)
    left_out = names.check(
        entries,
        stored,
        f"the tensors of {source.tensors.source} are not those of the {source.family.model_type} of its settings",
        (*expected, *task_head, *source.family.left_out),
        "\nTo leave out tensors without a parameter, list prefixes of their names: --expect=classifier,qa_outputs",
    )
    arrays = names.load(entries, source.tensors, shapes)
    if new:
        values = names.flat(build.unboxed(jax.jit(program.init)(build.random_keys(config.seed)[0])))
        arrays |= {path: np.asarray(values[path]) for path in fresh if path.partition("/")[0] in new}
    return names.nested(arrays), new, [*source.left_out, *left_out]


def _pooler_shapes(source: Source, stored: Collection[str], expected: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return {path: shape} of the pooler's parameters; {} if none is imported, or it belongs to the next-sentence head.

    No pooler is imported if none is stored, or if `expected` leaves it out.

    stored: names of the stored tensors.
    """
    theirs = [name.theirs for name in source.family.names if name.paths[0].startswith("pooler/")]
    present = [name for name in theirs if name in stored and not name.startswith(tuple(expected))]
    if "next_head" in source.heads or not present:
        return {}
    return {"pooler/kernel": (source.config.width,) * 2, "pooler/bias": (source.config.width,)}


def _check_special_ids(source: Source, tokenizer: Tokenizer) -> None:
    """Raise ValueError if config.json and the tokenizer have different ids for the padding, begin or end token.

    Also if RoBERTa's positions do not count from the tokenizer's padding id + 1.
    """
    file, specials = source.directory / "config.json", tokenizer.specials
    if source.family.root == "roberta" and source.config.position_offset != specials.pad + 1:
        raise ValueError(
            f"{file} counts positions from pad_token_id + 1 = {source.config.position_offset}, but the tokenizer's "
            f"padding is {specials.pad}: one of them is of another model; copy both from the same one"
        )
    for key, id in (("pad_token_id", specials.pad), ("cls_token_id", specials.begin), ("sep_token_id", specials.end)):
        # transformers writes a padding id of 0 for models that were given none, and masks padding anyway.
        stored = None if (key, source.values.get(key)) == ("pad_token_id", 0) else source.values.get(key)
        if stored not in (None, id):
            raise ValueError(
                f"{file} has {key}={source.values[key]!r}, but the tokenizer's id is {id}: one of them is of another "
                "model; copy both from the same one"
            )

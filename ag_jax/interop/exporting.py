"""Export a run's checkpoint or a fine-tuned model as a directory that `transformers` opens."""

import dataclasses
import json
from typing import Any

import numpy as np
from etils import epath

from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import storage
from ag_jax.grid import store
from ag_jax.interop import (
    card,
    catalogue,
    directories,
    finetuned,
    marian,
    marian_tokenizer,
    names,
    sentence_vectors,
    task_heads,
    tensors,
    tokenizer_files,
)
from ag_jax.interop.families import Family, HeadSettings
from ag_jax.interop.front_matter import Statements
from ag_jax.interop.importing import GENERATION, POSITIONS
from ag_jax.models.config import EncoderConfig
from ag_jax.models.replaced_tokens import generator_parameters
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.pretraining import translate
from ag_jax.pretraining.open_run import OpenRun, bias_at, open_run
from ag_jax.pretraining.origin import SentenceVectors


@dataclasses.dataclass(frozen=True)
class Exported:
    """Facts about an exported model: its class in transformers, its size, and what could not be exported.

    architecture: the class of transformers that opens the directory.
    parameters: number of parameters in it.
    not_carried: sentences about what transformers has no place for.
    """

    architecture: str
    parameters: int
    not_carried: tuple[str, ...]

    @property
    def predicts_words(self) -> bool:
        """Whether `AutoModelForMaskedLM` of transformers finds a trained head for masked words in the export."""
        # The pre-training class of BERT has a word head, that of ELECTRA has none.
        return self.architecture.endswith("ForMaskedLM") or self.architecture == "BertForPreTraining"


def convert(
    workdir: epath.PathLike,
    step: int | None,
    path: epath.PathLike,
    dtype: str = "float32",
    stated: Statements = Statements(),
    encoder: str = "model",
) -> Exported:
    """Export the checkpoint of `step` (the newest by default), or a fine-tuned model, to the directory `path`.

    Of a run that translates, the mean of `translation.average` checkpoints is exported by default.

    workdir: directory of the run, or of the fine-tuned model.
    dtype: float32, bfloat16 or float16.
    stated: what the user states about the model, for its card.
    encoder: `model`, or the `generator` that was trained beside it to replace tokens.
    Raises ValueError if no family of transformers computes what the model does, with nothing written.
    """
    if dtype not in tensors.DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(tensors.DTYPES)}, got {dtype!r}")
    workdir = storage.directory(workdir)
    directories.check_free(directories.on_disk(path))
    if finetuned.locate(workdir) is not None:
        return _convert_finetuned(workdir, step, path, dtype, stated, encoder)
    opened = open_run(workdir, step)
    if isinstance(opened.model, TranslationModel):
        return _convert_translation(opened, step, path, dtype, stated, encoder)
    origin = opened.origin
    config, tree, not_carried = _chosen(opened, encoder)
    not_carried += _bias(opened) if encoder == "model" else []
    not_carried += tokenizer_files.not_carried(opened.tokenizer)
    heads = sorted(tree.keys() - {"encoder"})
    family = catalogue.fitting(config, heads, opened.tokenizer.specials.pad, origin.model_type)
    # Only BERT's name table has a pooler that no head reads; it was trained with the imported model, not by this run.
    if f"{family.root}.pooler." in family.left_out and "next_head" not in heads:
        if family is catalogue.BERT and opened.pooler and encoder == "model":
            tree["pooler"] = opened.pooler
        else:
            not_carried.append(
                "There is no pooler: where a class of transformers has one, it is fresh, and wants fine-tuning."
            )
    if origin.vectors.unsupported and encoder == "model":
        not_carried.append(
            f"The vectors of texts that `{origin.name}` was trained for with sentence-transformers: they need "
            f"{' and '.join(origin.vectors.unsupported)}."
        )
    if config.mask_decoder_passes:
        not_carried.append(
            "The enhanced mask decoder: transformers predicts words from the last layer instead, so masked words come "
            "out worse than here. Its position embeddings are in the file, and `ag-jax import` takes it up again."
        )
    architecture = family.classes + next(
        ending for ending, class_heads in family.architectures.items() if set(class_heads) == set(heads)
    )
    text = card.text(opened, config, architecture, dtype, stated, _place(path, stated), not_carried)
    # For the heads of tasks that are trained from the export.
    extra = family.write_heads(HeadSettings(origin.pooling, origin.head_dropout), config)
    vectors = origin.vectors if encoder == "model" else SentenceVectors()
    written = ExportedContent(family, family.names, architecture, config, tree, opened.tokenizer, text, extra, vectors)
    return Exported(architecture, _write(written, path, dtype), tuple(not_carried))


def _convert_finetuned(
    workdir: epath.Path, step: int | None, path: epath.PathLike, dtype: str, stated: Statements, encoder: str
) -> Exported:
    """Export a fine-tuned model; it has one checkpoint and no generator, so `step` is None and `encoder` "model"."""
    if step is not None or encoder != "model":
        raise ValueError(
            f"{workdir} is a fine-tuned model, which has neither steps nor a generator: leave --step and --encoder out"
        )
    tuned = finetuned.load(workdir)
    head, origin = tuned.head, tuned.origin
    # A style is named after the family whose heads compute alike, so that is tried first.
    preferred = origin.model_type or head.style
    family = catalogue.fitting(
        tuned.config,
        (),
        tuned.tokenizer.specials.pad,
        preferred,
        lambda family: task_heads.misfits(family, head),
    )
    architecture, table = (
        family.classes + task_heads.HEADS[head.kind].ending,
        (*family.names, *task_heads.names(family, head.kind)),
    )
    stored_head = task_heads.HEADS[head.kind]
    not_carried = (
        *((stored_head.not_carried,) if stored_head.left_out else ()),
        *tokenizer_files.not_carried(tuned.tokenizer),
    )
    result = _result(workdir)
    text = card.finetuned_text(tuned, architecture, dtype, stated, _place(path, stated), not_carried, result)
    layers = {name: layer for name, layer in tuned.params["task_head"].items() if name != stored_head.left_out}
    params = tuned.params | {"task_head": layers}
    extra = task_heads.settings(family, head, tuned.config)
    written = ExportedContent(family, table, architecture, tuned.config, params, tuned.tokenizer, text, extra)
    return Exported(architecture, _write(written, path, dtype), not_carried)


def _bias(opened: OpenRun) -> list[str]:
    """Return a list of at most one sentence: what guidance added to attention scores at the exported step."""
    alpha = bias_at(opened.config, opened.step)
    if not alpha:
        return []
    return [
        f"The bias of guidance: at step {opened.step:,}, training added {alpha:g} times the pattern to the attention "
        "scores of guided heads (guidance.mode=bias). transformers adds nothing, so these heads attend differently."
    ]


def _place(path: epath.PathLike, stated: Statements) -> str:
    """Return the name by which transformers opens the export: its name on the hub, or `./` and its directory's name.

    The directory's parents are left out. `./` is there because transformers looks for other names on the hub if there
    is no such directory.
    """
    return stated.repository or f"./{directories.on_disk(path).name}"


def _result(workdir: epath.Path) -> dict[str, Any] | None:
    """Return the facts of a fine-tuning trial's `result.json`, None if there is no such file.

    Raises ValueError if the file is damaged.
    """
    place = finetuned.locate(workdir)
    results = (store.read(folder) for folder in (workdir, place.parent))
    result = next((result for result in results if result is not None), None)
    return None if result is None else dict(result.facts)


def _convert_translation(
    opened: OpenRun, step: int | None, path: epath.PathLike, dtype: str, stated: Statements, encoder: str
) -> Exported:
    """Export a model that translates as a MarianMT, with its decoding settings in generation_config.json."""
    if encoder != "model":
        raise ValueError(f"--encoder={encoder}: a run that translates has no generator; leave --encoder out")
    config, decoder, tokenizer = opened.model.config, opened.model.decoder_config, opened.tokenizer
    specials = tokenizer.specials
    family = catalogue.translating(config, decoder)
    params, steps = translate.parameters(opened, step)
    arrays = {name: np.asarray(leaf) for name, leaf in names.flat(params).items()}
    arrays = marian.with_biases(arrays, decoder.tie)
    arrays = marian.reordered(arrays, decoder, specials.pad, tokenizer.vocabulary_size)
    constants = {name: table.astype(tensors.DTYPES[dtype]) for name, table in family.constants(config).items()}
    # The export may number words differently, so every id that is written to a file goes through `new_V`.
    order_V = marian.vocabulary_order(config.vocabulary_size, specials.pad, decoder.start)
    new_V = np.argsort(order_V).tolist()

    start = new_V[specials.pad if decoder.start == "zero" else specials.begin]
    tokens = {"pad_token_id": new_V[specials.pad], "eos_token_id": new_V[specials.end], "decoder_start_token_id": start}
    # The decoder here never predicts these three, although the model has scores for them.
    forbidden = sorted({new_V[id] for id in (specials.pad, specials.begin, specials.mask)})
    generation, not_carried = marian.write_generation(opened.config.decoding, config.max_length, forbidden, tokens)
    if decoder.start != "zero":
        not_carried.append(
            "CTranslate2 cannot run this model, only transformers can: the decoder starts from a token's embedding "
            "(decoder.start=begin), and CTranslate2 always starts a MarianMT from the zero vector (decoder.start=zero)."
        )
    not_carried += _bias(opened)
    if "tokenizer.json" in tokenizer.files():  # a sentencepiece model itself is exported for `MarianTokenizer`
        not_carried += tokenizer_files.not_carried(tokenizer)
    architecture = "MarianMTModel"
    settings = {
        "architectures": [architecture],
        "model_type": family.model_type,
        **family.write(config, tokens["pad_token_id"]),
        **marian.decoder_settings(decoder, start),
        "bos_token_id": None,
        "eos_token_id": tokens["eos_token_id"],
        "dtype": dtype,
    }
    text = card.translation_text(opened, steps, architecture, dtype, stated, _place(path, stated), not_carried)

    entries = names.stored_tensors(family.names, {name: leaf.shape for name, leaf in arrays.items()})
    stored = names.store(entries, arrays, tensors.DTYPES[dtype])
    with directories.whole(directories.on_disk(path)) as partial:
        tensors.write(stored | constants, partial / tensors.WHOLE)
        for name, values in (("config.json", settings), (GENERATION, generation)):
            (partial / name).write_text(json.dumps(values, indent=2) + "\n")
        marian_tokenizer.write(tokenizer, partial, order_V, config.max_length)
        (partial / "README.md").write_text(text)
    return Exported(architecture, sum(tensor.size for tensor in stored.values()), tuple(not_carried))


@dataclasses.dataclass(frozen=True)
class ExportedContent:
    """The model, tokenizer, model card and further keys of config.json to be written to an exported directory.

    table: name table for `params`, that of a task's head included.
    architecture: the class of transformers that opens the directory.
    text: the model card.
    settings: further keys of config.json, for a task's head.
    vectors: how sentence-transformers is to compute vectors of texts with the model.
    """

    family: Family
    table: tuple[names.Name, ...]
    architecture: str
    config: EncoderConfig
    params: dict[str, Any]
    tokenizer: Tokenizer
    text: str
    settings: dict[str, Any]
    vectors: SentenceVectors = SentenceVectors()


def _write(model: ExportedContent, path: epath.PathLike, dtype: str) -> int:
    """Write an exported model to the directory `path`, and return its number of parameters."""
    config, params = model.config, {path: np.asarray(leaf) for path, leaf in names.flat(model.params).items()}
    # The other families have no offset of positions.
    if model.family.root != "roberta":
        config, params = _from_zero(config, params)
    entries = names.stored_tensors(model.table, {path: leaf.shape for path, leaf in params.items()})
    stored = names.store(entries, params, tensors.DTYPES[dtype])
    target = directories.on_disk(path)
    with directories.whole(target) as partial:
        tensors.write(stored, partial / tensors.WHOLE)
        settings = _settings(model.family, config, model.architecture, model.tokenizer.specials, dtype) | model.settings
        (partial / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
        tokenizer_files.write(model.tokenizer, partial, model.family, config)
        sentence_vectors.write(model.vectors, config.width, partial)
        (partial / "README.md").write_text(model.text)
    return sum(tensor.size for tensor in stored.values())


def _chosen(opened: OpenRun, encoder: str) -> tuple[EncoderConfig, dict[str, Any], list[str]]:
    """Return (config, parameters, sentences about what is not exported) of a run's model or its generator."""
    has_generator = "generator" in opened.params
    if encoder == "generator":
        if not has_generator or "generator" in opened.untrained:
            raise ValueError("--encoder=generator: this run trained no generator beside the model; leave --encoder out")
        return opened.model.generator_config, generator_parameters(opened.params), []
    if encoder != "model":
        raise ValueError(f"--encoder must be model or generator, got {encoder!r}")
    not_carried = [
        "The generator of replaced tokens; --encoder=generator exports it as a separate model."
    ] * has_generator
    not_carried += [
        f"{name}: it was randomly initialised, because `{opened.origin.name}` has none, and was never trained."
        for name in opened.untrained
        if name in opened.params
    ]
    params = {name: tree for name, tree in opened.params.items() if name not in ("generator", *opened.untrained)}
    return opened.model.config, params, not_carried


def _from_zero(config: EncoderConfig, params: dict[str, np.ndarray]) -> tuple[EncoderConfig, dict[str, np.ndarray]]:
    """Drop the position embeddings that only padding reads, so that positions count from 0.

    They are the first `position_offset` rows of the table. Returns the new config and parameters.
    """
    if POSITIONS in params:
        params = params | {POSITIONS: params[POSITIONS][config.position_offset :]}
    return dataclasses.replace(config, position_offset=0), params


def _settings(family: Family, config: EncoderConfig, architecture: str, specials: Any, dtype: str) -> dict[str, Any]:
    """Return the content of the exported config.json, without the keys for a task head."""
    return {
        "architectures": [architecture],
        "model_type": family.model_type,
        **family.write(config, specials.pad),
        "bos_token_id": specials.begin,
        "eos_token_id": specials.end,
        "dtype": dtype,
    }

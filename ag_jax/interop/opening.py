"""Open a model: a run, a fine-tuning trial that saved its weights, or a Hugging Face directory."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from ag_jax.attention.assignment import Assignment, assign_cross_heads, assign_decoder_heads
from ag_jax.attention.patterns import PatternTokens
from ag_jax.data.json_files import read_json
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import storage
from ag_jax.interop import fairseq, finetuned, importing, task_heads
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.importing import OpenModel
from ag_jax.models.config import EncoderConfig
from ag_jax.models.heads import task_encoder
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.one_line import one_line
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.pretraining import corpus, text_attack, translate
from ag_jax.pretraining.build import special_tokens
from ag_jax.pretraining.config import InspectionConfig
from ag_jax.pretraining.open_run import OpenRun, open_run
from ag_jax.pretraining.origin import Origin, Pooler
from ag_jax.pretraining.translate import Translator
from ag_jax.pretraining.workloads import Model, reference_model

HOW = ("dtype", "remat", "scan_layers", "attention")  # fields of EncoderConfig that change a model only by rounding


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """An encoder to be fine-tuned, with its tokenizer, parameters and origin.

    params: some of the parameters of a `TaskModel`: `encoder`, and of `task_head` the first half of a head for texts
        where pre-training had one (`dense`, BERT's pooler; `dense` and `norm` of ModernBERT's head for masked words)
        and a trained head for masked words (`words`); empty if all are to be randomly initialised.
    style: of the task's head, see `models.heads.STYLES`.
    description: where the encoder comes from, for people.
    origin: the imported model that the weights started from.
    run: the run that trained the encoder, None for other models.
    imported: the Hugging Face model that the encoder is a part of, None for other models.
    trained_length: the longest text, in tokens, that the encoder was trained on, 0 for fresh weights; None for all of
        its positions, also where it is not known, in imported models.
    assignment: the heads that guidance pulled towards patterns; none without guidance, and for
        imported models.
    """

    config: EncoderConfig
    tokenizer: Tokenizer
    params: dict[str, Any]
    style: str
    description: str
    origin: Origin = Origin()
    run: OpenRun | None = None
    imported: OpenModel | None = None
    trained_length: int | None = None
    assignment: Assignment = Assignment()

    __repr__ = one_line

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the parameters, settings and tokenizer that a fine-tuning trial starts from.

        These are the parameters, the settings of the encoder, the tokenizer, the head's pooling and dropout rate, and
        the token type of second texts. Settings count if they say what is computed, not how (`HOW`), and if they differ
        from their defaults, so that one that a later version adds changes nothing. A suite compares the digest with
        that of its trials, to notice a checkpoint that was trained or imported again.
        """
        digest = hashlib.sha256()
        hash_params(digest, self.params)
        settings = {
            field.name: value
            for field in dataclasses.fields(self.config)
            if field.name not in HOW and (value := getattr(self.config, field.name)) != field.default
        }
        origin = self.origin
        rest = self.tokenizer.fingerprint(), origin.pooling, origin.head_dropout, origin.second_type, settings
        digest.update(json.dumps(rest, default=dataclasses.asdict).encode())
        return digest.hexdigest()

    @property
    def has_words(self) -> bool:
        """Whether the encoder has a trained head for masked words, from which tasks that rank words start.

        Also true if all parameters are to be randomly initialised, because the head is then initialised with them.
        """
        return not self.params or "words" in self.params.get("task_head", {})

    @property
    def length(self) -> int:
        """The length in tokens of the longest text that the encoder was trained on."""
        return self.config.max_length if self.trained_length is None else self.trained_length

    @property
    def translates(self) -> bool:
        """Whether the encoder is part of a translation model. Texts of such a model have no begin token."""
        return any(opened is not None and opened.config.translates for opened in (self.run, self.imported))


def hash_params(digest: Any, params: Any) -> None:
    """Add the paths, types, shapes and values of parameters to a hash of `hashlib`."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())


@dataclasses.dataclass(frozen=True)
class Inspected:
    """A model whose attention is to be inspected.

    directory: of the run, the trial or the Hugging Face model.
    description: where the model comes from, for people.
    model: any model with an `encoder`.
    params: all its parameters, and those of an adversary.
    length: the longest text, in tokens, that the encoder was trained on.
    text: the sentence to inspect if the user gives none.
    step: of a run's checkpoint, None for other models.
    steps: the steps of all checkpoints of a run.
    assignment: the guided heads of the encoder.
    decoder_assignment: the same for a decoder's self-attention.
    cross_assignment: the same for a decoder's attention to the source.
    translator: translates texts with this model; None if the model does not translate.
    attack: the attack that the model was trained against, None if it cannot be made for a text.
    no_attack: why `attack` is None, for people; empty for a model that was trained without an attack.
    is_ours: whether figures are written to the directory; nothing is added to the directory of a Hugging Face model.
    """

    directory: epath.Path
    description: str
    model: Model
    params: Any
    tokenizer: Tokenizer
    length: int
    text: str = InspectionConfig().sentence
    step: int | None = None
    steps: tuple[int, ...] = ()
    assignment: Assignment = Assignment()
    decoder_assignment: Assignment = Assignment()
    cross_assignment: Assignment = Assignment()
    translator: Translator | None = None
    attack: text_attack.AttackSetup | None = None
    no_attack: str = ""
    is_ours: bool = True

    __repr__ = one_line

    @property
    def name(self) -> str:
        """The last two parts of the directory and the step, for people: `quickstart/ag-seed0, step 1,100`."""
        return self.place if self.step is None else f"{self.place}, step {self.step:,}"

    @property
    def place(self) -> str:
        """The last two parts of the directory, for people."""
        return "/".join(self.directory.parts[-2:]).lstrip("/")

    @property
    def special(self) -> PatternTokens:
        """Ids of the tokens on which attention patterns depend: delimiters and full stops."""
        return special_tokens(self.tokenizer)


@dataclasses.dataclass(frozen=True)
class WordModel:
    """A model that predicts masked words.

    params: its parameters.
    length: the longest text, in tokens, that the encoder was trained on.
    run: the run that trained it, None for a Hugging Face model.
    """

    model: Model
    params: Any
    tokenizer: Tokenizer
    length: int
    run: OpenRun | None = None

    __repr__ = one_line


class NoWordHeadError(ValueError):
    """Raised if a model has no trained head for masked words."""


Opened = OpenRun | FineTuned | OpenModel  # what a directory holds: a run, a trial, a Hugging Face model


def open_model(directory: epath.PathLike, step: int | None = None) -> Opened:
    """Open a run (at `step`, the newest by default), a trial with saved weights, or a Hugging Face directory.

    A Hugging Face model with the head of a task is opened with this head.

    Raises FileNotFoundError or ValueError with what was expected, also for a step of a model that has no steps.
    """
    place = storage.directory(directory)
    if finetuned.locate(place) is None and is_huggingface(place) and importing.has_task_head(str(place)):
        _check_step(step, directory)
        return importing.open_finetuned(str(place))[0]
    return _open(directory, step)


def open_for_inspection(directory: epath.PathLike, step: int | None = None) -> Inspected:
    """Open a run (at `step`, the newest by default), a trial or a Hugging Face model to inspect its attention.

    Raises FileNotFoundError or ValueError with what was expected.
    """
    return inspected_model(_open(directory, step), directory)


def inspected_model(opened: Opened, directory: epath.PathLike) -> Inspected:
    """Return an opened model to inspect its attention.

    directory: of the model.
    """
    directory = storage.directory(directory)
    if isinstance(opened, OpenModel) and opened.config.translates:
        model = reference_model(opened.config, opened.tokenizer)
        translator = translate.make_translator(
            opened.config, model, opened.params, opened.tokenizer, directory, str(directory)
        )
        return Inspected(
            directory=directory,
            description=str(directory),
            model=translator.model,
            params=translator.params,
            tokenizer=translator.tokenizer,
            length=translator.model.config.max_length,
            translator=translator,
            is_ours=False,
        )
    if not isinstance(opened, OpenRun):
        # Only the encoder is looked at, which is the same in every model.
        pretrained = pretrained_encoder(opened, directory)
        encoder = PretrainingModel(pretrained.config, next_sentence=False)
        options = pretrained.params, pretrained.tokenizer, pretrained.length
        is_ours = not is_huggingface(directory)
        return Inspected(directory, pretrained.description, encoder, *options, is_ours=is_ours)
    config = opened.config
    reason = text_attack.unsupported_reason(config)
    return Inspected(
        directory=directory,
        description=_described(opened),
        model=opened.model,
        params=opened.params | opened.adversary_params,
        tokenizer=opened.tokenizer,
        length=opened.length,
        text=corpus.example(config, directory),
        step=opened.step,
        steps=opened.steps,
        assignment=opened.assignment,
        decoder_assignment=Assignment(assign_decoder_heads(config.guidance, config.model.heads)),
        cross_assignment=Assignment(assign_cross_heads(config.guidance, config.model.heads)),
        translator=translate.translator_of(opened) if config.translates else None,
        attack=text_attack.of_run(opened) if reason is None else None,
        no_attack="" if reason is None or config.adversarial.method == "none" else reason,
    )


def is_huggingface(directory: epath.PathLike) -> bool:
    """Return whether a directory has a model of `transformers`, or one of fairseq, which is read as such.

    Raises ValueError if its config.json is no JSON object.
    """
    path = epath.Path(directory) / "config.json"
    return "model_type" in read_json(path) if path.exists() else fairseq.is_here(path.parent)


def open_encoder(checkpoint: epath.PathLike, step: int | None = None, *, fresh: bool = False) -> Pretrained:
    """Open the encoder of a run, a trial or a Hugging Face directory; with `fresh`, without its parameters.

    step: of a run's checkpoint, the newest by default.
    fresh: return only its architecture and tokenizer, without parameters.
    Raises FileNotFoundError or ValueError with what was expected, also for a step of a model that has no steps, and for
    a translation model whose vocabulary has no begin token.
    """
    opened = pretrained_encoder(_open(checkpoint, step), checkpoint)
    if opened.tokenizer.lacks:
        raise ValueError(
            f"{checkpoint} is a translation model whose tokenizer has no token for "
            f"{' and '.join(opened.tokenizer.lacks)}, with which every text of a task begins: choose another model"
        )
    if fresh:
        description = f"fresh weights, architecture of {opened.description}"
        return dataclasses.replace(
            opened, params={}, description=description, run=None, trained_length=0, assignment=Assignment()
        )
    return opened


def _open(checkpoint: epath.PathLike, step: int | None) -> Opened:
    """Open a run, a trial or a Hugging Face directory, the last without the head of a task."""
    directory = storage.directory(checkpoint)
    if finetuned.locate(directory) is not None:
        _check_step(step, checkpoint)
        return finetuned.load(directory)
    if is_huggingface(directory):
        _check_step(step, checkpoint)
        return importing.open_model(str(directory))
    if (directory / "config.json").exists():
        return open_run(directory, step)
    raise FileNotFoundError(
        f"{checkpoint} is no model: expected the directory of a run, of a trial that kept its weights "
        "(--config.keep=best), or of a Hugging Face model (`ag-jax import` fetches one from the hub)"
    )


def _check_step(step: int | None, checkpoint: epath.PathLike) -> None:
    """Raise ValueError for a step of a model that has no steps."""
    if step is not None:
        raise ValueError(f"step={step} selects a checkpoint of a run, but {checkpoint} is no run: leave the step out")


def pretrained_encoder(opened: Opened, directory: epath.PathLike) -> Pretrained:
    """Return the encoder of an opened model, to be fine-tuned or to compute vectors.

    directory: of the model.
    """
    path = str(storage.directory(directory))
    if isinstance(opened, FineTuned):
        return _of_trial(opened, path)
    return _of_run(opened) if isinstance(opened, OpenRun) else _of_huggingface(opened, path)


def check_head(tuned: FineTuned, kinds: Sequence[str], directory: epath.PathLike) -> None:
    """Raise ValueError unless the head of a fine-tuned model is of one of the `kinds`.

    directory: of the model, for the message.
    """
    if tuned.head.kind not in kinds:
        names = " or ".join(kinds)
        raise ValueError(
            f"{directory} has a head for {tuned.head.kind}, but {names} is expected: give a model fine-tuned for that"
        )


def open_masked_lm(directory: epath.PathLike, step: int | None = None) -> WordModel:
    """Open a run or a Hugging Face directory with a head for masked words.

    step: of a run's checkpoint, the newest by default.
    Raises NoWordHeadError if there is no such head.
    """
    return word_model(_open(directory, step), directory)


def word_model(opened: Opened, directory: epath.PathLike) -> WordModel:
    """Return an opened model to predict masked words. Raises NoWordHeadError if it has no head for that.

    directory: of the model, for messages.
    """
    if isinstance(opened, FineTuned):
        raise NoWordHeadError(
            f"{directory} is fine-tuned and has no head for masked words: give the run that it started from"
        )
    if isinstance(opened, OpenModel):
        untrained, architectures = opened.new, opened.source.architectures
        model = reference_model(opened.config, opened.tokenizer)
        words = WordModel(model, opened.params, opened.tokenizer, model.config.max_length)
    else:
        untrained, architectures = opened.untrained, opened.origin.architectures
        words = WordModel(opened.model, opened.params, opened.tokenizer, opened.length, opened)
    # An imported model without this head has a randomly initialised one, of which predictions would be noise.
    if "word_head" in untrained or "word_head" not in words.params or isinstance(words.model, TranslationModel):
        classes = f": its classes are {', '.join(architectures)}" if architectures else ""
        raise NoWordHeadError(
            f"{directory} has no head for masked words{classes}; give a run of masked language modelling, or a model "
            "such as BertForMaskedLM"
        )
    return words


def _described(opened: OpenRun) -> str:
    return f"step {opened.step} of {opened.workdir}"


def _of_run(opened: OpenRun) -> Pretrained:
    config, tokenizer = opened.model.config, opened.tokenizer
    style = task_heads.style_of(config, opened.params, opened.origin.model_type)
    words, description = _words(config, opened.params, opened.untrained), _described(opened)
    pretrained = _pretrained(config, tokenizer, opened.params, opened.pooler, words, style, description, opened.origin)
    return dataclasses.replace(pretrained, run=opened, trained_length=opened.length, assignment=opened.assignment)


def _of_huggingface(opened: OpenModel, path: str) -> Pretrained:
    config, tokenizer = opened.source.config, opened.tokenizer
    style = task_heads.style_of(config, opened.params, opened.source.family.model_type)
    origin = importing.origin_of(opened, path)
    words = _words(config, opened.params, opened.new)
    pretrained = _pretrained(config, tokenizer, opened.params, opened.pooler, words, style, path, origin)
    return dataclasses.replace(pretrained, imported=opened)


def _of_trial(tuned: FineTuned, path: str) -> Pretrained:
    params = {"encoder": tuned.params["encoder"]}
    pretrained = Pretrained(tuned.config, tuned.tokenizer, params, tuned.head.style, path, tuned.origin)
    return dataclasses.replace(pretrained, trained_length=tuned.trained_length, assignment=tuned.assignment)


def _words(config: EncoderConfig, params: dict, untrained: Sequence[str]) -> dict:
    """Return {"words": parameters of the head for masked words} to start a task head from; {} without a trained one.

    Words that are predicted from DeBERTa's mask decoder cannot be predicted without it.
    """
    if "word_head" not in params or "word_head" in untrained or config.mask_decoder_passes:
        return {}
    return {"words": params["word_head"]}


def _pretrained(
    config: EncoderConfig,
    tokenizer: Tokenizer,
    params: dict,
    pooler: Pooler,
    words: dict,
    style: str,
    description: str,
    origin: Origin,
) -> Pretrained:
    """Return an encoder for fine-tuning, without DeBERTa's mask decoder, with parameters from which a task head starts.

    With the style `bert`, the pooler becomes the first layer of the task head. With the style `modernbert`, the task
    head starts from the dense layer and LayerNorm of the head for masked words, as in transformers.

    params: of the pre-trained model, of which only `encoder` is used.
    words: of `_words`.
    """
    config = task_encoder(config)
    encoder = dict(params["encoder"])
    # The mask decoder, which is left out, may have been the only reader of absolute positions.
    if config.absolute_positions == "none":
        encoder["embeddings"] = {name: leaf for name, leaf in encoder["embeddings"].items() if name != "position"}
    initial = {"encoder": encoder}
    first = {"dense": pooler} if style == "bert" and pooler else {}
    # The head of a task works at the width of the encoder, that for words at the width of the embeddings.
    if style == "modernbert" and words and not config.is_projected:
        first = {name: words["words"][name] for name in ("dense", "norm")}
    if head := first | words:
        initial["task_head"] = head
    return Pretrained(config, tokenizer, initial, style, description, origin)

"""Trained models: open one, and use it as arrays, as functions of texts, and in JAX."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from ag_jax.api.attention import Attention, attention
from ag_jax.api.pipelines import answers, choices, classes, tags, translations, vectors, words
from ag_jax.api.pipelines.arguments import pairs_of
from ag_jax.api.pipelines.guesses import Guess
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import storage
from ag_jax.finetuning import best
from ag_jax.interop import directories, exporting, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.importing import OpenModel
from ag_jax.interop.opening import Opened
from ag_jax.models.config import EncoderConfig
from ag_jax.models.encoder import Encoder
from ag_jax.models.heads import TaskModel
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.pretraining import translate as translating
from ag_jax.pretraining.open_run import OpenRun
from ag_jax.pretraining.workloads import reference_model
from ag_jax.settings import imported, schema

# Kinds of heads, see `Model.apply`.
WITH_LOGITS = ("classification", "multilabel", "regression", "tagging", "span", "span_or_none")


class Outputs(NamedTuple):
    """The outputs of a model for a batch.

    hidden: the last hidden states, [texts, tokens, width].
    logits: of a model that predicts masked words, [texts, tokens, vocabulary]; of a fine-tuned model those of its task:
        [texts, classes or labels], [texts] for a regression, [texts, tokens, tags] for tagging, [texts, tokens, 2] for
        the start and the end of an answer. None for other models.
    """

    hidden: jax.Array
    logits: jax.Array | None


def load(source: str | os.PathLike, *, step: int | None = None, trust_code: bool = False) -> "Model":
    """Open a run, a fine-tuned model, or a Hugging Face model.

    source: directory of a run, of a trial with saved weights, of a suite or a comparison, of which the best model is
        opened, or of a Hugging Face model; or a name on the Hugging Face hub, with an optional @REVISION.
    step: step of a run's checkpoint, the newest by default.
    trust_code: import the custom patterns that the run's files name, which executes their modules; otherwise pages and
        figures do not show the targets of these patterns.

    Raises FileNotFoundError or ValueError with what was expected.
    """
    path = os.fspath(source)
    place = pathlib.Path(path).expanduser()
    if storage.is_remote(path) or place.exists():
        directory = storage.directory(best.resolve(path))
    else:
        try:
            directory = epath.Path(directories.find(path))
        except ValueError as error:
            if place.parent.name and place.parent.is_dir():  # rather a directory than a name on the hub
                raise FileNotFoundError(f"{path} does not exist: give the directory of a model") from error
            raise
    opened = opening.open_model(directory, step)
    if trust_code and isinstance(opened, OpenRun):
        imported.allow(schema.flat(schema.to_dict(opened.config)))
    return Model(directory, opened, step)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Model:
    """A trained model, which `load` opens.

    directory: of the run, the trial or the Hugging Face model.

    Its heads are functions of texts, such as `model.fill_mask("The <mask> is strong.")`: `fill_mask`, `embed`,
    `classify`, `tag`, `choose`, `answer` and `translate`. A head that the model does not have is a ValueError.
    """

    directory: epath.Path
    _opened: Opened
    _step: int | None = None

    # The model itself.

    @property
    def config(self) -> EncoderConfig:
        """The architecture of the encoder: `layers`, `heads`, `width` and so on."""
        return self._module.config

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer: `tokenizer.encode(text)`, `tokenizer.decode(ids)`, `tokenizer.tokens(ids)`."""
        return self._opened.tokenizer

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of a run that `load(..., step=N)` opens; none of a model that is no run."""
        return self._opened.steps if isinstance(self._opened, OpenRun) else ()

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, as nested dicts of arrays: `params["encoder"]`, and the heads."""
        return self._opened.params

    @functools.cached_property
    def _module(self) -> Any:
        """The Flax module, with the reference implementation of attention."""
        if isinstance(self._opened, OpenModel):
            return reference_model(self._opened.config, self._opened.tokenizer)
        return self._opened.model

    @functools.cached_property
    def _encoder(self) -> opening.Pretrained:
        return opening.pretrained_encoder(self._opened, self.directory)

    @functools.cached_property
    def _inspected(self) -> opening.Inspected:
        return best.with_attack(opening.inspected_model(self._opened, self.directory))

    @functools.cached_property
    def _tuned(self) -> FineTuned:
        if not isinstance(self._opened, FineTuned):
            raise ValueError(
                f"{self.directory} has no head of a task: give a model that `ag_jax.finetune` or `ag-jax finetune` "
                "trained, or a Hugging Face model with such a head"
            )
        return self._opened

    def batch(self, texts: str | tuple[str, str] | Sequence[str | tuple[str, str]]) -> dict[str, np.ndarray]:
        """Return texts, or pairs of texts, as the batch that `apply` takes, int32 [texts, tokens].

        Special tokens are added, `<mask>` is the mask token, and texts that are too long are cut as in training. Rows
        are as long as the longest text, rounded up to a multiple of 8, so that `jax.jit` compiles few shapes.
        `segment_ids` is 1 at tokens and 0 at padding.
        """
        pairs, _ = pairs_of(texts, None)
        encode = functools.partial(words.encode_with_masks, tokenizer=self.tokenizer)
        rows = vectors.rows(self._encoder, pairs, self._encoder.length, encode)
        length = min(-(-max((len(row["tokens"]) for row in rows), default=1) // 8) * 8, self.config.max_length)
        fields = {name: np.zeros((len(rows), length), np.int32) for name in ("tokens", "segment_ids", "token_type_ids")}
        fields["tokens"][:] = self.tokenizer.specials.pad
        for number, row in enumerate(rows):
            for name, field in row.items():
                fields[name][number, : len(field)] = field
        return fields

    def apply(
        self, params: Any, batch: dict[str, Any], *, train: bool = False, key: jax.Array | None = None
    ) -> Outputs:
        """Return the `Outputs` of a batch; a pure function of its arguments, for `jax.jit` and `jax.grad`.

        params: parameters with the structure of `self.params`.
        batch: of `self.batch`.
        train: with dropout, whose random numbers come from `key`.

        Raises ValueError for training without a key.
        """
        if train and key is None:
            raise ValueError("train=True needs a key for dropout: give key=jax.random.key(SEED)")
        options: dict[str, Any] = {"deterministic": not train, "rngs": {"dropout": key} if train else None}
        batch = {name: jnp.asarray(field) for name, field in batch.items()}
        module, variables = self._module, {"params": params}
        if isinstance(module, PretrainingModel):
            every_BL = jnp.broadcast_to(jnp.arange(batch["tokens"].shape[1]), batch["tokens"].shape)
            heads: Any = module.apply(variables, batch | {"masked_positions": every_BL}, **options)
            if "word_head" in self._untrained:  # logits of random parameters would say nothing
                return Outputs(heads.encoded_BLD, None)
            return Outputs(heads.encoded_BLD, heads.words_BMV[..., : self.tokenizer.vocabulary_size])
        if isinstance(module, TaskModel) and module.kind in WITH_LOGITS:
            weights = {"span_weights": (batch["segment_ids"] > 0).astype(jnp.float32)}
            outcome: Any = module.apply(
                variables, batch | weights, **options, capture_intermediates=_is_encoder, mutable=["intermediates"]
            )
            logits, state = outcome
            return Outputs(state["intermediates"]["encoder"]["__call__"][0], logits)
        hidden: Any = Encoder(self.config).apply({"params": params["encoder"]}, batch, **options)
        return Outputs(hidden, None)

    @property
    def _untrained(self) -> Sequence[str]:
        """Names of the heads with random parameters, which an imported model lacked."""
        if isinstance(self._opened, OpenModel):
            return self._opened.new
        return self._opened.untrained if isinstance(self._opened, OpenRun) else ()

    # Attention, and heads as functions of texts.

    def attention(self, text: str, target: str | None = None, *, without: Sequence[tuple[int, int]] = ()) -> Attention:
        """Return the attention of all heads to a text.

        target: of a model that translates, the translation of the text; by default the model's own.
        without: heads of the encoder whose outputs are zeroed, (layer, head) counted from 0, which changes the
            attention of later layers.

        Raises ValueError for a target of a model that does not translate.
        """
        if not isinstance(text, str):
            raise ValueError(f"attention takes one text, got {type(text).__name__}: call it for each text")
        return attention(self._inspected, text, target, tuple(sorted(without)))

    @functools.cached_property
    def fill_mask(self) -> words.FillMask:
        """Function that predicts the words for the masks of a text."""
        return words.fill_mask(opening.word_model(self._opened, self.directory), self._name)

    @functools.cached_property
    def embed(self) -> vectors.Embed:
        """Function that computes vectors of texts."""
        return vectors.embed(self._encoder, self._name)

    @functools.cached_property
    def classify(self) -> classes.Classify:
        """Function that predicts the class or the labels of a text or of a pair of texts, or a regression's number."""
        return classes.classify(self._tuned, self._name)

    @functools.cached_property
    def tag(self) -> tags.Tag:
        """Function that predicts a tag for each word of a text."""
        return tags.tag(self._tuned, self._name)

    @functools.cached_property
    def choose(self) -> choices.Choose:
        """Function that chooses the candidate that continues or answers a text."""
        return choices.choose(self._tuned, self._name)

    @functools.cached_property
    def answer(self) -> answers.Answer:
        """Function that finds the part of a context that answers a question."""
        return answers.answer(self._tuned, self._name)

    @functools.cached_property
    def translate(self) -> translations.Translate:
        """Function that translates texts, with the mean of the run's newest checkpoints (`translation.average`)."""
        if isinstance(self._opened, OpenRun):
            translator = translating.open_translator(self.directory, self._step)
        elif self._inspected.translator is None:
            raise ValueError(f"{self.directory} does not translate: give a run that was trained to")
        else:
            translator = self._inspected.translator
        return translations.translate(translator, self._name)

    def predict(self, texts: Any, second: Any = None) -> list[Any]:
        """Return the class of each text, of the type that the labels had in training, or the number of a regression.

        A model of a multi-label task gives a list of labels for each text, in the order of `labels`; it may be empty.

        texts: a list of texts or of pairs of texts.
        second: the second texts of pairs.
        """
        found = self.classify(texts, second)
        results = [found] if pairs_of(texts, second)[1] else found
        return [self._labels_of(result) for result in results]

    def _labels_of(self, result: Any) -> Any:
        """Return the label of a guess, the labels of a list of guesses, or a number as it is."""
        if isinstance(result, list):
            names = {guess.text for guess in result}
            return [self.label(name) for name in self._tuned.head.labels if name in names]
        return self.label(result.text) if isinstance(result, Guess) else result

    def predict_proba(self, texts: Any, second: Any = None) -> np.ndarray:
        """Return the probability of each class or label for each text, float64 [texts, classes], ordered as `labels`.

        The probabilities of the classes add up to 1, those of the labels of a multi-label task are independent.

        texts, second: as for `predict`.
        """
        return self.classify.probabilities(np.atleast_2d(self.classify.logits(texts, second)))

    @property
    def labels(self) -> list[Any]:
        """The classes, labels or tags of a fine-tuned model, ordered as its logits, of the type of training labels."""
        return [self.label(name) for name in self._tuned.head.labels]

    def label(self, name: str) -> Any:
        """Return a class, given by its name, as a label of the type that the labels had in training."""
        return self._tuned.head.label(name)

    def export(self, path: str | os.PathLike) -> epath.Path:
        """Write the model as a Hugging Face directory, which `transformers` opens, and return its path.

        Raises ValueError for a directory that is not empty, and for a model that is one of Hugging Face already.
        """
        exporting.convert(self.directory, self._step, os.fspath(path))
        return epath.Path(path)

    @property
    def _name(self) -> str:
        return str(self.directory)

    def __repr__(self) -> str:
        kind = {OpenRun: "run", FineTuned: "fine-tuned model", OpenModel: "Hugging Face model"}[type(self._opened)]
        config, count = self.config, sum(leaf.size for leaf in jax.tree.leaves(self.params))
        about = f"{count:,} parameters, {config.layers} layers of {config.heads} heads, width {config.width}"
        step = f", step {self._opened.step:,}" if isinstance(self._opened, OpenRun) else ""
        return f"<ag_jax.Model: {kind} {self.directory}{step}\n {about}>"


def _is_encoder(module: nn.Module, method: str) -> bool:
    return isinstance(module, Encoder) and method == "__call__"


def translate(
    model: "Model | str | os.PathLike", texts: str | Sequence[str], **options: Any
) -> str | list[str] | list[list[str]]:
    """Translate a text, or each of a list of texts.

    model: a model that translates, or its directory.
    options: `beams`, the number of beams of the search, and `alternatives`, the number of translations of each text.
    """
    return as_model(model).translate(texts, **options)


def directory_of(model: "Model | str | os.PathLike") -> str:
    """Return the directory of a model, which may be given itself."""
    return os.fspath(model.directory if isinstance(model, Model) else model)


def step_of(model: "Model | str | os.PathLike") -> int | None:
    """Return the step at which a model was opened by `load(..., step=N)`; None for the newest."""
    return model._step if isinstance(model, Model) else None


def as_model(model: "Model | str | os.PathLike") -> Model:
    """Return a model, which may be given by its directory or its name on the hub."""
    return model if isinstance(model, Model) else load(model)

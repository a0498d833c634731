"""A fine-tuned model, and the directory that it is saved in.

    task.json             the task, its labels, the encoder's config, and a fingerprint of these and of the weights;
                          written last, so its presence means that all is there
    weights.safetensors   the parameters by their paths, float32: the model's, and those of an adversary that it was
                          trained against
    tokenizer/            as in a run directory

A trial that saved its weights has these files in `weights/`; the trial's own directory can be opened, too.
"""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import safetensors.numpy
from etils import epath
from flax import traverse_util

from ag_jax.attention.adversary import split_params
from ag_jax.attention.assignment import Assignment, read_heads
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.data import tokenizers
from ag_jax.data.json_files import read_json, reading
from ag_jax.data.tasks.task import LabelType
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.distributed import storage
from ag_jax.models.config import EncoderConfig, Pooling
from ag_jax.models.heads import TaskModel, example
from ag_jax.models.one_line import one_line
from ag_jax.pretraining.origin import Origin
from ag_jax.settings import schema

TASK, WEIGHTS, TOKENIZER = "task.json", "weights.safetensors", "tokenizer"
FOLDER = "weights"  # of a trial
FINGERPRINT = "fingerprint"  # in task.json: of its other values and of the weights


@dataclasses.dataclass(frozen=True)
class Head:
    """Settings of a fine-tuned model's task head.

    task: name of the task, empty if it is not one of this project's.
    kind: see `TaskModel`.
    labels: names of the classes, labels or tags.
    low, high: the values that outputs 0 and 1 stand for in a regression.
    style: the model family whose activation, dropout and LayerNorm the head has, see `TaskModel`.
    max_length: tokens of a sequence in training; for an imported model, its number of positions.
    answerable: every question has an answer, so a span is always chosen.
    dropout: dropout rate of the head in training; None takes that of the encoder.
    texts: 2 if every example of a task of texts that the model was trained on is a pair of texts, 1 if none is; None
        otherwise, also where it is not known, in imported models.
    pooling: what a head for texts reads, the hidden state of the `first` token or the `mean` over all tokens.
    label_type: the type of the labels in the training data.
    """

    task: str
    kind: str
    labels: tuple[str, ...] = ()
    style: str = "roberta"
    low: float = 0.0
    high: float = 1.0
    max_length: int = 128
    answerable: bool = True
    dropout: float | None = None
    texts: int | None = None
    pooling: Pooling = "first"
    label_type: LabelType = "text"

    def label(self, name: str) -> Any:
        """Return a label, given by its name, with the type that it has in the training data."""
        if self.label_type == "boolean":
            return name == "true"
        return {"text": str, "integer": int, "number": float}[self.label_type](name)

    def model(self, config: EncoderConfig, attend: Attend = reference.attend) -> TaskModel:
        """Return the Flax module: an encoder of `config` with this head."""
        classes = len(self.labels) or 1
        return TaskModel(config, self.kind, classes, self.style, attend, self.dropout, self.pooling)


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model with its parameters and tokenizer, ready for use.

    origin: the imported model that its weights started from.
    adversary_params: the parameters of an adversary that it was trained against, which are not the model's.
    trained_length: the longest text, in tokens, that the encoder was trained on, here or before; None for all of its
        positions, also where it is not known, in imported models.
    assignment: the heads that guidance pulled towards patterns, in this training or else in that of the run that it
        started from; none without guidance.
    """

    head: Head
    config: EncoderConfig
    tokenizer: Tokenizer
    params: Any
    origin: Origin = Origin()
    adversary_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    trained_length: int | None = None
    assignment: Assignment = Assignment()

    __repr__ = one_line

    @property
    def model(self) -> TaskModel:
        """The Flax module, to be applied to `{"params": params}` and a batch."""
        return self.head.model(self.config)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The content of `task.json` without its fingerprint.

    head: settings of the task head.
    model: config of the encoder.
    origin, trained_length: as in `FineTuned`.
    guided_heads: the guided heads, written as in the setting `guidance.heads`.
    guided_layers: the numbers of the guided layers, from 0; None for all layers.
    """

    head: Head
    model: EncoderConfig
    origin: Origin = Origin()
    trained_length: int | None = None
    guided_heads: str = ""
    guided_layers: tuple[int, ...] | None = None


def locate(directory: epath.PathLike) -> epath.Path | None:
    """Return the directory with a fine-tuned model's files: `directory` or its `weights/`; None if neither has them."""
    directory = storage.directory(directory)
    return next((place for place in (directory, directory / FOLDER) if (place / TASK).exists()), None)


def save(tuned: FineTuned, directory: epath.Path) -> None:
    """Write a fine-tuned model's files to a directory, replacing those of an earlier model."""
    directory.mkdir(parents=True, exist_ok=True)
    # Removed first and written last, so that a directory that is only partly written is not opened.
    (directory / TASK).unlink(missing_ok=True)
    flat = traverse_util.flatten_dict(jax.device_get(tuned.params | tuned.adversary_params), sep="/")
    tensors = {path: np.ascontiguousarray(leaf) for path, leaf in flat.items()}
    weights = safetensors.numpy.save(tensors)
    (directory / WEIGHTS).write_bytes(weights)
    tuned.tokenizer.save(directory / TOKENIZER)
    guided = ",".join(f"{pattern}:{count}" for pattern, count in tuned.assignment.counts)
    rest = tuned.origin, tuned.trained_length, guided, tuned.assignment.layers
    settings = dataclasses.asdict(_Settings(tuned.head, tuned.config, *rest))
    settings[FINGERPRINT] = _fingerprint(settings, weights)
    storage.write_whole(directory / TASK, json.dumps(settings, indent=2) + "\n")


def load(directory: epath.PathLike) -> FineTuned:
    """Load a fine-tuned model, with its tokenizer, from a directory that `save` wrote or from a trial's directory.

    Raises FileNotFoundError if there is none, ValueError if it is damaged.
    """
    place = locate(directory)
    if place is None:
        raise FileNotFoundError(
            f"{directory} is no fine-tuned model: expected a trial of `ag-jax finetune --config.keep=best`, whose "
            f"{FOLDER}/ has a {TASK}"
        )
    with reading(place / TASK, "copy the directory anew"):
        values = read_json(place / TASK)
        fingerprint = values.pop(FINGERPRINT)  # it covers the other values, so it is no part of the settings
        settings = schema.parse(_Settings, values)
        counts = read_heads("guided_heads", settings.guided_heads) if settings.guided_heads else ()
    weights = (place / WEIGHTS).read_bytes()
    if fingerprint != _fingerprint(values, weights):
        raise ValueError(
            f"{place} is damaged: {TASK} and {WEIGHTS} are not what was saved, their fingerprint differs; copy it anew"
        )
    with reading(place, "copy it anew"):
        params, adversary_params = split_params(traverse_util.unflatten_dict(safetensors.numpy.load(weights), sep="/"))
        _check(settings, traverse_util.flatten_dict(params, sep="/"))
    tokenizer = tokenizers.load(place / TOKENIZER).with_second_type(settings.origin.second_type)
    rest = params, settings.origin, adversary_params, settings.trained_length
    return FineTuned(settings.head, settings.model, tokenizer, *rest, Assignment(counts, settings.guided_layers))


def _fingerprint(settings: dict[str, Any], weights: bytes) -> str:
    """Return the SHA-256 of the settings in `task.json` and of the content of the weights file."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    digest.update(weights)
    return digest.hexdigest()


@functools.lru_cache(maxsize=32)
def shapes(head: Head, config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return {path: shape} of the parameters of an encoder with a task head, without allocating them."""
    model = head.model(config)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), example(head.kind), deterministic=True)["params"])
    return {path: leaf.shape for path, leaf in traverse_util.flatten_dict(nn.unbox(params), sep="/").items()}


def _check(settings: _Settings, params: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless the parameters are finite and have the shapes of the model in the settings."""
    expected, found = shapes(settings.head, settings.model), {path: leaf.shape for path, leaf in params.items()}
    if different := [path for path in sorted(expected | found) if expected.get(path) != found.get(path)]:
        path = different[0]
        raise ValueError(
            f"{len(different)} parameters of {WEIGHTS} do not fit the model of {TASK}, such as {path}: expected "
            f"{expected.get(path, 'none')}, found {found.get(path, 'none')}"
        )
    if bad := [path for path, leaf in params.items() if not np.isfinite(leaf).all()]:
        raise ValueError(f"{', '.join(bad)} in {WEIGHTS} holds values that are not finite (NaN or infinity)")

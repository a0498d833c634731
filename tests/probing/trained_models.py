"""Models for tests of head ablation: a run, an imported encoder without a head for masked words, and a trial."""

import functools
import json
import shutil

import jax
import numpy as np
from etils import epath

from ag_jax.attention.config import GuidanceConfig
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.finetuning import splits
from ag_jax.finetuning.config import FinetuningConfig, Recipe
from ag_jax.finetuning.task_training import make_head
from ag_jax.grid import store
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.opening import WordModel
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.pretraining import initial_weights, origin
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import schema
from ag_jax.training.config import TrainingConfig
from tests import results as stored
from tests import tiny
from tests.finetuning import tasks, tiny_tasks

TOKENIZER, CONFIG = tasks.TOKENIZER, tasks.pretrained().config  # 2 layers of 2 heads, with dropout in training
LENGTH = 14
RNG = np.random.default_rng(5)
# One row of 14 tokens whose text is cut; the others are in batches of 8 and of 14 tokens. Two texts have no token.
TEXTS = [" ".join(RNG.choice(tasks.WORDS, count)) for count in (30, 4, 9, 6, 12, 3, 11)] + ["", "  "]
TEXTS += [" ".join(RNG.choice(tasks.WORDS, 5)) for _ in range(14)]
SUITE_OF = {"metrics": {"accuracy": 0.5}, "learning_rate": 1e-5, "batch_size": 8, "seed": 0, "epochs": [], "seconds": 1}
SUITE_OF |= dict.fromkeys(("best_epoch", "truncated", "cut_words", "lost", "skipped"), 1)


def without(params, layer, head):
    """Parameters whose output kernel is zero on one head."""
    edited = jax.tree.map(np.array, params)
    edited["encoder"]["layers"]["attention"]["output"]["kernel"][layer, head] = 0.0
    return edited


@functools.cache
def word_model():
    """A model that predicts masked words, in which head 1 of layer 0 writes nothing."""
    model = PretrainingModel(CONFIG)
    example = {name: np.ones((1, 6), np.int32) for name in ("tokens", "segment_ids", "token_type_ids")}
    params = without(tiny.params(model, example | {"masked_positions": np.ones((1, 2), np.int32)}), 0, 1)
    return WordModel(model, params, TOKENIZER, LENGTH)


def run_config(directory, **guidance):
    """The config of a run on `text.txt`."""
    return ExperimentConfig(
        data=DataConfig(
            source=str(directory / "text.txt"),
            sequence_length=LENGTH,
            validation_fraction=0.1,
            tokenizer=TokenizerConfig(path=str(directory / "tokenizer")),
            cache_dir=str(directory / "cache"),
        ),
        model=CONFIG,
        guidance=GuidanceConfig(**guidance),
        training=TrainingConfig(batch_size=8),
    )


def write(directory):
    """Write a run with the parameters of `word_model` and a held-out text, an encoder, and a trial of SST-2."""
    TOKENIZER.save(directory / "tokenizer")
    lines = [" ".join(RNG.choice(tasks.WORDS, 9)) + "." for _ in range(400)]
    (directory / "text.txt").write_text("\n\n".join(lines))
    initial_weights.write(run_config(directory), epath.Path(directory / "run"), TOKENIZER, word_model().params)
    (shutil.copytree(directory / "run", directory / "encoder") / origin.FILE).write_text(
        json.dumps({"model_type": "roberta", "architectures": ["RobertaModel"], "new": ["word_head"]})
    )
    recipe = Recipe(learning_rates=(1e-5,), batch_sizes=(8,), max_length=LENGTH, validation_examples=9)
    suite = FinetuningConfig(checkpoint="x", data=str(tiny_tasks.write(directory / "tasks")), tasks={"sst2": recipe})
    place = directory / "suite" / "sst2" / "lr1e-05-bs8-seed0"
    place.mkdir(parents=True)
    (directory / "suite" / "config.json").write_text(json.dumps(schema.to_dict(suite)))
    found = splits.read("sst2", recipe, suite.data)
    head = make_head(found.task, "roberta", LENGTH)
    params = tiny.params(head.model(CONFIG), tiny.task_batch("classification"))
    finetuned.save(FineTuned(head, CONFIG, TOKENIZER, params), epath.Path(place / "weights"))
    result = SUITE_OF | {"task": "sst2", "examples": {"train": 24, "validation": 9}}
    rows = [{"id": example.id, "prediction": 0, "label": 0, "scores": [0, 0]} for example in found.validation]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    predictions = store.write_text(epath.Path(place), "predictions_validation.jsonl", text)
    stored.write(place, {"metrics": {}} | result, artifacts={"validation": predictions})

"""Tokenisation of a task's splits into token ids with labels, once for all trials."""

import dataclasses
from typing import Any

from ag_jax.data.tasks.rows import Features
from ag_jax.data.tasks.task import Examples, Task
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.finetuning import kinds
from ag_jax.finetuning.config import Recipe
from ag_jax.finetuning.splits import Splits
from ag_jax.models.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The examples of a split and their features (token ids with labels)."""

    examples: Examples
    features: Features


@dataclasses.dataclass(frozen=True)
class TaskData:
    """The training, validation and test examples of a task as token ids and labels.

    train: the split to train on.
    validation: the split by which the best epoch is chosen.
    others: the splits that are only predicted, such as `test`, by name.
    """

    task: Task
    train: Encoded
    validation: Encoded
    others: dict[str, Encoded]


def encode(splits: Splits, tokenizer: Tokenizer, config: EncoderConfig, recipe: Recipe) -> TaskData:
    """Tokenise all splits of a task, and return their examples with token ids and labels.

    config: the encoder's, with at least `recipe.max_length` positions, as `suite.prepare` checks.
    """

    def encoded(examples: Any, training: bool = False) -> Encoded:
        features = kinds.encode(
            splits.task, examples, tokenizer, recipe.max_length, config.token_types, training=training
        )
        return Encoded(examples, features)

    others = {name: encoded(examples) for name, examples in splits.others.items()}
    return TaskData(splits.task, encoded(splits.train, training=True), encoded(splits.validation), others)

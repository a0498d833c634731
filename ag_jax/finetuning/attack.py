"""Attack a fine-tuned model as in its training, on examples of its task or on a single text.

Shape letters: N layers, L length.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from etils import epath

from ag_jax.analysis import changes
from ag_jax.analysis.changes import AttackedModel, AttackSetup
from ag_jax.attention.config import GuidanceConfig
from ag_jax.data.json_files import reading
from ag_jax.data.tasks import buckets
from ag_jax.data.tasks.task import Examples, Task
from ag_jax.finetuning import kinds, suite_directory
from ag_jax.finetuning.config import Recipe
from ag_jax.finetuning.kinds import KINDS
from ag_jax.interop import finetuned
from ag_jax.interop.finetuned import FineTuned
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.supervised import Supervised
from ag_jax.pretraining import build
from ag_jax.settings import schema

EXAMPLES = 32  # development examples over which the change of attention is averaged
OF_TEXTS = ("classification", "multilabel", "regression")  # kinds whose examples may be a single text
OWN_LABEL = "The text has no label, so the attack raises the loss of the model's own prediction."


def unsupported_reason(tuned: FineTuned, config: AdversarialConfig) -> str | None:
    """Return why it cannot be measured how the attack of a model's training changes attention; None if it can."""
    if config.method == "asa" and not tuned.adversary_params:
        return "the adversary was not saved with the model"
    return changes.unsupported_reason(config)


def attacked_model(tuned: FineTuned, config: AdversarialConfig, guidance: GuidanceConfig) -> AttackedModel:
    """Return a fine-tuned model with the objective of its last training step: task loss, guidance and attack.

    config: the attack, which `unsupported_reason` must allow.
    guidance: the guidance of attention in training, of which the loss is a part.
    """
    encoder = changes.without_dropout(tuned.config)
    head = dataclasses.replace(tuned.head, dropout=None)
    model, special = head.model(encoder), build.special_tokens(tuned.tokenizer)
    inner = Supervised(model, KINDS[tuned.head.kind].loss)
    objective = build.guided_and_attacked(inner, guidance, changes.begun(config), encoder, special, steps=1)
    return AttackedModel(objective, model, tuned.params | tuned.adversary_params, step=1)


def change_on_examples(
    tuned: FineTuned, task: Task, examples: Examples, config: AdversarialConfig, guidance: GuidanceConfig
) -> np.ndarray:
    """Return each layer's Jensen-Shannon divergence of plain and attacked attention, `N`, a mean over examples.

    examples: with labels; the first `EXAMPLES` of their rows are attacked.
    """
    first = examples.take(slice(EXAMPLES))
    features = kinds.encode(task, first, tuned.tokenizer, tuned.head.max_length, tuned.config.token_types)
    rows = features.rows[:EXAMPLES]
    # One length, so that the attack is compiled once.
    longest = max(row["tokens"].shape[-1] for row in rows)
    candidates = max(row["tokens"].shape[0] if row["tokens"].ndim == 2 else 0 for row in rows)
    planned = [buckets.Planned(np.array([row]), candidates, longest) for row in range(len(rows))]
    batches = (buckets.make_batch(features, one, batch_size=1) for one in planned)
    inputs = ({name: field for name, field in batch.items() if name != "rows"} for batch in batches)
    return changes.mean_change(attacked_model(tuned, config, guidance), inputs)


def text_attack(tuned: FineTuned, config: AdversarialConfig, guidance: GuidanceConfig) -> AttackSetup:
    """Return the model, the objective and the batch function with which the attention to a single text is attacked.

    `unsupported_reason` must allow the attack.

    FreeLB raises the loss of a label. A text has none, so the model's own prediction takes its place.

    tuned: a model of one of the kinds `OF_TEXTS`.
    """
    attacked = attacked_model(tuned, config, guidance)
    predict = jax.jit(lambda params, batch: tuned.model.apply({"params": params}, batch, deterministic=True))

    def make_batch(ids_L: np.ndarray) -> dict[str, Any]:
        fields = {"tokens": ids_L, "segment_ids": np.ones_like(ids_L), "token_type_ids": np.zeros_like(ids_L)}
        batch = {name: field[None] for name, field in fields.items()}
        outputs = np.asarray(predict(tuned.params, batch))
        field, label = "labels", outputs.astype(np.float32)
        if tuned.head.kind == "classification":
            label = outputs.argmax(-1).astype(np.int32)
        elif tuned.head.kind == "multilabel":
            field, label = "label_set", (outputs > 0).astype(np.float32)
        return batch | {field: label, "weights": np.ones(1, np.float32)}

    return AttackSetup(attacked, config.method, OWN_LABEL if config.method == "freelb" else "", make_batch)


def settings_of_trial(directory: epath.Path) -> tuple[AdversarialConfig, GuidanceConfig] | None:
    """Return the settings (attack, guidance) that a trial was trained with; None if the trial is not part of a suite.

    They are read from the config file of the trial's suite. Raises ValueError if the config is damaged.

    directory: of the trial, or its `weights/`.
    """
    trial = directory.parent if directory.name == finetuned.FOLDER else directory
    task, path = trial.parent.name, trial.parent.parent / "config.json"
    if not suite_directory.is_suite(trial.parent.parent):
        return None
    settings = suite_directory.read_settings(path)
    if task not in settings["tasks"]:
        return None
    with reading(f"{path}, task {task}", "put back the file as `ag-jax finetune` wrote it"):
        recipe = schema.parse(Recipe, settings["tasks"][task])
        guidance = schema.parse(GuidanceConfig, settings["guidance"])
    return recipe.adversarial, guidance

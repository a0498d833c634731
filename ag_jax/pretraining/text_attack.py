"""The adversarial attack that a run was trained against, applied to a single text."""

import dataclasses
from typing import Any

import numpy as np

from ag_jax.analysis import changes
from ag_jax.analysis.changes import AttackedModel, AttackSetup
from ag_jax.data.config import PAIR_FORMATS, DataConfig
from ag_jax.data.text import corruption
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.pretraining import alpha, build, workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import OpenRun

MASKED = "The model reads a copy of the text with masked tokens, as in training."
TRIES = 1000  # most masks that are drawn for a text until one masks a token


def unsupported_reason(config: ExperimentConfig) -> str | None:
    """Return why the adversarial attack of a run cannot be applied to a single text; None if it can."""
    if config.translates and config.adversarial.method not in ("none", "asa"):
        return (
            f"method={config.adversarial.method} needs the loss of a translation, and a text alone has none to "
            "compare with"
        )
    return changes.unsupported_reason(config.adversarial)


def of_run(opened: OpenRun) -> AttackSetup:
    """Return the adversarial attack that a run was trained against, to be applied to single texts.

    `unsupported_reason` must be None for the run.

    Masked tokens are drawn as in training, and predicted by the objective. A run whose tokens are replaced by draws
    with the frequencies of its text reads the text itself: the frequencies are not in the run.
    """
    config = opened.config
    still = dataclasses.replace(
        config, model=changes.without_dropout(config.model), adversarial=changes.begun(config.adversarial)
    )
    model = workloads.reference_model(still, opened.tokenizer)
    hyperparameters = alpha.hyperparameters(still, opened.workdir)
    objective = build.make_objective(still, opened.tokenizer, model, 1, hyperparameters)
    params = opened.params | opened.adversary_params
    attacked = AttackedModel(objective, model, params, opened.step)

    def make_batch(ids_L: np.ndarray) -> dict[str, Any]:
        return _source(ids_L, opened.tokenizer) if config.translates else masked(ids_L, config.data, opened.tokenizer)

    reads_text = config.translates or config.data.masking.replacement == "unigram"
    return AttackSetup(attacked, config.adversarial.method, "" if reads_text else MASKED, make_batch)


def _source(ids_L: np.ndarray, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a batch of one source text to translate, whose target holds only the start token."""
    fields = {"tokens": ids_L, "segment_ids": np.ones_like(ids_L), "token_type_ids": np.zeros_like(ids_L)}
    start = np.array([tokenizer.specials.pad], np.int32)
    target = {"target_tokens": start, "target_segment_ids": np.ones_like(start)}
    return {name: field[None] for name, field in (fields | target).items()}


def masked(ids_L: np.ndarray, config: DataConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a pre-training batch of one text in which some tokens are masked.

    Of the masks that training could draw for the first text, it is the first one that masks a token. Raises ValueError
    for a text without a token that may be masked.
    """
    masking = config.masking.for_evaluation
    if masking.replacement == "unigram":
        masking = dataclasses.replace(masking, replacement="mask", mask_fraction=0.0, random_fraction=0.0)
    # The mask depends on seed, row and epoch: here seed 0, row 0 and one epoch after another, until a token is masked.
    tokens_BL, lengths_B, first_B = ids_L[None], np.array([len(ids_L)]), np.zeros(1, np.int64)
    for epoch in range(TRIES):
        corrupted = corruption.mask(masking, tokens_BL, lengths_B, first_B, first_B + epoch, 0, tokenizer)
        if corrupted.weights_BM.any():
            break
    else:
        raise ValueError(
            f"none of {TRIES} masks covers a token of this text of {len(ids_L)} tokens, so the attack has no loss to "
            "raise: give a text with more words"
        )
    batch = {
        "tokens": corrupted.tokens_BL,
        "original": tokens_BL,
        "segment_ids": np.ones_like(tokens_BL),
        "token_type_ids": np.zeros_like(tokens_BL),
        "masked_positions": corrupted.positions_BM,
        "masked_labels": corrupted.labels_BM,
        "masked_weights": corrupted.weights_BM,
    }
    if config.format in PAIR_FORMATS:
        batch["next_labels"] = np.zeros(1, np.int32)
    return batch

"""Wrap an objective in the attack that the settings name.

The order of wrappers: the task's or pre-training objective innermost, then guidance (`Guided`), then one attack. An
attack is outside of guidance, because guidance applies to the clean pass, and FreeLB must be outermost
(`Objective.value_and_grad`).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ag_jax.attention.adversary import ADVERSARY
from ag_jax.attention.patterns import PatternTokens
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial.config import NAIVE, AdversarialConfig, SmartConfig
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.adversarial.masking import Trace, naive_masking
from ag_jax.objectives.adversarial.self_attention import LearntMasks, adversarial_self_attention
from ag_jax.objectives.adversarial.sift import sift
from ag_jax.objectives.adversarial.smart import smart
from ag_jax.objectives.base import Objective


@dataclasses.dataclass(frozen=True)
class AttackContext:
    """Facts about the model and the run that attacks need besides their own settings.

    encoder: the model's config.
    special: special token ids of its tokenizer.
    steps: number of steps of the run.
    trace: the trace named by `adversarial.masking.trace`.
    """

    encoder: EncoderConfig
    special: PatternTokens
    steps: int
    trace: Trace | None = None


def wrap(objective: Objective, config: AdversarialConfig, setting: AttackContext) -> Objective:
    """The objective under attack; itself with `method=none`. `init` makes the parameters of an attack that learns."""
    attacker = learnt(config, setting.encoder, setting.special)
    if attacker is not None:
        return adversarial_self_attention(objective, attacker)
    if config.method in NAIVE:
        layers, steps = setting.encoder.layers, setting.steps
        return naive_masking(objective, config.method, config.masking, layers, steps, setting.trace)
    width = setting.encoder.embedding_width or setting.encoder.width
    if config.method == "freelb":
        return FreeLB(objective, config.freelb, width)
    if config.method == "smart":
        _check_precision(config.smart, setting.encoder)
        return smart(objective, config.smart, width)
    if config.method == "sift":
        return sift(objective, config.sift, width)
    return objective


def _check_precision(config: SmartConfig, encoder: EncoderConfig) -> None:
    """Raise ValueError if epsilon is so small that it is lost when it is added to embeddings."""
    least = float(jnp.finfo(encoder.dtype).eps) / 8
    if not config.mtdnn_compat and config.epsilon < least:
        raise ValueError(
            f"adversarial.smart.epsilon={config.epsilon:g} is lost in rounding with model.dtype={encoder.dtype}: set "
            f"model.dtype=float32, or an epsilon (and step_size) of at least {least:.0e}"
        )


def learnt(config: AdversarialConfig, encoder: EncoderConfig, special: PatternTokens) -> LearntMasks | None:
    """The adversary that the settings describe, without parameters; None if the attack does not learn."""
    return LearntMasks(config.asa, encoder, special) if config.method == "asa" else None


def init(config: AdversarialConfig, encoder: EncoderConfig, key: jax.Array) -> dict[str, Any]:
    """Initial parameters of the attack, boxed with the names of their axes; an empty dict if it does not learn."""
    attacker = learnt(config, encoder, PatternTokens((), ()))
    return {} if attacker is None else {ADVERSARY: attacker.init(key)}

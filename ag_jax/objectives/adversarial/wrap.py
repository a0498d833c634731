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
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial.config import NAIVE, AdversarialConfig, SmartConfig
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.adversarial.masking import Trace, naive_masking
from ag_jax.objectives.adversarial.r_drop import r_drop
from ag_jax.objectives.adversarial.self_attention import LearntMasks, adversarial_self_attention
from ag_jax.objectives.adversarial.sift import sift
from ag_jax.objectives.adversarial.smart import smart
from ag_jax.objectives.base import Objective


@dataclasses.dataclass(frozen=True)
class AttackContext:
    """Facts about the model and the run that attacks use, in addition to their own settings.

    encoder: the model's config.
    steps: number of steps of the run.
    trace: the trace named by `adversarial.masking.trace`.
    """

    encoder: EncoderConfig
    steps: int
    trace: Trace | None = None


def wrap(objective: Objective, config: AdversarialConfig, context: AttackContext) -> Objective:
    """Return the objective wrapped in the configured attack, or the objective itself with `method=none`.

    `init` makes the parameters of an attack that learns.
    """
    attacker = learnt(config, context.encoder)
    if attacker is not None:
        return adversarial_self_attention(objective, attacker)
    if config.method in NAIVE:
        layers, steps = context.encoder.layers, context.steps
        return naive_masking(objective, config.method, config.masking, layers, steps, context.trace)
    width = context.encoder.embedding_width or context.encoder.width
    if config.method == "freelb":
        return FreeLB(objective, config.freelb, width)
    if config.method == "smart":
        _check_precision(config.smart, context.encoder)
        return smart(objective, config.smart, width)
    if config.method == "sift":
        if not context.encoder.embedding_norm:
            raise ValueError(
                "adversarial.method=sift perturbs normalised embeddings, and this model has no LayerNorm after its "
                "embeddings (model.embedding_norm=False): choose another method, such as smart"
            )
        # A norm that undoes what SiFT does to embeddings makes the trained model the same as the evaluated one.
        if context.encoder.norm == "rms" and config.sift.normalize != "unit":
            raise ValueError(
                "adversarial.method=sift subtracts the mean of embeddings, and the RMSNorm of this model "
                "(model.norm=rms) does not, so that it would train another model than is evaluated: set "
                "adversarial.sift.normalize=unit"
            )
        return sift(objective, config.sift, width)
    if config.method == "r_drop":
        _check_dropout(context.encoder)
        return r_drop(objective, config.r_drop)
    return objective


def _check_precision(config: SmartConfig, encoder: EncoderConfig) -> None:
    """Raise ValueError if SMART's `epsilon` is so small that rounding loses it when it is added to embeddings."""
    least = float(jnp.finfo(encoder.dtype).eps) / 8
    if not config.mtdnn_compat and config.epsilon < least:
        raise ValueError(
            f"adversarial.smart.epsilon={config.epsilon:g} is lost in rounding with model.dtype={encoder.dtype}: set "
            f"model.dtype=float32, or an epsilon (and step_size) of at least {least:.0e}"
        )


def _check_dropout(encoder: EncoderConfig) -> None:
    """Raise ValueError if the encoder has no dropout, without which two passes cannot differ."""
    if not encoder.dropout and not encoder.attention_dropout:
        raise ValueError(
            "adversarial.method=r_drop compares two passes that differ in their dropout, but dropout and "
            "attention_dropout of the model are 0: set one of them above 0, or adversarial.method=none"
        )


def learnt(config: AdversarialConfig, encoder: EncoderConfig) -> LearntMasks | None:
    """Return the attack in which an adversary learns what to mask; None if the configured attack has no adversary.

    The adversary's parameters are not stored in the attack: each call reads them from `params["adversary"]`.
    """
    return LearntMasks(config.asa, encoder) if config.method == "asa" else None


def init(config: AdversarialConfig, encoder: EncoderConfig, key: jax.Array) -> dict[str, Any]:
    """Return the attack's initial parameters, boxed with axis names; an empty dict if the attack does not learn."""
    attacker = learnt(config, encoder)
    return {} if attacker is None else {ADVERSARY: attacker.init(key)}

"""From the settings to the attack around an objective: the outermost of all that wrap."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ag_jax.attention.adversary import ADVERSARY
from ag_jax.attention.patterns import SpecialTokens
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial.config import NAIVE, AdversarialConfig, SmartConfig
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.adversarial.masking import Trace, naive_masking
from ag_jax.objectives.adversarial.self_attention import LearntMasks, adversarial_self_attention
from ag_jax.objectives.adversarial.sift import sift
from ag_jax.objectives.adversarial.smart import smart
from ag_jax.objectives.losses import Objective


@dataclasses.dataclass(frozen=True)
class Setting:
    """What an attack must know of the model and of the run besides its settings.

    encoder: the model's; special: in the ids of its tokenizer; steps: of the run; trace: that `adversarial.masking.trace` names.
    """

    encoder: EncoderConfig
    special: SpecialTokens
    steps: int
    trace: Trace | None = None


def wrap(objective: Objective, config: AdversarialConfig, setting: Setting) -> Objective:
    """The objective under attack; itself with `method=none`. What the attack learns is made by `init`."""
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
    """Raise ValueError if the ball is so small that the model's numbers round to its centre."""
    least = float(jnp.finfo(encoder.dtype).eps) / 8
    if not config.mtdnn_compat and config.epsilon < least:
        raise ValueError(
            f"adversarial.smart.epsilon={config.epsilon:g} is lost in rounding with model.dtype={encoder.dtype}: set "
            f"model.dtype=float32, or an epsilon (and step_size) of at least {least:.0e}"
        )


def learnt(config: AdversarialConfig, encoder: EncoderConfig, special: SpecialTokens) -> LearntMasks | None:
    """What makes the attack of an adversary from its parameters; None if none is learnt."""
    return LearntMasks(config.asa, encoder, special) if config.method == "asa" else None


def init(config: AdversarialConfig, encoder: EncoderConfig, key: jax.Array) -> dict[str, Any]:
    """Parameters that the attack has beside the model's, boxed with the names of their axes; none if it learns nothing."""
    attacker = learnt(config, encoder, SpecialTokens((), ()))
    return {} if attacker is None else {ADVERSARY: attacker.init(key)}

"""From the settings to the attack around an objective: the outermost of all that wrap."""

import dataclasses
from typing import Any

import jax

from ag_jax.attention.patterns import SpecialTokens
from ag_jax.models.config import EncoderConfig
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.losses import Objective


@dataclasses.dataclass(frozen=True)
class Attacked:
    """What an attack must know of the model and of the run besides its settings.

    encoder: the model's; special: in the ids of its tokenizer; steps: of the run.
    """

    encoder: EncoderConfig
    special: SpecialTokens
    steps: int


def wrap(objective: Objective, config: AdversarialConfig, of: Attacked) -> Objective:
    """The objective under attack; itself with `method=none`."""
    return objective


def init(config: AdversarialConfig, encoder: EncoderConfig, key: jax.Array) -> dict[str, Any]:
    """Parameters that the attack has beside the model's, boxed with the names of their axes; none if it learns nothing."""
    return {}

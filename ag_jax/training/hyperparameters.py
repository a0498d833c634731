"""Settings that are arguments of a compiled training step: learning rate, warm-up, and the strength of guidance."""

import dataclasses
from typing import Any

import flax.struct
import numpy as np

from ag_jax.attention.config import GuidanceConfig
from ag_jax.training.config import OptimizerConfig


@flax.struct.dataclass
class Hyperparameters:
    """Settings that may differ between runs of one compiled training step: learning rate, warm-up, guidance's alpha.

    They are arguments of the step, beside the batch and the random key, and are not stored in a checkpoint. All other
    settings are constants of the compiled step.

    learning_rate: `optimizer.learning_rate`, float32.
    warmup_steps: `optimizer.warmup_steps`, int32.
    alpha: `guidance.alpha`, or what `guidance.alpha_rule` chose in its place, float32.
    """

    learning_rate: Any = np.float32(1)
    warmup_steps: Any = np.int32(0)
    alpha: Any = np.float32(0)

    @classmethod
    def of(cls, optimizer: OptimizerConfig, guidance: GuidanceConfig) -> "Hyperparameters":
        """Return the hyperparameters of a run with these settings; `guidance.alpha_rule` is ignored."""
        return cls(np.float32(optimizer.learning_rate), np.int32(optimizer.warmup_steps), np.float32(guidance.alpha))

    def in_optimizer(self, config: OptimizerConfig) -> OptimizerConfig:
        """Return the optimizer settings with this learning rate and warm-up, which may be traced arrays."""
        return dataclasses.replace(config, learning_rate=self.learning_rate, warmup_steps=self.warmup_steps)

    def in_guidance(self, config: GuidanceConfig) -> GuidanceConfig:
        """Return the guidance settings with this `alpha`, which may be a traced array, instead of a rule for alpha."""
        return dataclasses.replace(config, alpha=self.alpha, alpha_rule="value")

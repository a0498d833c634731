"""AdamW with warm-up and decay of the learning rate, and a separate optimizer for an adversary's parameters."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from ag_jax.attention.adversary import ADVERSARY

Decay = Literal["linear", "constant", "inverse_sqrt"]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Settings of AdamW and its schedule; the defaults are those of the code released with Attention Guidance.

    The default of `clip_norm` is from this code, too.

    learning_rate: peak learning rate, reached after `warmup_steps`.
    warmup_steps: number of steps in which the learning rate rises from 0 to its peak.
    decay: `linear` decays the learning rate from its peak to 0 at the last step, `constant` leaves it at the peak,
        `inverse_sqrt` makes it peak * sqrt(warmup_steps / step), which with the peak (width * warmup_steps)^-0.5 is the
        schedule of Vaswani et al. 2017, equation 3.
    beta1: decay rate of the gradient's running mean.
    beta2: decay rate of the squared gradient's running mean.
    epsilon: added to the denominator of an update.
    weight_decay: coefficient of weight decay, on matrices only, never on biases or LayerNorm.
    clip_norm: maximum global norm of the gradient; None does not clip it.
    """

    learning_rate: Annotated[float, "> 0"] = 1e-4
    warmup_steps: Annotated[int, ">= 0"] = 0
    decay: Decay = "linear"
    beta1: Annotated[float, ">= 0", "< 1"] = 0.9
    beta2: Annotated[float, ">= 0", "< 1"] = 0.999
    epsilon: Annotated[float, "> 0"] = 1e-8
    weight_decay: Annotated[float, ">= 0"] = 0.0
    clip_norm: Annotated[float, "> 0"] | None = 1.0

    EARLIER_NONE: ClassVar = {"clip_norm": 0.0}


def learning_rate_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Return a schedule: linear from 0 to the peak in `warmup_steps`, then as `decay` says: linear to 0 at
    `total_steps`, constant, or falling as the inverse square root of the step.

    Learning rate and warm-up may be traced arrays (`Hyperparameters`), so no Python branch depends on them.
    """
    peak, warmup = config.learning_rate, config.warmup_steps

    def schedule(step):
        # Step 0 is the first update; without warm-up, the peak is at that step.
        reference = jnp.maximum(warmup, 1)
        if config.decay == "inverse_sqrt":
            remaining = jnp.sqrt(reference / jnp.maximum(step, reference))
        elif config.decay == "linear":
            done = (step - warmup) / jnp.maximum(total_steps - warmup, 1)
            remaining = jnp.clip(1 - done, 0.0, 1.0)
        else:
            remaining = jnp.float32(1)
        return peak * jnp.where(step < warmup, step / reference, remaining)

    return schedule


def decays(params: Any) -> Any:
    """Return for every parameter whether weight decay applies: to kernels and embeddings, not biases and LayerNorm."""

    def decayed(path, _) -> bool:
        return path[-1].key in ("kernel", "embedding")

    return jax.tree_util.tree_map_with_path(decayed, params)


@dataclasses.dataclass(frozen=True)
class AdversaryOptimizer:
    """Optimizer of an adversary's parameters.

    config: its settings; warm-up and decay are counted from step `delay`.
    delay: number of steps before the first update of these parameters.
    """

    config: OptimizerConfig
    delay: int = 0

    def transformation(self, total_steps: int) -> optax.GradientTransformation:
        """Return the optax transformation, which makes no updates before step `delay` and starts its schedule there."""
        chain = _chain(self.config, max(total_steps - self.delay, 1))
        return optax.conditionally_mask(chain, lambda step: step >= self.delay) if self.delay else chain


def make_optimizer(
    config: OptimizerConfig, total_steps: int, adversary: AdversaryOptimizer | None = None
) -> optax.GradientTransformation:
    """Return the optax optimizer: gradient clipping, then AdamW with its schedule.

    adversary: optimizer of the parameters under `ADVERSARY`, if there are any; their gradients are clipped separately.
    """
    model = _chain(config, total_steps)
    if adversary is None:
        return model
    return optax.partition({"model": model, ADVERSARY: adversary.transformation(total_steps)}, _groups)


def _groups(params: Any) -> Any:
    """Return for each top-level entry of the parameters the label, "model" or `ADVERSARY`, by which `optax.partition`
    finds the optimizer of the entry.
    """
    if not isinstance(params, dict):  # `tree_map_params` passes one placeholder for all parameters
        return "model"
    return {name: ADVERSARY if name == ADVERSARY else "model" for name in params}


def _chain(config: OptimizerConfig, total_steps: int) -> optax.GradientTransformation:
    adamw = optax.adamw(
        learning_rate_schedule(config, total_steps),
        b1=config.beta1,
        b2=config.beta2,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        mask=decays,
    )
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw) if config.clip_norm else adamw

"""Schedules of the learning rate over the steps of a run."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from ag_jax.training.config import Decay

# Share of the fall that is left when the share x of its steps is done: 1 at x = 0, and 0 at x = 1.
FALLS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + jnp.cos(jnp.pi * x)) / 2,
    "one_minus_sqrt": lambda x: 1 - jnp.sqrt(x),
}


def learning_rate(
    peak: Any,
    warmup_steps: Any,
    total_steps: int,
    *,
    decay: Decay = "linear",
    decay_steps: int | None = None,
    final_share: float = 0.0,
) -> optax.Schedule:
    """Return a learning-rate schedule that rises linearly from 0 to a peak, stays there, and falls.

    Steps are counted from 0. With s = max(warmup_steps, total_steps - decay_steps), the step at which the fall begins,

        rate(step) = peak * step / warmup_steps                                          if step < warmup_steps
                     peak                                                                if step < s
                     peak * (final_share + (1 - final_share) f((step - s) / (total_steps - s)))  else

    peak: the highest learning rate; may be a traced array, so no Python branch depends on it.
    warmup_steps: number of steps of the rise; may be a traced array.
    total_steps: number of steps of the run.
    decay: shape f of the fall: `linear` 1 - x; `cosine` (1 + cos(pi x)) / 2 (Loshchilov & Hutter 2017);
        `one_minus_sqrt` 1 - sqrt(x) (Hägele et al. 2024). `constant` does not fall, and `inverse_sqrt` is
        peak * sqrt(max(warmup_steps, 1) / step) after the rise (Vaswani et al. 2017, equation 3); neither has an end.
    decay_steps: number of steps of the fall, at the end of the run; None begins it after the rise. Rise, peak and fall
        are the schedule warm-up-stable-decay of Hu et al. 2024.
    final_share: learning rate at the end of the fall, as a share of the peak.
    """

    def schedule(step):
        # Step 0 is the first update; without a rise, the peak is at that step.
        reference = jnp.maximum(warmup_steps, 1)
        if decay == "inverse_sqrt":
            share = jnp.sqrt(reference / jnp.maximum(step, reference))
        elif decay == "constant":
            share = jnp.float32(1)
        else:
            start = warmup_steps if decay_steps is None else jnp.maximum(warmup_steps, total_steps - decay_steps)
            x = jnp.clip((step - start) / jnp.maximum(total_steps - start, 1), 0.0, 1.0)
            share = final_share + (1 - final_share) * FALLS[decay](x)
        return peak * jnp.where(step < warmup_steps, step / reference, share)

    return schedule

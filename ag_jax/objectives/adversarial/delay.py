"""Attacks that begin after some steps: until then, a training step costs no more than without an attack."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.models.encoder import Params
from ag_jax.objectives.base import WeightedSum

LossAndGradient = tuple[tuple[Array, dict[str, WeightedSum]], Params]
ValueAndGrad = Callable[..., LossAndGradient]


def plain_then_attacked(
    begin: int, step: Array, attacked: ValueAndGrad, plain: ValueAndGrad, *arguments: Any
) -> LossAndGradient:
    """Return ((loss, metrics), gradient) of `plain` before the step `begin`, and of `attacked` from then on.

    Only one of both is computed. Before the attack begins, its metrics have total and weight 0, which stand for no
    measurement, and the gradient of an adversary is 0.

    attacked, plain: functions of `arguments`, as `Objective.value_and_grad`.
    """
    if not begin:
        return attacked(*arguments)
    (_, expected), _ = jax.eval_shape(attacked, *arguments)

    def before(*arguments: Any) -> LossAndGradient:
        (loss, metrics), gradient = plain(*arguments)
        missing = {name: shape for name, shape in expected.items() if name not in metrics}
        zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), missing)
        return (loss, metrics | zeros), gradient

    return jax.lax.cond(step >= begin, attacked, before, *arguments)

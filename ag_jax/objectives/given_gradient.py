"""Totals whose gradient is known before anybody asks for it.

A train step differentiates what an objective returns. An objective that has its gradient already, because it needed one of
its own for something else, must neither be differentiated again nor have its loop taken over by the train step.
"""

import jax
import jax.numpy as jnp

from ag_jax.objectives.losses import Array, Params

Totals = dict[str, Array]


@jax.custom_vjp
def with_gradient(totals: Totals, factors: Totals, params: Params, gradient: Params) -> Totals:
    """The totals, of which sum_i factors_i * totals_i has the given gradient with regard to `params`.

    For cotangents c_i = s * factors_i it is s * gradient, with s = <c, factors> / <factors, factors>: exact for one
    total, whatever is done with it, and for several as long as they are weighed as `factors` says. How a gradient is
    made up of several totals is not known here, so that another sum of them has no gradient that could be right.
    """
    return totals


def _forward(totals: Totals, factors: Totals, params: Params, gradient: Params):
    return totals, (factors, gradient)


def _backward(residuals: tuple, cotangents: Totals):
    factors, gradient = residuals
    # Divided by the largest first: the square of a factor of 1e-7 would lose digits where small numbers are flushed to zero.
    largest = jnp.max(jnp.stack([jnp.abs(factor) for factor in factors.values()]))
    unit = {name: factor / jnp.where(largest > 0, largest, 1) for name, factor in factors.items()}
    along = sum(cotangents[name] * unit[name] for name in unit)
    squares = jnp.maximum(sum(jnp.square(factor) for factor in unit.values()), 1)
    scale = along / squares / jnp.where(largest > 0, largest, jnp.inf)
    return None, None, jax.tree.map(lambda leaf: (scale * leaf).astype(leaf.dtype), gradient), None


with_gradient.defvjp(_forward, _backward)

"""A gradient that is there already, handed on with the totals it is of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.objectives.given_gradient import with_gradient

PARAMS = {"a": jnp.array([1.0, 2.0]), "b": {"c": jnp.array([[3.0]], jnp.bfloat16)}}
GIVEN = {"a": jnp.array([10.0, -20.0]), "b": {"c": jnp.array([[5.0]], jnp.bfloat16)}}
FACTORS = {"task": jnp.float32(0.25), "ag": jnp.float32(3.0), "off": jnp.float32(0.0)}
TOTALS = {"task": jnp.float32(8.0), "ag": jnp.float32(2.0), "off": jnp.float32(1e6)}


def weighed(params, scale=1.0, factors=FACTORS, totals=TOTALS, given=GIVEN):
    attached = with_gradient(totals, factors, params, given)
    return scale * sum(factors[term] * total for term, total in attached.items())


def same(found, scale=1.0):
    assert jax.tree.map(lambda leaf: leaf.dtype, found) == jax.tree.map(lambda leaf: leaf.dtype, PARAMS)
    jax.tree.map(lambda one, given: np.testing.assert_allclose(one, scale * given, rtol=1e-6), found, GIVEN)


@pytest.mark.parametrize("under", [lambda f: f, jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(f))])
def test_the_weighed_sum_has_it(under):
    value, gradient = jax.value_and_grad(under(weighed))(PARAMS)
    assert value == 8.0
    same(gradient)
    same(jax.grad(under(lambda params: 3 * weighed(params) + 1))(PARAMS), 3)


def test_used_twice_it_counts_twice():
    both = jax.grad(lambda params: weighed(params) + weighed(params, 0.5) ** 2)(PARAMS)
    same(both, 1 + 2 * 4.0 * 0.5)


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e9])
def test_one_total_is_exact_whatever_is_done_with_it(factor):
    """The factors it was made with are those of a part, and what comes is that of the whole batch."""

    def loss(params):
        total = with_gradient({"task": jnp.float32(7.0)}, {"task": jnp.float32(factor)}, params, GIVEN)["task"]
        return jnp.float32(0.125) * jnp.float32(factor) * total

    same(jax.grad(loss)(PARAMS), 0.125)


def test_nothing_but_the_parameters_gets_a_gradient_and_no_factor_gives_none():
    zero = jax.tree.map(jnp.zeros_like, FACTORS)
    gradient = jax.grad(lambda params: sum(with_gradient(TOTALS, zero, params, GIVEN).values()))(PARAMS)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))
    of_totals, of_given = jax.grad(lambda totals, given: weighed(PARAMS, totals=totals, given=given), argnums=(0, 1))(
        TOTALS, GIVEN
    )
    assert all(not np.any(leaf) for leaf in jax.tree.leaves((of_totals, of_given)))


def test_in_a_scan_over_parts():
    """As microbatches use it: differentiated inside of the scan, and also through it."""
    gradients = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, 4 * leaf]), GIVEN)

    def inside(sums, given):
        return jax.tree.map(jnp.add, sums, jax.grad(lambda params: weighed(params, given=given))(PARAMS)), None

    same(jax.jit(lambda: jax.lax.scan(inside, jax.tree.map(jnp.zeros_like, PARAMS), gradients)[0])(), 7)

    def through(params):
        return jax.lax.scan(lambda total, given: (total + weighed(params, given=given), None), 0.0, gradients)[0]

    same(jax.jit(jax.grad(through))(PARAMS), 7)

"""GELU and its derivatives against scipy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from ag_jax.models.layers import gelu

X = np.linspace(-12, 12, 4001)


def test_gelu_is_x_times_the_normal_distribution_function():
    np.testing.assert_allclose(gelu(jnp.asarray(X, jnp.float32)), X * stats.norm.cdf(X), rtol=2e-6, atol=1e-6)


def test_its_derivatives_of_both_modes_and_of_second_order():
    x = jnp.asarray(X, jnp.float32)
    first = stats.norm.cdf(X) + X * stats.norm.pdf(X)
    np.testing.assert_allclose(jax.vmap(jax.grad(gelu))(x), first, atol=1e-6)
    np.testing.assert_allclose(jax.jvp(gelu, (x,), (jnp.full_like(x, 3.0),))[1], 3 * first, atol=3e-6)
    second = (2 - X**2) * stats.norm.pdf(X)
    np.testing.assert_allclose(jax.vmap(jax.grad(jax.grad(gelu)))(x), second, atol=2e-6)


def test_in_bfloat16_it_is_rounded_but_does_not_cancel():
    x = jnp.asarray(X, jnp.bfloat16)
    exact = np.asarray(x, np.float64) * stats.norm.cdf(np.asarray(x, np.float64))
    assert gelu(x).dtype == jax.vmap(jax.grad(gelu))(x).dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(gelu(x), np.float64), exact, rtol=2**-7, atol=2e-6)

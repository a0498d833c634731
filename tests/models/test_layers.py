"""GELU and its derivatives against scipy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from ag_jax.attention.attack import AttentionMask
from ag_jax.attention.disentangled import rows_at
from ag_jax.attention.kernels import reference
from ag_jax.models import layers
from ag_jax.models.layers import gelu
from tests import tiny

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


def test_an_attack_on_some_queries_reads_the_weights_of_all_positions_with_their_bias():
    """As the mask decoder asks with `mode=bias`: the queries are two of the source's five positions."""
    rng = np.random.default_rng(0)
    source_BKD = jnp.asarray(rng.standard_normal((1, 5, tiny.CONFIG.width)), jnp.float32)
    bias_BHLL = jnp.asarray(3 * rng.standard_normal((1, tiny.CONFIG.heads, 5, 5)), jnp.float32)
    segments_BK, positions_BQ = jnp.ones((1, 5), jnp.int32), jnp.array([[1, 3]])
    module, read = layers.attention(tiny.CONFIG, reference.attend), []

    def attack(hidden_BLD, visible_BQK, probabilities, key):
        read.append(probabilities())
        return AttentionMask(jnp.zeros((1, 1, 5, 5)), counts=jnp.zeros(2))

    def call(params, query_BQD, segments_BQ, bias, **more):
        settings = {"bias": bias, "attack": attack, "deterministic": True}
        return module.apply(params, query_BQD, source_BKD, segments_BQ, segments_BK, **settings, **more)

    params = module.init(jax.random.key(0), source_BKD, source_BKD, segments_BK, segments_BK, deterministic=True)
    whole = call(params, source_BKD, segments_BK, bias_BHLL)
    some = {"source_bias": bias_BHLL, "positions_BQ": positions_BQ}
    part = call(params, source_BKD[:, [1, 3]], segments_BK[:, :2], rows_at(bias_BHLL, positions_BQ), **some)
    np.testing.assert_allclose(*read, rtol=1e-6)
    np.testing.assert_allclose(part, whole[:, [1, 3]], rtol=1e-5, atol=1e-6)

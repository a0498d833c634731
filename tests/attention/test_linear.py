"""Linear layers between several axes, beside `flax.linen.DenseGeneral` and a formula in numpy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.linear import Linear

NAMES = ("embed", "heads", "head_width")


def pair(contracted, dtype="float32", use_bias=True):
    """A `Linear` and the `DenseGeneral` that it stands for: from a width to heads, or back."""
    init = nn.initializers.xavier_uniform()
    names, features, axis = (NAMES, (3, 4), -1) if contracted == 1 else (NAMES[1:] + NAMES[:1], (12,), (-2, -1))
    ours = Linear(features, names, jnp.dtype(dtype), init, use_bias)
    theirs = nn.DenseGeneral(features, axis, dtype=jnp.dtype(dtype), use_bias=use_bias, kernel_init=init)
    shape = (2, 5, 12) if contracted == 1 else (2, 5, 3, 4)
    return ours, theirs, jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize(("contracted", "use_bias"), [(1, True), (2, True), (1, False)])
def test_parameters_outputs_and_gradients_are_those_of_dense_general(contracted, use_bias):
    ours, theirs, x = pair(contracted, use_bias=use_bias)
    params, others = (nn.unbox(module.init(jax.random.key(1), x))["params"] for module in (ours, theirs))
    jax.tree.map(np.testing.assert_array_equal, params, others)
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    weights = jnp.cos(jnp.arange(2 * 5 * 12, dtype=jnp.float32))

    def loss(module):
        return lambda params, x: (module.apply({"params": params}, x).ravel() * weights).sum()

    def both(params, x):
        modules = (ours, theirs)
        return [(of.apply({"params": params}, x), jax.grad(loss(of), argnums=(0, 1))(params, x)) for of in modules]

    (output, found), (expected, wanted) = jax.jit(both)(params, x)
    np.testing.assert_allclose(output, expected, rtol=1e-5)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), found, wanted)


def test_axes_of_the_kernel_are_named_for_sharding():
    ours, _, x = pair(2)
    variables = jax.eval_shape(ours.init, jax.random.key(1), x)["params"]
    assert variables["kernel"].names == ("heads", "head_width", "embed") and variables["bias"].names == ("embed",)


def test_the_gradient_of_the_bias_is_summed_in_float32():
    ours = Linear((2, 1), NAMES, jnp.bfloat16, nn.initializers.ones)
    x = jnp.ones((257, 2), jnp.bfloat16)
    params = nn.unbox(ours.init(jax.random.key(0), x))["params"]
    gradient = jax.grad(lambda params: ours.apply({"params": params}, x).astype(jnp.float32).sum())(params)
    assert gradient["bias"].dtype == jnp.float32 and ours.apply({"params": params}, x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradient["bias"], np.full((2, 1), 257.0))  # bfloat16 has no 257

"""Linear layers from and to several axes, such as the heads and the width of a head."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


class Linear(nn.Module):
    """Linear map of an array's last axes to new axes, with the parameters and initial values of `nn.DenseGeneral`.

    The product of matrices, the addition of the bias and their gradients are computed with the contracted axes
    flattened into one, the new axes into another one, and all other axes into a third one. On a TPU, an array whose
    last axes are (head, width of a head) has a layout of its own, so that `nn.DenseGeneral` would copy its results; on
    a CPU, a gradient that is a contraction over several axes would copy its operands.

    features: sizes of the new axes.
    names: names of all axes of the kernel, for sharding: those of the contracted axes, then those of `features`.
    dtype: of the product, to which input and parameters are converted.
    kernel_init: called with the shape of the flattened kernel.
    use_bias: whether a bias is added.
    dot_general: computes the product of matrices.
    """

    features: tuple[int, ...]
    names: tuple[str, ...]
    dtype: Any
    kernel_init: nn.initializers.Initializer
    use_bias: bool = True
    dot_general: Callable[..., Array] = jax.lax.dot_general

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Return x @ kernel + bias, contracted over the last axes of `x`: shape (*other axes of x, *features)."""
        contracted = len(self.names) - len(self.features)
        other_sizes, contracted_sizes = x.shape[: x.ndim - contracted], x.shape[x.ndim - contracted :]
        rows, columns = math.prod(contracted_sizes), math.prod(self.features)

        def init_kernel(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
            return self.kernel_init(key, (rows, columns), dtype).reshape(shape)

        kernel_init: Any = nn.with_logical_partitioning(init_kernel, self.names)
        kernel = self.param("kernel", kernel_init, (*contracted_sizes, *self.features)).astype(self.dtype)
        flat = x.astype(self.dtype).reshape(-1, rows)
        product = self.dot_general(flat, kernel.reshape(rows, columns), (((1,), (0,)), ((), ())))
        if self.use_bias:
            bias_init: Any = nn.with_logical_partitioning(nn.initializers.zeros, self.names[contracted:])
            product = _add_bias(product, self.param("bias", bias_init, self.features).reshape(columns))
        return product.reshape(*other_sizes, *self.features)


@jax.custom_vjp
def _add_bias(x: Array, bias: Array) -> Array:
    """Return the matrix `x` plus the row `bias`, in the type of `x`; the bias's gradient is summed in float32."""
    return x + bias.astype(x.dtype)[None, :]


def _add_bias_forward(x: Array, bias: Array) -> tuple[Array, Array]:
    return _add_bias(x, bias), bias[:0]  # an array without elements, for its type alone


def _add_bias_backward(like: Array, gradient: Array) -> tuple[Array, Array]:
    wide = jnp.promote_types(gradient.dtype, jnp.float32)
    return gradient, gradient.sum(0, dtype=wide).astype(like.dtype)


_add_bias.defvjp(_add_bias_forward, _add_bias_backward)

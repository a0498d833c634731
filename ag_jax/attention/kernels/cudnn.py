"""Attention by cuDNN, for GPUs where ag_jax's own kernel cannot be used.

cuDNN computes neither the statistics of guidance nor the dropout of `attention.dropout`, whose elements are the same on
all devices, so it serves evaluation and models that are trained without both.

Shape letters: B batch, Q query position, K key position.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend, AttentionInputs, Mixed
from ag_jax.attention.visibility import visible_mask


@dataclasses.dataclass(frozen=True)
class CuDnn(Attend):
    """Attention by cuDNN for calls in half precision without guides, dropout and bias, else by the reference.

    cuDNN takes a mask of visible keys, so memory grows with the number of query-key pairs, but not with the heads.

    implementation: passed to `jax.nn.dot_product_attention`; `xla` runs on other devices, for tests.
    """

    implementation: Literal["cudnn", "xla"] = "cudnn"

    def compute(self, inputs: AttentionInputs) -> Mixed:
        """Return (output `BQHW`, statistics of guidance or None without guides)."""
        is_half = inputs.query_BQHW.dtype in (jnp.bfloat16, jnp.float16)
        if inputs.guides is not None or inputs.rate or inputs.bias is not None or not is_half:
            return reference.attend.compute(inputs)
        visible_BQK = visible_mask(inputs.query_segments_BQ, inputs.key_segments_BK, inputs.band)
        mixed_BQHW = jax.nn.dot_product_attention(
            *inputs[:3], mask=visible_BQK[:, None], implementation=self.implementation
        )
        if inputs.query_segments_BQ is inputs.key_segments_BK:
            return mixed_BQHW, None  # every query sees at least itself
        # cuDNN lets queries that see no key attend to all keys.
        return jnp.where(visible_BQK.any(-1)[:, :, None, None], mixed_BQHW, 0), None

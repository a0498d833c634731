"""Hard-coded Gaussian attention: weights that depend only on the distance of two tokens, so they are not learnt.

You et al. 2020 (Hard-Coded Gaussian Attention for Neural Machine Translation), as their released code has it. Head h
looks at the token at the offset a_h of each query: with queries p and keys q,

    H[p, q] = exp(-((q - p - a_h) / sigma)^2 / 2) / (sigma sqrt(2 pi)),

and 0 for keys of other texts, and in causal attention for q > p. The weights are the density of a normal distribution
at whole numbers. With sigma of at least 0.6, those of a query sum to 1 up to 0.2 % inside a text, and to less at its
borders; with a smaller sigma, they may sum to more. Values and output are projected as in ordinary attention; there are
no queries and keys.

Shape letters: B batch, Q query position, K key position, H head, W width of a head, S distances.
"""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.attention.config import FixedConfig
from ag_jax.attention.visibility import band_of, visible_in_text

# Standard deviations around the offset, beyond which weights are 0; with deviation 1, they would sum to 1.2e-8.
REACH = 5


def _density(config: FixedConfig, heads: int, distances: np.ndarray | Array) -> Array:
    """Return each head's Gaussian weights of keys at `distances` (key - query), with a leading axis over heads."""
    offset_H = config.of_heads(heads).reshape(-1, *[1] * distances.ndim)
    scaled = (distances[None] - offset_H) / config.deviation
    density = jnp.exp(-0.5 * jnp.square(scaled)) / (config.deviation * math.sqrt(2 * math.pi))
    return jnp.where(jnp.abs(scaled) <= REACH, density, 0.0)


def _normalized(config: FixedConfig, weights: Array) -> Array:
    """Return Gaussian attention weights divided by their sum over the keys if `config.normalized`, else unchanged."""
    if not config.normalized:
        return weights
    return weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)


def dense(config: FixedConfig, heads: int, segments_BK: Array, causal: bool) -> Array:
    """Return the hard-coded attention weights as a matrix for each head, `BHQK`, float32; for pictures and tests."""
    length = segments_BK.shape[1]
    position_K = np.arange(length)
    density_HQK = _density(config, heads, position_K[None, :] - position_K[:, None])
    visible_BQK = visible_in_text(segments_BK, segments_BK, band_of(causal, None))
    return _normalized(config, jnp.where(visible_BQK[:, None], density_HQK[None], 0.0))


def row(config: FixedConfig, heads: int, query: Array, length: int) -> Array:
    """Return one query's hard-coded weights of the keys up to itself, `HK`, float32; for decoding a single text.

    query: position of the query.
    length: number of keys.
    """
    position_K = jnp.arange(length)
    density_HK = _density(config, heads, position_K - query)
    return _normalized(config, jnp.where((position_K <= query)[None], density_HK, 0.0))


def mix(config: FixedConfig, value_BKHW: Array, segments_BK: Array, causal: bool) -> Array:
    """Return the values mixed by the hard-coded attention weights, `BQHW`, in time linear in the length.

    Computed as a sum over the few distances at which a weight is not 0, so time and memory are linear in the length.
    The weights are rounded to the type of the values.
    """
    length, heads = value_BKHW.shape[1:3]
    offset_H, reach = config.of_heads(heads), math.ceil(REACH * config.deviation)
    nearest, farthest = int(offset_H.min()) - reach, int(offset_H.max()) + reach
    distance_S = np.arange(max(nearest, 1 - length), min(farthest, 0 if causal else length - 1) + 1)
    weights_HS = _density(config, heads, distance_S)
    total_BQHW = jnp.zeros_like(value_BKHW, jnp.float32)
    sum_BHQ = jnp.zeros((value_BKHW.shape[0], heads, length), jnp.float32)
    for number, distance in enumerate(distance_S.tolist()):
        # The key at q + distance, for every query q; segment 0 stands for keys outside of the row.
        sides = (max(-distance, 0), max(distance, 0))
        keys = slice(max(distance, 0), length + min(distance, 0))
        segments_BQ = jnp.pad(segments_BK[:, keys], [(0, 0), sides])
        visible_BQ = (segments_BQ == segments_BK) & (segments_BK > 0)
        shifted_BQHW = jnp.pad(value_BKHW[:, keys], [(0, 0), sides, (0, 0), (0, 0)])
        weight_BHQ = weights_HS[None, :, number, None] * visible_BQ[:, None, :]
        narrow_BQH1 = weight_BHQ.swapaxes(1, 2)[..., None].astype(value_BKHW.dtype)
        total_BQHW += (narrow_BQH1 * shifted_BQHW).astype(jnp.float32)
        sum_BHQ += weight_BHQ
    if config.normalized:
        total_BQHW /= jnp.maximum(sum_BHQ, 1e-30).swapaxes(1, 2)[..., None]
    return total_BQHW.astype(value_BKHW.dtype)

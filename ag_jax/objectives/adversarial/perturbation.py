"""Perturbations of embeddings: on valid tokens alone, and measured text by text.

The texts of a packed row are perturbed as if each had a row of its own, and so is each candidate of an example.

Shape letters: B batch, L length, E width of the embeddings.
"""

import jax
import jax.numpy as jnp

from ag_jax.attention import sequences
from ag_jax.models import encoder
from ag_jax.models.encoder import Batch
from ag_jax.objectives.losses import Array, LossTerm


def rows(batch: Batch) -> Array:
    """Which text each token is of, `BL`, as the encoder reads the batch."""
    return encoder.rows(batch)["sequences"]


def on_texts(delta_BLE: Array, sequences_BL: Array) -> Array:
    """The perturbation of valid tokens, and 0 for padding."""
    return jnp.where(sequences_BL[:, :, None] > 0, delta_BLE, 0.0)


def norms(values_BLE: Array, sequences_BL: Array) -> Array:
    """For every position the length of all that its text has, together; `BL1`, 0 on padding."""
    return jnp.sqrt(sequences.totals(jnp.square(values_BLE).sum(-1), sequences_BL))[:, :, None]


def largest(values_BLE: Array, sequences_BL: Array) -> Array:
    """For every position the largest absolute component that its text has; `BL1`, 0 on padding."""
    of_tokens_B1L = jnp.abs(values_BLE).max(-1)[:, None, :]
    return jnp.where(sequences.together(sequences_BL), of_tokens_B1L, 0.0).max(-1)[:, :, None]


def normal(key: Array, sequences_BL: Array, width: int, deviation: float) -> Array:
    """N(0, deviation^2) for each component of valid tokens."""
    return on_texts(deviation * jax.random.normal(key, (*sequences_BL.shape, width)), sequences_BL)


def plus(before_BLE: Array | None, delta_BLE: Array) -> Array:
    """A perturbation beside one that is there already."""
    return delta_BLE if before_BLE is None else before_BLE + delta_BLE


def length_metric(delta_BLE: Array, sequences_BL: Array) -> LossTerm:
    """Mean length of the perturbation of a text."""
    firsts_BL = sequences.firsts(sequences_BL)
    lengths_BL = norms(delta_BLE, sequences_BL)[:, :, 0]
    return jnp.where(firsts_BL, lengths_BL, 0.0).sum(), firsts_BL.sum().astype(jnp.float32)

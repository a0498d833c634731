"""Perturbations of embeddings: of valid tokens only, and measured text by text.

The texts of a packed row are perturbed as if each had a row of its own, and so is each candidate of an example.

Shape letters: B batch, L length, E width of the embeddings.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments
from ag_jax.models import encoder
from ag_jax.models.encoder import Batch, Ports
from ag_jax.objectives.base import LossTerm
from ag_jax.objectives.predictions import Counts, Prediction


class Perturbation(Protocol):
    """A kind of perturbation, and the steps of the search for its worst value."""

    def clean(self, ports: Ports) -> Ports:
        """The ports of the clean pass."""

    def perturbed(self, ports: Ports, delta_BLE: Array) -> Ports:
        """The ports of a pass with a perturbation."""

    def init(self, key: Array, sequences_BL: Array) -> Array:
        """The initial perturbation, `BLE`, 0 on padding."""

    def objective(self, clean: Prediction, other: Prediction, counts: Counts) -> Array:
        """The function that the perturbation maximises, with `clean` fixed.

        A sum over examples, so that the gradient of one does not depend on others.
        """

    def update(self, delta_BLE: Array, slope_BLE: Array, sequences_BL: Array) -> Array:
        """The perturbation after one step along a gradient, which is 0 on padding."""


def rows(batch: Batch) -> Array:
    """The number of the text of each token, `BL`, in the rows that the encoder reads."""
    return encoder.rows(batch)["sequences"]


def on_texts(delta_BLE: Array, sequences_BL: Array) -> Array:
    """The perturbation on valid tokens, and 0 on padding."""
    return jnp.where(sequences_BL[:, :, None] > 0, delta_BLE, 0.0)


def norms(values_BLE: Array, sequences_BL: Array) -> Array:
    """For every position the Euclidean norm over its whole text; `BL1`, 0 on padding."""
    return jnp.sqrt(segments.totals(jnp.square(values_BLE).sum(-1), sequences_BL))[:, :, None]


def largest(values_BLE: Array, sequences_BL: Array) -> Array:
    """For every position the largest absolute component in its text; `BL1`, 0 on padding."""
    of_tokens_B1L = jnp.abs(values_BLE).max(-1)[:, None, :]
    return jnp.where(segments.same_segment_mask(sequences_BL), of_tokens_B1L, 0.0).max(-1)[:, :, None]


def normal(key: Array, sequences_BL: Array, width: int, deviation: float) -> Array:
    """N(0, deviation^2) for each component of valid tokens."""
    return on_texts(deviation * jax.random.normal(key, (*sequences_BL.shape, width)), sequences_BL)


def plus(before_BLE: Array | None, delta_BLE: Array) -> Array:
    """The sum of a perturbation and an earlier one, if there is one."""
    return delta_BLE if before_BLE is None else before_BLE + delta_BLE


def length_metric(delta_BLE: Array, sequences_BL: Array) -> LossTerm:
    """Mean length of the perturbation of a text."""
    firsts_BL = segments.is_first(sequences_BL)
    lengths_BL = norms(delta_BLE, sequences_BL)[:, :, 0]
    return jnp.where(firsts_BL, lengths_BL, 0.0).sum(), firsts_BL.sum().astype(jnp.float32)

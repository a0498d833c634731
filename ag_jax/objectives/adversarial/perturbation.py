"""Perturbations of embeddings: their interface, and functions to draw and measure them separately for each text.

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
from ag_jax.objectives.base import WeightedSum
from ag_jax.objectives.predictions import Prediction, PredictionWeights


class Perturbation(Protocol):
    """Interface of a perturbation of embeddings, and of the gradient ascent that searches for the worst one."""

    def clean(self, ports: Ports) -> Ports:
        """Return `ports`, the encoder's optional inputs, for a clean pass: as they are, or set to normalise embeddings.

        The clean pass reads normalised embeddings if the perturbation is of normalised embeddings, as in SiFT.
        """

    def perturbed(self, ports: Ports, delta_BLE: Array) -> Ports:
        """Return `ports`, the optional inputs of the encoder, with the perturbation `delta_BLE` added."""

    def init(self, key: Array, segments_BL: Array) -> Array:
        """Return the initial perturbation, `BLE` with embedding width E, 0 on padding."""

    def objective(self, clean: Prediction, other: Prediction, weights: PredictionWeights) -> Array:
        """Return the value that the perturbation maximises: how far the prediction `other` is from `clean`.

        `other` is the perturbed prediction; `clean` is fixed.

        A sum over examples, so that the gradient of one does not depend on others.
        """

    def update(self, delta_BLE: Array, slope_BLE: Array, segments_BL: Array) -> Array:
        """Return the perturbation after one step along the gradient `slope_BLE`; both arrays are 0 on padding."""


def encoder_segments(batch: Batch) -> Array:
    """Return the segment ids as the encoder reads them, `BL`: each candidate answer is a row of its own.

    Only examples of multiple choice or ranking have several candidates.
    """
    return encoder.rows(batch)["segment_ids"]


def on_texts(delta_BLE: Array, segments_BL: Array) -> Array:
    """Return the perturbation with padding set to 0."""
    return jnp.where(segments_BL[:, :, None] > 0, delta_BLE, 0.0)


def norms(values_BLE: Array, segments_BL: Array) -> Array:
    """Return, for every position, the Euclidean norm of all values in the same text, `BL1`; 0 on padding."""
    return jnp.sqrt(segments.totals(jnp.square(values_BLE).sum(-1), segments_BL))[:, :, None]


def largest(values_BLE: Array, segments_BL: Array) -> Array:
    """Return, for every position, the largest absolute value in the same text, `BL1`; 0 on padding."""
    tokens_B1L = jnp.abs(values_BLE).max(-1)[:, None, :]
    return jnp.where(segments.same_segment_mask(segments_BL), tokens_B1L, 0.0).max(-1)[:, :, None]


def normal(key: Array, segments_BL: Array, width: int, deviation: float) -> Array:
    """Return a sample of N(0, deviation^2) for each embedding component of every token, `BLE`; 0 on padding."""
    return on_texts(deviation * jax.random.normal(key, (*segments_BL.shape, width)), segments_BL)


def plus(before_BLE: Array | None, delta_BLE: Array) -> Array:
    """Return `delta_BLE` plus an earlier perturbation `before_BLE`, if there is one."""
    return delta_BLE if before_BLE is None else before_BLE + delta_BLE


def length_metric(delta_BLE: Array, segments_BL: Array) -> WeightedSum:
    """Return the mean Euclidean norm of a text's perturbation, as a metric (sum over texts, number of texts)."""
    firsts_BL = segments.is_first(segments_BL)
    lengths_BL = norms(delta_BLE, segments_BL)[:, :, 0]
    return jnp.where(firsts_BL, lengths_BL, 0.0).sum(), firsts_BL.sum().astype(jnp.float32)

"""Rotary positions: queries and keys are rotated by angles that grow with their positions (Su et al. 2021, RoFormer).

The width W of a head is split into W / 2 pairs of numbers, (x_i, x_{i + W/2}). At position p, a pair is rotated by the
angle p base^(-2i/W), so that the product of a query at p and a key at q depends on the positions by p - q alone.
The pairs are those of transformers; the paper's are adjacent numbers, (x_{2i}, x_{2i+1}), and weights of a model that
has those must be reordered.

Shape letters: B batch, L length, H head, W width of a head, P pairs of a head.
"""

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax import Array


@flax.struct.dataclass
class Rotation:
    """Cosines and sines, float32 `BLP`, of the angles that rotate a head's P pairs of components at each position."""

    cosines_BLP: Array
    sines_BLP: Array


def rotation(positions_BL: Array, width: int, base: float) -> Rotation:
    """Return the rotation of heads of an even `width` at the given positions, with the angles position * base^(-2i/W).

    positions_BL: positions, from 0; in a packed row, each text counts for itself.
    """
    # The power is computed in float64 and rounded once, because an error of a frequency is multiplied by the position.
    frequencies_P = np.asarray(float(base) ** (-np.arange(0, width, 2) / width), np.float32)
    angles_BLP = positions_BL.astype(jnp.float32)[:, :, None] * frequencies_P[None, None, :]
    return Rotation(jnp.cos(angles_BLP), jnp.sin(angles_BLP))


def rotate(vectors_BLHW: Array, by: Rotation) -> Array:
    """Return queries or keys `BLHW` rotated by their positions' angles, computed in float32, in their own type."""
    first_BLHP, second_BLHP = jnp.split(vectors_BLHW.astype(jnp.float32), 2, axis=-1)
    cosines_BL1P, sines_BL1P = by.cosines_BLP[:, :, None, :], by.sines_BLP[:, :, None, :]
    rotated_BLHW = jnp.concatenate(
        [first_BLHP * cosines_BL1P - second_BLHP * sines_BL1P, second_BLHP * cosines_BL1P + first_BLHP * sines_BL1P],
        axis=-1,
    )
    return rotated_BLHW.astype(vectors_BLHW.dtype)

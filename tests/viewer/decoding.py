"""The decoder of stored maps in numpy, an independent formulation of that of `viewer.js`."""

import numpy as np

from ag_jax.viewer.encode import NIBBLE, Precision


def decode_map(data: bytes, queries: int, keys: int, precision: Precision, *, sums_to_one: bool = True) -> np.ndarray:
    """Return the weights `QK` in the bytes of `encode_map`, by the rules of `viewer.js`.

    sums_to_one: whether the rows of the map summed to 1, so that they are brought near 1 again; of a precision without
        additional bits, this changes nothing.
    """
    cells, top = queries * keys, precision.levels - 1
    level = np.frombuffer(data[:cells], np.uint8).astype(np.float64)
    root = level / top
    if precision.refined_from is None:
        return (root**2).reshape(keys, queries).T.copy()
    refined = level >= precision.refined_from
    packed = np.frombuffer(data[cells:], np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=1).ravel()[: refined.sum()]
    root[refined] = np.minimum((level[refined] - 0.5 + (nibbles + 0.5) / NIBBLE) / top, 1.0)
    weights_QK, refined_QK, level_QK = (array.reshape(keys, queries).T for array in (root**2, refined, level))
    if not sums_to_one:
        return weights_QK.copy()
    rest_Q = np.where(refined_QK, 0.0, weights_QK).sum(1)
    missing_Q = np.maximum(1 - np.where(refined_QK, weights_QK, 0.0).sum(1), 0.0)
    factor_Q = np.divide(missing_Q, rest_Q, out=np.ones(queries), where=rest_Q > 0)
    # Not beyond the weights that are stored as the same level.
    low_QK, high_QK = (np.maximum((level_QK + half) / top, 0.0) ** 2 for half in (-0.5, 0.5))
    return np.where(refined_QK, weights_QK, np.clip(weights_QK * factor_Q[:, None], low_QK, high_QK))

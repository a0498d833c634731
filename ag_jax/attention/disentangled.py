"""Disentangled attention (DeBERTa): to content-to-content scores, it adds scores between content and distances.

He et al. 2021, section 3.1, as its code has it. With Q, K of the content and Qr, Kr of the embeddings of distances,

    A[i, j] = (Q_i . K_j + Q_i . Kr[row(i - j)] + K_j . Qr[row(i - j)]) / sqrt(W (1 + number of terms)),
                           content to position    position to content
    row(d) = clip(bucket(d) + half, 0, 2 half - 1)

where `half` is the span, and a bucket the distance itself; or `half` is the number of buckets, which are as wide as one
distance near 0 and grow with its logarithm.

Which distance a pair has depends on i - j alone. So the projected embeddings are laid out by distance first, one row
for each of the 2 L - 1 of them; a product with those has in row i what is wanted, moved by i places, and `skew` moves
it back with one reshape. A gather from the product with the table would be fewer FLOPs, by half at the most; but
accelerators gather single elements slowly, and buckets or clipping make no difference here.

Shape letters: B batch, L length, Q query position, K key position, H head, W width of a head, D width of the model,
R rows of the table of relative embeddings, S distances.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.attention.config import DisentangledConfig


def log_buckets(distances: np.ndarray, buckets: int, span: int) -> np.ndarray:
    """Return DeBERTa's bucket of each distance: the distance itself up to buckets / 2, logarithmic beyond.

    Beyond mid = buckets / 2 it is sign * (ceil((mid - 1) log_r(|d| / mid)) + mid), with r = (span - 1) / mid.

    Distances of `span` and more get buckets beyond the table, for which `rows` takes the last row on that side, as
    Hugging Face does. The released code limits distances to `span` - 1 first, so that it reads row 1 in place of row 0.

    In float32, as released models were trained with what its rounding makes of the borders of buckets; logarithms are
    rounded from float64, for those of numpy's float32 may be off by a digit.
    """
    middle = buckets // 2
    size = np.maximum(np.abs(distances), middle).astype(np.float32) / np.float32(middle)
    base = np.float32((span - 1) / middle)
    log_size, log_base = (np.log(x.astype(np.float64)).astype(np.float32) for x in (size, base))
    places = log_size / log_base * np.float32(middle - 1)
    beyond = np.sign(distances) * (np.ceil(places).astype(np.int64) + middle)
    return np.where(np.abs(distances) <= middle, distances, beyond)


def rows(config: DisentangledConfig, distances: np.ndarray) -> np.ndarray:
    """Return each distance's row in the table of distance embeddings (distance: query minus key position)."""
    if config.buckets:
        distances = log_buckets(distances, config.buckets, config.span)
    return np.clip(distances + config.half, 0, 2 * config.half - 1)


def layout(config: DisentangledConfig, term: str, length: int) -> tuple[slice, np.ndarray]:
    """Return (slice of the distance embeddings that texts of a length use, index in the slice for each distance).

    They are a slice of the table's rows, and for each distance between positions the index of its row in this slice.

    term: `c2p` or `p2c`, which read the rows in opposite orders unless `config.index` is `paper`.

    The 2 `length` distances (2 `length` - 1 between positions of a text, and a last that is never read) are in the
    order of the last axis of the products that `skew` takes.
    """
    distances_S = np.minimum(np.arange(2 * length), 2 * length - 2) - (length - 1)  # the last one is never read
    # `skew` reads the entry s = other - self + L - 1 of a row, where self is the query in c2p, and the key in p2c.
    rows_S = rows(config, -distances_S if term == "c2p" or config.index == "paper" else distances_S)
    first, last = rows_S.min(), rows_S.max()
    return slice(int(first), int(last) + 1), rows_S - first


def skew(products: Array, positions_BQ: Array | None = None) -> Array:
    """Pick each query's products at the distances of its keys, `BHQK`, from those at all S distances, `BHQS`.

    Each query's row of products is shifted by the query's position:
    out[..., q, j] = products[..., q, j - p_q + L - 1], with L the length of the text and p_q the position of query q.

    products: dot products of each query (key, for the term p2c) with each distance, `BHQS` with S = 2 L.
    positions_BQ: position p_q of each query; None for rows of all L positions, in order.
    """
    *batch, rows, double = products.shape
    length = double // 2
    if positions_BQ is None:
        # Read on as one line and cut into pieces of 2 L - 1, each row starts one place later: no gather.
        line = products.reshape(*batch, rows * double)[..., length - 1 : length - 1 + rows * (double - 1)]
        return line.reshape(*batch, rows, double - 1)[..., :length]

    def cut(row_HS: Array, position: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(row_HS, length - 1 - position, length, axis=1)

    return jax.vmap(jax.vmap(cut, in_axes=(1, 0), out_axes=1))(products, positions_BQ)


def rows_at(matrix_BHLK: Array, positions_BQ: Array | None) -> Array:
    """Return the rows (axis L) of `matrix_BHLK` at `positions_BQ`, as `BHQK`; all rows if `positions_BQ` is None.

    A matrix with a single row, which broadcasts to all queries, is returned unchanged.
    """
    if positions_BQ is None or matrix_BHLK.shape[2] == 1:
        return matrix_BHLK
    return jnp.take_along_axis(matrix_BHLK, positions_BQ[:, None, :, None], axis=2)


def relative_scores(
    config: DisentangledConfig,
    query_BQHW: Array,
    key_BKHW: Array,
    projected: dict[str, tuple[Array, np.ndarray]],
    positions_BQ: Array | None = None,
) -> Array:
    """Return the relative-position part of the attention scores, the scaled sum of c2p and p2c: `BHQK`, float32.

    It is the sum over the T enabled terms, such as `c2p`, divided by sqrt((1 + T) W), with W the width of a head.

    projected: for each term the projected rows of the table, `RHW`, and their layout: keys for c2p, queries for p2c.
    positions_BQ: of the queries among the keys; None for all positions, in order.
    """
    total_BHQK: Any = 0.0
    for term in config.names:
        table_RHW, layout_S = projected[term]
        content = query_BQHW if term == "c2p" else key_BKHW
        table_SHW = jnp.take(table_RHW, layout_S, axis=0)
        products = jnp.einsum("blhw,shw->bhls", content, table_SHW, preferred_element_type=jnp.float32)
        if term == "c2p":
            of_term_BHQK = skew(products, positions_BQ)
        else:  # computed for queries at all positions, which differ only in the row of the table
            of_term_BHQK = rows_at(skew(products).swapaxes(-1, -2), positions_BQ)
        total_BHQK = total_BHQK + of_term_BHQK
    return total_BHQK * (config.content_scale / math.sqrt(query_BQHW.shape[-1]))

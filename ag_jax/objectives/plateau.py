"""Measures of the loss plateau, in evaluations of models that predict masked words: collapse and repetition.

While the training loss stalls, a model may give all positions nearly the same hidden state (collapse), and predict
the same few words everywhere (repetition): What Happens During the Loss Plateau? (NeurIPS 2025, arXiv 2506.13688).

Shape letters: B batch, L length, N positions, M masked positions of a row, D width, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax import Array

from ag_jax.attention import segments
from ag_jax.models.encoder import Batch, at_masks
from ag_jax.objectives.base import WeightedSum


def collapse(encoded_BLD: Array | None, batch: Batch) -> dict[str, WeightedSum]:
    """Return {metric: (sum, number of texts)} of the mean cosine between hidden states in a text; {} without them.

    `collapse/masked` is the mean over pairs of different masked positions, `collapse/all` over pairs of any two
    different tokens. A text with fewer than two such positions does not count.
    """
    if encoded_BLD is None:
        return {}
    segments_BL = batch["segment_ids"]
    segments_BM = jnp.take_along_axis(segments_BL, batch["masked_positions"], axis=1)
    masked_BM = jnp.where(batch["masked_weights"] > 0, segments_BM, 0)
    return {
        "collapse/masked": _mean_cosines(at_masks(encoded_BLD, batch), masked_BM),
        "collapse/all": _mean_cosines(encoded_BLD, segments_BL),
    }


def _mean_cosines(vectors_BND: Array, segments_BN: Array) -> WeightedSum:
    """Return (sum over texts of the mean cosine between two of a text's vectors, number of texts with at least two).

    For unit vectors u_1 ... u_n, the sum of u_i . u_j over i != j is |u_1 + ... + u_n|^2 - n, so that no array has an
    element for each pair. In float32.

    segments_BN: the text of each vector, as in `attention.segments`.
    """
    vectors_BND = vectors_BND.astype(jnp.float32)
    lengths_BN1 = jnp.linalg.norm(vectors_BND, axis=-1, keepdims=True)
    units_BND = vectors_BND / jnp.maximum(lengths_BN1, jnp.finfo(jnp.float32).tiny)
    is_first_BN, count_BN = segments.is_first(segments_BN), segments.sizes(segments_BN)
    is_last_BN = segments.order(segments_BN) == count_BN - 1  # never on padding, where both counts are 0

    def add(sum_BD: Array, position: tuple[Array, Array]) -> tuple[Array, Array]:
        unit_BD, is_first_B = position
        sum_BD = jnp.where(is_first_B[:, None], 0, sum_BD) + unit_BD
        return sum_BD, jnp.square(sum_BD).sum(-1)

    # Position by position, in the order of the text, so that every device adds in the same order. The sums of a text
    # never contain another text: differences of running sums over the row would lose digits.
    along_row = units_BND.swapaxes(0, 1), is_first_BN.T
    squares_BN = jax.lax.scan(add, jnp.zeros_like(units_BND[:, 0]), along_row)[1].T
    counted_BN = is_last_BN & (count_BN >= 2)
    means_BN = (squares_BN - count_BN) / jnp.maximum(count_BN * (count_BN - 1), 1)
    return jnp.where(counted_BN, means_BN, 0).sum(), counted_BN.sum().astype(jnp.float32)


def repetition(predicted_BM: Array | None, batch: Batch, vocabulary: int) -> dict[str, WeightedSum]:
    """Return {metric: (counts of words, number of words)} of predicted words and labels; {} without predictions.

    The counts `V` are of the masked positions at which each word is predicted (`repetition/predicted`) or the label
    (`repetition/labels`). Divided when an evaluation ends, they are the share of the most frequent word
    (`training.metrics.Sums`).

    predicted_BM: ids of the words with the largest score.
    """
    if predicted_BM is None:
        return {}
    weights_BM = batch["masked_weights"]

    def counts(words_BM: Array) -> WeightedSum:
        return jnp.zeros(vocabulary).at[words_BM].add(weights_BM), weights_BM.sum()

    return {"repetition/predicted": counts(predicted_BM), "repetition/labels": counts(batch["masked_labels"])}

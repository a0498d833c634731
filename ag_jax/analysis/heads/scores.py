"""Scores of heads on queries: whether the word, token or candidate with the most attention is a correct answer.

A head's answer is the word, candidate or position to which it attends most. If several are equal, the query's score is
the share of correct ones among them. Taking the first would favour the beginning of the text where rows are constant.

Shape letters: Q queries of a batch, N layers, H heads, U units (words or positions), G candidates of a query.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ag_jax.analysis.heads.encoding import EncodedWindow
from ag_jax.data.probes.queries import Mode, Query

MODES: tuple[Mode, ...] = ("mentions", "words", "positions")
ROUNDING = 1e-6  # relative
LEAST_MASS = 1e-9  # floor of attention to candidates, so that the confusion of a head that ignores them is finite


@dataclasses.dataclass(frozen=True)
class Choices:
    """The words, tokens or candidates among which a head chooses for each query of a batch, and which are correct.

    allowed_QU: the units among which it chooses; in the mode `mentions`, U is the candidates.
    right_QU: the units that are correct; those that are not allowed never count.
    """

    allowed_QU: np.ndarray
    right_QU: np.ndarray

    @property
    def chance_Q(self) -> np.ndarray:
        """Share of correct choices among the allowed ones: the expected score of a random choice."""
        allowed_Q = self.allowed_QU.sum(-1)
        return (self.allowed_QU & self.right_QU).sum(-1) / np.maximum(allowed_Q, 1)


def word_choices(queries: Sequence[Query], units: int, words: Sequence[int], *, before: bool) -> Choices:
    """Return the choices of mode `words`: a window's other words or, with `before`, those before the query's mention.

    units: length of the rows.
    words: number of words in each query's window.
    """
    allowed_QU, right_QU = _empty(queries, units)
    for row, (query, count) in enumerate(zip(queries, words, strict=True)):
        allowed_QU[row, : query.begin if before else count] = True
        allowed_QU[row, query.at] = False
        right_QU[row, list(query.answers)] = True
    return Choices(allowed_QU, right_QU)


def position_choices(queries: Sequence[Query], units: int, windows: Sequence[EncodedWindow]) -> Choices:
    """Return the choices of mode `positions`: all tokens of the window; a token of a correct word is correct.

    The begin and end tokens, and those of the query's own word, are among the choices.

    windows: the window of each query.
    """
    allowed_QU, right_QU = _empty(queries, units)
    for row, (query, window) in enumerate(zip(queries, windows, strict=True)):
        allowed_QU[row, : len(window.ids)] = True
        for word in query.answers:
            right_QU[row, window.starts[word] : window.starts[word + 1]] = True
    return Choices(allowed_QU, right_QU)


def candidate_choices(queries: Sequence[Query], units: int) -> tuple[np.ndarray, Choices]:
    """Return (0/1 mask `QGU` of the words of each query's candidates, choices among these for mode `mentions`).

    `candidate_mass` turns attention to words into attention to candidates.

    units: length of the rows of attention.
    """
    most = max((len(query.candidates) for query in queries), default=0)
    words_QGU = np.zeros((len(queries), most, units), np.float32)
    allowed_QG, right_QG = _empty(queries, most)
    for row, query in enumerate(queries):
        for index, words in enumerate(query.candidates):
            words_QGU[row, index, list(words)] = 1.0
        allowed_QG[row, : len(query.candidates)] = True
        right_QG[row, list(query.right)] = True
    return words_QGU, Choices(allowed_QG, right_QG)


def candidate_mass(weights_QNHU: np.ndarray, words_QGU: np.ndarray) -> np.ndarray:
    """Return the attention to each candidate, the sum over its words, `QNHG`."""
    queries, layers, heads, units = weights_QNHU.shape
    flat = weights_QNHU.reshape(queries, layers * heads, units) @ words_QGU.swapaxes(1, 2)
    return flat.reshape(queries, layers, heads, -1)


def scores(weights_QNHU: np.ndarray, choices: Choices) -> tuple[np.ndarray, np.ndarray]:
    """Return each head's score on each query, in [0, 1], and the index of its most attended choice, both `QNH`.

    The score is 1 if that choice is correct; among n choices with equal weight, of which r are correct, it is r / n.
    The index is the first one with the largest weight. A query without an allowed choice has score 0 and index -1.
    """
    allowed_QNHU = choices.allowed_QU[:, None, None, :]
    masked_QNHU: np.ndarray = np.where(allowed_QNHU, weights_QNHU, -1.0)
    most_QNH1 = masked_QNHU.max(-1, keepdims=True)
    # Weights that are equal but for rounding are tied.
    tied_QNHU = np.logical_and(masked_QNHU >= most_QNH1 * (1 - ROUNDING), allowed_QNHU)
    right_QNH = np.logical_and(tied_QNHU, choices.right_QU[:, None, None, :]).sum(-1)
    has_choice_Q = np.count_nonzero(choices.allowed_QU, axis=-1) > 0
    chosen_QNH = np.where(has_choice_Q[:, None, None], masked_QNHU.argmax(-1), -1)
    return (right_QNH / np.maximum(tied_QNHU.sum(-1), 1)).astype(np.float32), chosen_QNH.astype(np.int16)


def largest(weights_QNHU: np.ndarray, choices: Choices) -> np.ndarray:
    """Return the largest attention weight among the allowed choices, `QNH`; 0 if none is allowed."""
    return np.where(choices.allowed_QU[:, None, None, :], weights_QNHU, 0.0).max(-1)


def confusion(mass_QNHG: np.ndarray, choices: Choices) -> np.ndarray:
    """Return the confusion of heads, -log2(attention to correct candidates / to all), `QNH` (Lin et al. 2019).

    0 means that a head attends to no wrong candidate; with g candidates of equal attention, of which one is correct, it
    is log2(g). Attention to each candidate counts as at least `LEAST_MASS`.
    """
    mass_QNHG = np.where(choices.allowed_QU[:, None, None, :], np.maximum(mass_QNHG, LEAST_MASS), 0.0)
    right_QNH = (mass_QNHG * choices.right_QU[:, None, None, :]).sum(-1)
    return -np.log2(np.maximum(right_QNH, LEAST_MASS) / mass_QNHG.sum(-1)).astype(np.float32)


def _empty(queries: Sequence[Query], units: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((len(queries), units), bool), np.zeros((len(queries), units), bool)

"""Whether each head answers a query correctly, from its attention to words.

A head's answer is the word, candidate or position to which it attends most. If several are equal, the query's score is
the share of correct ones among them. Taking the first would favour the beginning of the text where rows are constant.

Shape letters: F queries of a batch, N layers, H heads, U units (words or positions), G candidates of a query.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ag_jax.data.probes.queries import Query
from ag_jax.probing.encoding import EncodedWindow

Mode = Literal["mentions", "words", "positions"]
MODES: tuple[Mode, ...] = ("mentions", "words", "positions")
ROUNDING = 1e-6  # relative
LEAST_MASS = 1e-9  # floor of attention to candidates, so that the confusion of a head that ignores them is finite


@dataclasses.dataclass(frozen=True)
class Choices:
    """The choices of a head, for each query of a batch.

    allowed_FU: the units among which it chooses; in the mode `mentions`, U is the candidates.
    right_FU: the units that are correct; those that are not allowed never count.
    """

    allowed_FU: np.ndarray
    right_FU: np.ndarray

    @property
    def chance_F(self) -> np.ndarray:
        """Share of correct units among the allowed ones: the expected score of a random choice."""
        allowed_F = self.allowed_FU.sum(-1)
        return (self.allowed_FU & self.right_FU).sum(-1) / np.maximum(allowed_F, 1)


def word_choices(queries: Sequence[Query], units: int, words: Sequence[int], *, before: bool) -> Choices:
    """Return the choices of mode `words`: all other words of the window, or with `before` those before the mention.

    units: length of the rows.
    words: number of words in each query's window.
    """
    allowed_FU, right_FU = _empty(queries, units)
    for row, (query, count) in enumerate(zip(queries, words, strict=True)):
        allowed_FU[row, : query.begin if before else count] = True
        allowed_FU[row, query.at] = False
        right_FU[row, list(query.answers)] = True
    return Choices(allowed_FU, right_FU)


def position_choices(queries: Sequence[Query], units: int, windows: Sequence[EncodedWindow]) -> Choices:
    """Return the choices of mode `positions`: all tokens of the window, also its begin and end tokens and the query's
    own; a token of a correct word is correct.

    windows: the window of each query.
    """
    allowed_FU, right_FU = _empty(queries, units)
    for row, (query, window) in enumerate(zip(queries, windows, strict=True)):
        allowed_FU[row, : len(window.ids)] = True
        for word in query.answers:
            right_FU[row, window.starts[word] : window.starts[word + 1]] = True
    return Choices(allowed_FU, right_FU)


def candidate_choices(queries: Sequence[Query], units: int) -> tuple[np.ndarray, Choices]:
    """Return the words of each candidate, `FGU` with 0 and 1, and the choices of mode `mentions`, between candidates.

    `candidate_mass` turns attention to words into attention to candidates.

    units: length of the rows of attention.
    """
    most = max((len(query.candidates) for query in queries), default=0)
    words_FGU = np.zeros((len(queries), most, units), np.float32)
    allowed_FG, right_FG = _empty(queries, most)
    for row, query in enumerate(queries):
        for index, words in enumerate(query.candidates):
            words_FGU[row, index, list(words)] = 1.0
        allowed_FG[row, : len(query.candidates)] = True
        right_FG[row, list(query.right)] = True
    return words_FGU, Choices(allowed_FG, right_FG)


def candidate_mass(weights_FNHU: np.ndarray, words_FGU: np.ndarray) -> np.ndarray:
    """Return the attention to each candidate, the sum over its words, `FNHG`."""
    queries, layers, heads, units = weights_FNHU.shape
    flat = weights_FNHU.reshape(queries, layers * heads, units) @ words_FGU.swapaxes(1, 2)
    return flat.reshape(queries, layers, heads, -1)


def scores(weights_FNHU: np.ndarray, choices: Choices) -> tuple[np.ndarray, np.ndarray]:
    """Return the score of each query, layer and head in [0, 1], `FNH`, and the (first) unit of largest weight, `FNH`.

    The score is 1 if that unit is correct; among n units with equal weight, of which r are correct, it is r / n. A
    query without an allowed unit has score 0, and the unit -1.
    """
    allowed_FNHU = choices.allowed_FU[:, None, None, :]
    masked_FNHU: np.ndarray = np.where(allowed_FNHU, weights_FNHU, -1.0)
    most_FNH1 = masked_FNHU.max(-1, keepdims=True)
    # Weights that are equal but for rounding are tied.
    tied_FNHU = np.logical_and(masked_FNHU >= most_FNH1 * (1 - ROUNDING), allowed_FNHU)
    right_FNH = np.logical_and(tied_FNHU, choices.right_FU[:, None, None, :]).sum(-1)
    has_choice_F = np.count_nonzero(choices.allowed_FU, axis=-1) > 0
    chosen_FNH = np.where(has_choice_F[:, None, None], masked_FNHU.argmax(-1), -1)
    return (right_FNH / np.maximum(tied_FNHU.sum(-1), 1)).astype(np.float32), chosen_FNH.astype(np.int16)


def largest(weights_FNHU: np.ndarray, choices: Choices) -> np.ndarray:
    """Return the attention to the unit of largest weight among the allowed ones, `FNH`; 0 without any."""
    return np.where(choices.allowed_FU[:, None, None, :], weights_FNHU, 0.0).max(-1)


def confusion(mass_FNHG: np.ndarray, choices: Choices) -> np.ndarray:
    """Return -log2(attention to the correct candidates / attention to all candidates), `FNH` (Lin et al. 2019).

    0 means that a head attends to no wrong candidate; with g candidates of equal attention, of which one is correct, it
    is log2(g). Attention to each candidate counts as at least `LEAST_MASS`.
    """
    mass_FNHG = np.where(choices.allowed_FU[:, None, None, :], np.maximum(mass_FNHG, LEAST_MASS), 0.0)
    right_FNH = (mass_FNHG * choices.right_FU[:, None, None, :]).sum(-1)
    return -np.log2(np.maximum(right_FNH, LEAST_MASS) / mass_FNHG.sum(-1)).astype(np.float32)


def _empty(queries: Sequence[Query], units: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((len(queries), units), bool), np.zeros((len(queries), units), bool)

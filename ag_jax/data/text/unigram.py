"""Token ids drawn with their frequency in a text: a generator for replaced-token detection that needs no model."""

import dataclasses
import functools

import numpy as np

from ag_jax.data import randomness
from ag_jax.data.store import Rows
from ag_jax.data.text.mixture import MixedRows
from ag_jax.data.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Unigram:
    """The unigram distribution q(v) = count(v) / N of the N tokens of some rows, without special tokens.

    counts_V: number of occurrences of each token id, int64.
    """

    counts_V: np.ndarray

    @classmethod
    def of(cls, rows: Rows | MixedRows, tokenizer: Tokenizer) -> "Unigram":
        """Return the unigram distribution of the tokens in `rows`.

        Raises ValueError if the rows have only special tokens.
        """
        counts_V = rows.counts(tokenizer.vocabulary_size).copy()
        counts_V[list(tokenizer.special_ids)] = 0
        if not counts_V.any():
            raise ValueError(
                "the rows hold no token that is not a special one: there is no unigram distribution; give more text"
            )
        return cls(counts_V)

    @functools.cached_property
    def frequencies_V(self) -> np.ndarray:
        """The probability q of each token id, float64, with sum 1."""
        return self.counts_V / self.counts_V.sum()

    @functools.cached_property
    def _cumulative_V(self) -> np.ndarray:
        return np.cumsum(self.counts_V)

    def draw(self, *components) -> np.ndarray:
        """Return token ids drawn at random by their frequency, one for each index of the broadcast `components`.

        components: integers or arrays of integers, which broadcast; a key is a tuple with one integer of each, as in
            `randomness.words`. Equal keys give equal token ids.

        Inverse transform sampling: a token id is that of a uniformly drawn position of the sorted tokens; the
        cumulative counts are exact integers.
        """
        place = (randomness.units(*components) * self._cumulative_V[-1]).astype(np.int64)
        return np.searchsorted(self._cumulative_V, place, side="right")

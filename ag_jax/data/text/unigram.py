"""Words drawn as often as they occur: the generator of replaced-token detection that needs no model."""

import dataclasses
import functools

import numpy as np

from ag_jax.data import randomness
from ag_jax.data.text.store import Rows
from ag_jax.data.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Unigram:
    """q(v) = count(v) / N over the tokens of some rows, special tokens left out.

    counts_V: how often each word occurs, int64.
    """

    counts_V: np.ndarray

    @classmethod
    def of(cls, rows: Rows, tokenizer: Tokenizer) -> "Unigram":
        """The distribution of `rows`. Raises ValueError if they hold nothing but special tokens."""
        counts_V = rows.counts(tokenizer.vocabulary_size).copy()
        counts_V[list(tokenizer.special_ids)] = 0
        if not counts_V.any():
            raise ValueError(
                "the rows hold no token that is not a special one: there is no unigram distribution; give more text"
            )
        return cls(counts_V)

    @functools.cached_property
    def frequencies_V(self) -> np.ndarray:
        """q, float64; sums to 1."""
        return self.counts_V / self.counts_V.sum()

    @functools.cached_property
    def _cumulative_V(self) -> np.ndarray:
        return np.cumsum(self.counts_V)

    def draw(self, *key) -> np.ndarray:
        """A word for each element of the broadcast components of `key`: the inverse of the distribution function.

        The word is the one that stands at a uniformly drawn place of the text, were its words sorted: exact in integers.
        """
        place = (randomness.units(*key) * self._cumulative_V[-1]).astype(np.int64)
        return np.searchsorted(self._cumulative_V, place, side="right")

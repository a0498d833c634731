"""Windows of words as rows of tokens, with the tokens of each word.

A word is encoded as in running text, with a space before it, also the first word of a window.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ag_jax.data.probes.queries import Window
from ag_jax.data.tasks.encoding import pieces_of_words
from ag_jax.data.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class EncodedWindow:
    """A window as a row of tokens: the begin token, those of the words, and the end token.

    ids: the token ids, `(tokens,)`.
    starts: position of the first token of each word, and after the last word that of the end token, `(words + 1,)`.
        So word w has the tokens `starts[w]` to `starts[w + 1]`, at least one.
    """

    ids: np.ndarray
    starts: np.ndarray


@dataclasses.dataclass(frozen=True)
class EncodedWindows:
    """The windows of a probe as rows of tokens.

    windows: one for each window of the probe; None for a window with more tokens than the model has positions.
    unknown: number of words that have no token, such as a control character; the token for unknown words stands for
        them.
    """

    windows: tuple[EncodedWindow | None, ...]
    unknown: int


def encode(windows: Sequence[Window], tokenizer: Tokenizer, longest: int) -> EncodedWindows:
    """Encode windows; those with more than `longest` tokens become None."""
    encoded, unknown = [], 0
    for pieces in _pieces([window.words for window in windows], tokenizer):
        unknown += sum(not word for word in pieces)
        pieces = [word or [tokenizer.specials.unknown] for word in pieces]
        starts = np.cumsum([1, *map(len, pieces)], dtype=np.int32)  # from 1, after the begin token
        ids = [tokenizer.specials.begin, *(id for word in pieces for id in word), tokenizer.specials.end]
        encoded.append(EncodedWindow(np.asarray(ids, np.int32), starts) if len(ids) <= longest else None)
    return EncodedWindows(tuple(encoded), unknown)


def word_lengths(tokenizer: Tokenizer) -> Callable[[Sequence[str]], list[int]]:
    """Return a function from the words of a text to the number of tokens of each word, 0 for words that are dropped."""

    def lengths(words: Sequence[str]) -> list[int]:
        (pieces,) = _pieces([words], tokenizer)
        return [len(word) for word in pieces]

    return lengths


def _pieces(texts: Sequence[Sequence[str]], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """Return the token ids of each word of each text; none for a word whose characters the tokenizer drops."""
    missing = -1  # no token id
    # The empty first word stands for the space before the first word of the text.
    spaced = [("", *words) for words in texts]
    located = tokenizer.locate_batch([" ".join(words) for words in spaced])
    found = []
    for words, (ids, places) in zip(spaced, located, strict=True):
        _, *pieces = pieces_of_words(words, ids, places, missing)
        found.append([[] if word == [missing] else word for word in pieces])
    return found

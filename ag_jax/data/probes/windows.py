"""Cut documents into windows of a limited number of tokens, each of which a model reads at once.

The length of a window is counted in tokens, by a function that returns the number of tokens of each word, so that a
tokenizer is not needed here. Without such a function, every word counts as one token.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Lengths = Callable[[Sequence[str]], Sequence[int]]
SPLIT = "sentences split because they are longer than a window"
NO_TOKENS = "words without tokens"


class Stretch(NamedTuple):
    """A contiguous part of a document: its words `begin` to `end` - 1.

    begin: index of its first word.
    end: index after its last word.
    """

    begin: int
    end: int


def count_tokens(words: Sequence[str], lengths: Lengths | None) -> np.ndarray:
    """Return the number of tokens of each word, `(words,)` integers; 1 for each without `lengths`."""
    return np.ones(len(words), np.int64) if lengths is None else np.asarray(lengths(words), np.int64)


def cut(tokens: np.ndarray, starts: Sequence[int], limit: int) -> tuple[list[Stretch], int]:
    """Return (windows of whole sentences of at most `limit` tokens, number of longer sentences, which are split).

    tokens: number of tokens of each word, `(words,)`.
    starts: index of the first word of each sentence, beginning with 0.
    limit: the most tokens of a window.

    A window has as many sentences as fit. A sentence with more than `limit` tokens is split between words, wherever a
    window is full; its last part is a window of its own. A single word of more than `limit` tokens is a window,
    too; its queries are left out if the model cannot read it.
    """
    # Tokens before each word, as Python integers, which are compared faster one at a time.
    before = np.concatenate([[0], np.cumsum(tokens)]).tolist()
    windows: list[Stretch] = []
    split = 0
    begin = 0  # of the window that is being filled
    for first, end in itertools.pairwise([*starts, len(tokens)]):
        if before[end] - before[begin] > limit and first > begin:
            windows.append(Stretch(begin, first))
            begin = first
        if before[end] - before[begin] > limit:
            split += 1
            for word in range(first, end):
                if before[word + 1] - before[begin] > limit and word > begin:
                    windows.append(Stretch(begin, word))
                    begin = word
            windows.append(Stretch(begin, end))
            begin = end
    if begin < len(tokens):
        windows.append(Stretch(begin, len(tokens)))
    return windows, split


def around(tokens: np.ndarray, needed: Stretch, limit: int) -> Stretch | None:
    """Return a part of a text, of at most `limit` tokens, that contains the words `needed`; None if they do not fit.

    tokens: number of tokens of each word, `(words,)`.
    needed: the words that the part must have. A text that is longer is cut at its end first.
    """
    before = np.concatenate([[0], np.cumsum(tokens)])
    if before[needed.end] - before[needed.begin] > limit:
        return None
    begin = int(np.searchsorted(before[: needed.begin + 1], before[needed.end] - limit))
    end = int(np.searchsorted(before, before[begin] + limit, side="right")) - 1
    return Stretch(begin, end)

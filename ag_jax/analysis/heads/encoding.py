"""Tokenisation of windows (texts as words) into rows of token ids, with the positions of each word's tokens.

A word is encoded as in running text, with a space before it, also the first word of a window; other words have none if
the window says so (`Window.spaces`).
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ag_jax.data.probes.queries import Window
from ag_jax.data.tasks.encoding import text_of_words, words_of_tokens
from ag_jax.data.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class EncodedWindow:
    """A window (text that a model reads at once) as token ids, with begin and end token, and each word's position.

    ids: the token ids, `(tokens,)`.
    starts: position of the first token of each word, and after the last word that of the end token, `(words + 1,)`.
        So word w has the tokens `starts[w]` to `starts[w + 1]`, at least one.
    """

    ids: np.ndarray
    starts: np.ndarray


@dataclasses.dataclass(frozen=True)
class EncodedWindows:
    """The tokenised windows of a probe, and the number of words without a token.

    windows: one for each window of the probe; None for a window with more tokens than the model has positions.
    unknown: number of words that have no token, such as a control character; the token for unknown words stands for
        them.
    """

    windows: tuple[EncodedWindow | None, ...]
    unknown: int


def encode(windows: Sequence[Window], tokenizer: Tokenizer, longest: int) -> EncodedWindows:
    """Tokenise windows, the texts that a model reads at once; one with more than `longest` tokens becomes None."""
    specials = tokenizer.specials
    encoded, unknown = [], 0
    for ids, counts in _located(windows, tokenizer):
        missing = np.flatnonzero(counts == 0)
        if missing.size:
            ids = np.insert(ids, (np.cumsum(counts) - counts)[missing], specials.unknown)
            counts = np.maximum(counts, 1)
            unknown += missing.size
        starts = np.cumsum([1, *counts], dtype=np.int32)  # from 1, after the begin token
        ids = np.concatenate([[specials.begin], ids, [specials.end]]).astype(np.int32)
        encoded.append(EncodedWindow(ids, starts) if len(ids) <= longest else None)
    return EncodedWindows(tuple(encoded), unknown)


def word_lengths(tokenizer: Tokenizer) -> Callable[[Sequence[str]], list[int]]:
    """Return a function from the words of a text to the number of tokens of each word, 0 for words that are dropped."""

    def lengths(words: Sequence[str]) -> list[int]:
        ((_, counts),) = _located([Window("", tuple(words))], tokenizer)
        return counts.tolist()

    return lengths


def _located(windows: Sequence[Window], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (token ids, number of tokens of each word) for each window.

    A word whose characters the tokenizer drops has 0 tokens.
    """
    # The empty first word stands for the space before the first word of the text. Its own tokens, if it has any, are
    # left out.
    texts = [(("", *of.words), None if of.spaces is None else (True, *of.spaces)) for of in windows]
    located = tokenizer.locate_batch([text_of_words(words, spaces) for words, spaces in texts])
    for (words, spaces), (ids, places) in zip(texts, located, strict=True):
        word_T = np.asarray(words_of_tokens(words, places, spaces), np.int64)
        order = np.argsort(word_T, kind="stable")
        first, *counts = np.bincount(word_T, minlength=len(words))
        yield np.asarray(ids, np.int64)[order][first:], np.asarray(counts, np.int64)

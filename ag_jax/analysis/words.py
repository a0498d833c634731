"""Words of a text, the tokens of each, and attention between words instead of tokens.

A word is a run of characters without white space, and punctuation marks around it are words of their own: "roads." is
two words, "don't" and "1,000" are one each. In scripts without spaces between words (Chinese, Japanese, Thai, Lao,
Khmer, Burmese), each token is a word.
"""

import re
from collections.abc import Sequence

import numpy as np

from ag_jax.data.sentencepiece_models import SPACE
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.data.words import kind

Words = tuple[tuple[str, int, int], ...]  # (word, its first token, the token after its last)
CONTINUES = "·"  # before a piece that continues a word, as dictionaries divide words

_WORD = re.compile("w+(?:iw+)*|[uip]")  # in the kinds of characters


def words_of(text: str, places: Sequence[tuple[int, int]]) -> Words:
    """Return the words of a text that have tokens, in order.

    A token that reaches over several words makes them one, and tokens of white space alone belong to none.

    places: the (start, end) characters of each token (`Tokenizer.locate_batch`).
    """
    spans = [match.span() for match in _WORD.finditer("".join(map(kind, text)))]
    words: list[tuple[int, int, int, int]] = []  # first and last span, first token and the one after the last
    at = 0
    for token, (begin, end) in enumerate(places):
        while at + 1 < len(spans) and spans[at][1] <= begin:
            at += 1
        last = at
        while last + 1 < len(spans) and spans[last + 1][0] < end:
            last += 1
        # A token may hold only the space beside a word, or a space before or behind a part of it.
        if not spans or end <= spans[at][0] or begin >= spans[last][1]:
            continue
        if words and words[-1][1] >= at:
            first, _, start, _ = words.pop()
            words.append((first, last, start, token + 1))
        else:
            words.append((at, last, token, token + 1))
    return tuple((text[spans[first][0] : spans[last][1]], start, stop) for first, last, start, stop in words)


def tokenized(tokenizer: Tokenizer, text: str, ids: Sequence[int], offset: int) -> Words:
    """Return the words of a text whose first tokens are `ids`; `offset` tokens are before them, such as <s>.

    Of a text that was cut, the last word is the part of it that has tokens. A word with a token that stands for what
    the vocabulary lacks, such as [UNK], is named by its tokens, because the model reads no more of it.
    """
    [(found, places)] = tokenizer.locate_batch([text])
    if list(found[: len(ids)]) != list(ids):  # such as those of a model of its own for the target of a translation
        pieces = tokenizer.tokens(ids)
        text, places, end = "".join(pieces).replace(SPACE, " "), [], 0
        for piece in pieces:
            places.append((end, end + len(piece)))
            end += len(piece)
    places = places[: len(ids)]
    words = words_of(text[: places[-1][1] if places else 0], places)
    words = renamed(words, tokenizer.tokens(ids), np.asarray(ids) == tokenizer.specials.unknown)
    return tuple((word, first + offset, end + offset) for word, first, end in words)


def renamed(words: Words, tokens: Sequence[str], changed_L: np.ndarray) -> Words:
    """Return words with other names for those of which tokens changed, put together from their new tokens.

    changed_L: which tokens changed.
    """
    return tuple(
        (_spaced("".join(tokens[first:end])) if changed_L[first:end].any() else word, first, end)
        for word, first, end in words
    )


def _spaced(token: str) -> str:
    """Return a token without the spaces around it, and with spaces between words that it reaches over."""
    return token.strip(SPACE).replace(SPACE, " ")


def labels(tokens: Sequence[str], words: Words) -> list[str]:
    """Return tokens as people read them: `CONTINUES` is before those that continue a word, no sign before others.

    tokens: pieces with the signs of their tokenizers: `SPACE` before a word, or ## before a piece that continues one.
    words: without any, the tokens are returned as they are.
    """
    if not words:
        return list(tokens)
    continuing = {token for _, first, end in words for token in range(first + 1, end)}
    inside = {token for _, first, end in words for token in range(first, end)}
    found = []
    for at, token in enumerate(tokens):
        bare = _spaced(token) if at in inside else token.replace(SPACE, "␣")
        found.append(CONTINUES + bare.removeprefix("##") if at in continuing else bare)
    return found


def groups(tokens: Sequence[str], words: Words) -> tuple[tuple[str, int], ...]:
    """Return (word, its first token) of all words, where a token without a word is one of its own, with its label.

    A token of white space alone belongs to the word that follows.
    """
    starts, continuing = {}, set()
    for word, first, end in words:
        while first and tokens[first - 1] == SPACE:
            first -= 1
        starts[first] = word
        continuing |= {*range(first + 1, end)}
    names = labels(tokens, words)
    return tuple((starts.get(at, names[at]), at) for at in range(len(tokens)) if at not in continuing)

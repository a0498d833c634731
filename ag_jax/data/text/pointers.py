"""From the words of annotated texts to tokens: the offset from each token to the one that it points to.

A word begins in the token that holds its first character. Of several words that begin in one token, such as do|n't, the
token has the pointer of the first; any of them may be pointed to. A word that points to the token in which it begins
has no pointer.

Shape letters: S sentences, T tokens, V vocabulary, W words.
"""

import itertools
import pathlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ag_jax.data import randomness, store, words
from ag_jax.data.records.annotated import NONE, Annotated
from ag_jax.data.store import ABSENT, TextStore

OFFSET_BY_WORD = "offset_by_word"
FARTHEST = 2**15 - 1  # tokens, the most that an offset of 16 bits holds
_OFFSET_STREAM = 7  # part of the key of the random numbers of `OFFSET_BY_WORD`, beside those of masking


def of_words(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are read from annotated texts: `offset_by_word` is not, but needs `head`."""
    kept = tuple(name for name in names if name != OFFSET_BY_WORD)
    return kept if len(kept) == len(names) or "head" in kept else (*kept, "head")


def offsets(
    texts: Sequence[str],
    sentences: Sequence[Sequence[str]],
    spans: Sequence[Sequence[tuple[int, int]]],
    all_tokens: bool,
) -> tuple[dict[str, np.ndarray], Counter[str]]:
    """Return the offsets of the tokens of some texts, int16 `T`, by name, and the number of those that are too far.

    texts: texts, annotated or not.
    sentences: the sentences of each text.
    spans: for each sentence of all texts, first character and character after the last of each of its tokens.
    all_tokens: whether also the other tokens of a word have its pointer, not only the first.
    """
    # Characters are counted through all sentences, which together are the annotated texts.
    sizes_S = np.array([len(sentence) for of_text in sentences for sentence in of_text], np.int64)
    begins_S = np.cumsum(sizes_S) - sizes_S
    counts_S = np.array([len(of_sentence) for of_sentence in spans], np.int64)
    flat = itertools.chain.from_iterable(itertools.chain.from_iterable(spans))
    spans_T2 = np.fromiter(flat, np.int64, 2 * counts_S.sum()).reshape(-1, 2)
    spans_T2 += np.repeat(begins_S, counts_S)[:, None]
    starts_T = spans_T2[:, 0]
    first_S = np.cumsum([0, *map(len, sentences)])  # of each text
    begins = np.append(begins_S, sizes_S.sum())[first_S]
    annotated = [(text, begin) for text, begin in zip(texts, begins, strict=False) if isinstance(text, Annotated)]
    if not annotated:
        return {}, Counter()
    starts_W = np.concatenate([text.starts_W + begin for text, begin in annotated])
    stops_W = np.concatenate([text.stops_W + begin for text, begin in annotated])
    token_W, has_token_W = words.first_tokens(starts_W, stops_W, spans_T2)
    token_W[~has_token_W] = NONE
    # The word whose pointer each token has.
    owner_T = np.full(len(starts_T), NONE)
    if all_tokens:
        word_T = np.searchsorted(starts_W, starts_T, side="right") - 1
        word_T = np.where(word_T >= 0, np.searchsorted(starts_W, starts_W[word_T]), NONE)
        owner_T = np.where((word_T >= 0) & (starts_T < stops_W[word_T]), word_T, NONE)
    has_token_N = np.flatnonzero(token_W != NONE)[::-1]
    owner_T[token_W[has_token_N]] = has_token_N  # the first word of a token is written last
    found, too_far = {}, Counter[str]()
    firsts = np.cumsum([0, *(len(text.starts_W) for text, _ in annotated)])
    for name in dict.fromkeys(name for text, _ in annotated for name in text.pointers):
        targets = [text.pointers.get(name, np.full(len(text.starts_W), NONE)) for text, _ in annotated]
        targets_W = np.concatenate([of + first * (of != NONE) for of, first in zip(targets, firsts, strict=False)])
        target_token_W = np.where(targets_W == NONE, NONE, token_W[targets_W])
        target_token_W[target_token_W == token_W] = NONE
        target_T = np.where(owner_T == NONE, NONE, target_token_W[owner_T])
        offsets_T = target_T - np.arange(len(target_T))
        is_far_T = (target_T != NONE) & (abs(offsets_T) > FARTHEST)
        found[name] = np.where((target_T == NONE) | is_far_T, ABSENT, offsets_T).astype(np.int16)
        too_far[name] = int(is_far_T.sum())
    return found, too_far


def add_offsets_by_word(train: pathlib.Path, validation: pathlib.Path, vocabulary_size: int) -> None:
    """Add the pointers `offset_by_word` to both splits of a stored text that has `head`.

    A token that has a head has this pointer instead: to the token whose offset is that of its token id, which is drawn
    for each id from the offsets of the heads of the training text. Where that is in another document, it has none. Of a
    mixture with weights, each source is a text, whose ids have other offsets if its heads are spread otherwise.

    train, validation: directories of the splits.
    """
    heads, counts = TextStore(train).pointers["head"], np.zeros(2**16, np.int64)
    for first, last in store.ranges(0, len(heads)):
        counts += np.bincount(heads.read(first, last).astype(np.int64) - ABSENT, minlength=len(counts))
    counts[0] = 0  # tokens without a head
    ends = np.cumsum(counts)
    places_V = (randomness.units(_OFFSET_STREAM, np.arange(vocabulary_size)) * ends[-1]).astype(np.int64)
    offsets_V = np.searchsorted(ends, places_V, side="right") + ABSENT
    for directory in (train, validation):
        store.add_pointers(directory, OFFSET_BY_WORD, _offsets_by_word(TextStore(directory), offsets_V))


def _offsets_by_word(text: TextStore, offsets_V: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the offsets of the tokens of a text, in pieces; `offsets_V` has that of each token id."""
    ends = np.array([text.token_index(sentence) for sentence in text.document_ends(0, len(text)).tolist()], np.int64)
    for first, last in store.ranges(0, len(text.tokens)):
        document_T = np.searchsorted(ends, np.arange(first, last), side="right")
        offsets_T = offsets_V[text.tokens.read(first, last)]
        target_T = np.arange(first, last) + offsets_T
        is_inside_T = (target_T >= np.append(0, ends)[document_T]) & (target_T < ends[document_T])
        has_head_T = text.pointers["head"].read(first, last) != ABSENT
        yield np.where(has_head_T & is_inside_T, offsets_T, ABSENT).astype(np.int16)

"""Probes of pointers: whether an attention head looks at the word that an annotated text names, such as a head.

The text is as its file writes it, so that a model reads what it was trained on, and words become tokens as they do in
training (`ag_jax.data.text.pointers`): words that begin in one token, such as do|n't, are one word here, which has the
pointer of the first of them, and a word that points to itself has none.

Shape letters: S sentences, T tokens, U words of a probe, W words of the file.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from ag_jax.data.probes import windows
from ag_jax.data.probes.queries import Probe, Query, Window, fixed_offsets
from ag_jax.data.records.annotated import NONE, PUNCTUATION, Annotated
from ag_jax.data.tokenizers import Tokenizer
from ag_jax.data.words import first_tokens

OFFSETS = range(-10, 11)  # of the baselines, in words
OUTSIDE = "pointers out of the text that is read at once"
TREE = "head"  # the column whose pointers are a tree
UNDIRECTED = "head, in either direction"  # kind of the queries whose answers are the head of a word and its children


class PointerProbe(NamedTuple):
    """A probe of some columns of pointers in the same windows.

    probe: its queries; their kind is the name of the column, and `UNDIRECTED`.
    punctuation_Q: whether the word of each query is a punctuation mark.
    sentences: number of sentences.
    is_alone: whether each sentence is a window of its own, because no pointer of these columns leaves its sentence.
    """

    probe: Probe
    punctuation_Q: np.ndarray
    sentences: int
    is_alone: bool


def pointers(
    texts: Iterable[str], columns: Sequence[str], tokenizer: Tokenizer, longest: int, most: int
) -> list[PointerProbe]:
    """Return the probes of columns of pointers on the first sentences of some texts.

    Columns whose pointers never leave their sentence are asked in sentences alone; others in windows of as many
    sentences of a text as the model reads at once. Every second window is for development. There is a query for each
    word with a pointer. The baselines are those of fixed distance, up to ten words.

    texts: texts; those without annotations are left out.
    columns: names of the columns; those without a pointer in any text are left out.
    longest: number of tokens, with the begin and end tokens, that the model reads at once.
    most: number of sentences.
    """
    documents = list(_first_sentences(texts, most))
    names = [name for name in columns if any(name in text.pointers for text in documents)]
    alone = [name for name in names if not any(_leaves_sentence(text, name) for text in documents)]
    groups = ((alone, True), ([name for name in names if name not in alone], False))
    probes = (_probe(documents, of_group, is_alone, tokenizer, longest) for of_group, is_alone in groups if of_group)
    return [of_group for of_group in probes if of_group.probe.queries]


def _first_sentences(texts: Iterable[str], most: int) -> Iterator[Annotated]:
    """Yield the annotated ones among some texts, the last one cut off, until they have `most` sentences."""
    left = most
    for text in texts:
        if isinstance(text, Annotated) and len(text.starts_W):
            end = int(text.ends_S[:left][-1])
            left -= min(left, len(text.ends_S))
            yield cast(Annotated, text[:end])
        if not left:
            return


def _sentence_of_words(text: Annotated) -> np.ndarray:
    """Return the number of the sentence of each word, `W`."""
    return np.searchsorted(text.ends_S, text.starts_W, side="right")


def _leaves_sentence(text: Annotated, name: str) -> bool:
    """Return whether any pointer of a column leads to another sentence."""
    targets_W = text.pointers.get(name, np.full(len(text.starts_W), NONE))
    sentence_W = _sentence_of_words(text)
    return bool((sentence_W[targets_W] != sentence_W)[targets_W != NONE].any())


class _Words(NamedTuple):
    """The words of a text, of which each has tokens of its own.

    texts: the words.
    spaces: whether a space follows each.
    first_U: index in the file's words of the first one that each has.
    unit_W: index of the word that has each word of the file.
    counts_U: number of tokens of each.
    starts: index of the first word of each sentence.
    """

    texts: list[str]
    spaces: list[bool]
    first_U: np.ndarray
    unit_W: np.ndarray
    counts_U: np.ndarray
    starts: list[int]


def _words(text: Annotated, tokenizer: Tokenizer) -> _Words:
    """Return the words of a text, with those that begin in the same token as one."""
    located = tokenizer.locate_batch(text.sentences())
    begins = [0, *text.ends_S.tolist()]
    spans = [(low + begin, high + begin) for begin, (_, of) in zip(begins, located, strict=False) for low, high in of]
    token_W, has_token_W = first_tokens(text.starts_W, text.stops_W, np.array(spans, np.int64).reshape(-1, 2))
    is_first_W = np.append(True, (np.diff(token_W) > 0) | ~has_token_W[1:] | ~has_token_W[:-1])
    first_U = np.flatnonzero(is_first_W)
    begin_U, end_U = text.starts_W[first_U], np.maximum.reduceat(text.stops_W, first_U)
    places = zip(begin_U.tolist(), end_U.tolist(), strict=True)
    plain = str(text)
    return _Words(
        [plain[begin:end] for begin, end in places],
        [*(begin_U[1:] > end_U[:-1]).tolist(), False],
        first_U,
        np.cumsum(is_first_W) - 1,
        np.maximum(np.diff(np.append(token_W[first_U], len(spans))), 1),
        np.unique(_sentence_of_words(text)[first_U], return_index=True)[1].tolist(),
    )


def _probe(
    documents: Sequence[Annotated], names: Sequence[str], is_alone: bool, tokenizer: Tokenizer, longest: int
) -> PointerProbe:
    """Return the probe of some columns, with a window for each sentence (`is_alone`) or for several."""
    dropped: collections.Counter[str] = collections.Counter()
    texts: list[Window] = []
    queries: list[Query] = []
    punctuation: list[bool] = []
    for number, document in enumerate(documents, 1):
        words = _words(document, tokenizer)
        is_mark_U = _is_punctuation(document)[words.first_U]
        answers = {name: _answers(document, name, words) for name in names if name in document.pointers}
        if TREE in answers:
            answers[UNDIRECTED] = _either_direction(answers[TREE])
        for stretch in _stretches(words, is_alone, longest - 2):
            here = range(stretch.begin, stretch.end)
            for kind, of_kind in answers.items():
                for at in filter(of_kind.__contains__, here):
                    inside = tuple(answer - stretch.begin for answer in of_kind[at] if answer in here)
                    if of_kind[at][0] not in here:  # the word to which this one points
                        dropped[f"{kind}: {OUTSIDE}"] += 1
                        continue
                    place = at - stretch.begin
                    queries.append(Query(len(texts), place, place, (), (), inside, kind))
                    punctuation.append(bool(is_mark_U[at]))
            of_window = slice(stretch.begin, stretch.end)
            texts.append(Window(f"text {number}", tuple(words.texts[of_window]), tuple(words.spaces[of_window])))
    development = np.array([query.window % 2 == 0 for query in queries], bool)
    baselines = fixed_offsets(queries, filter(None, OFFSETS))
    probe = Probe("pointers", tuple(texts), tuple(queries), development, baselines, dict(dropped))
    sentences = sum(len(document.ends_S) for document in documents)
    return PointerProbe(probe, np.array(punctuation, bool), sentences, is_alone)


def _stretches(words: _Words, is_alone: bool, limit: int) -> Iterator[windows.Stretch]:
    """Yield the windows of a text: its sentences, or as many together as have at most `limit` tokens."""
    bounds = [*words.starts, len(words.texts)] if is_alone else [0, len(words.texts)]
    for begin, end in itertools.pairwise(bounds):
        starts = [start - begin for start in words.starts if begin <= start < end]
        for stretch in windows.cut(words.counts_U[begin:end], starts, limit)[0]:
            yield windows.Stretch(stretch.begin + begin, stretch.end + begin)


def _answers(text: Annotated, name: str, words: _Words) -> dict[int, tuple[int, ...]]:
    """Return {word: (the word to which it points,)} of a column."""
    targets_U = text.pointers[name][words.first_U]
    found_U = np.where(targets_U == NONE, NONE, words.unit_W[targets_U])
    return {at: (target,) for at, target in enumerate(found_U.tolist()) if target not in (NONE, at)}


def _either_direction(heads: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Return {word: (its head, its children)} of a tree, for words that have a head."""
    children: dict[int, list[int]] = {}
    for at, (head,) in heads.items():
        children.setdefault(head, []).append(at)
    return {at: (head, *children.get(at, ())) for at, (head,) in heads.items()}


def _is_punctuation(text: Annotated) -> np.ndarray:
    """Return whether each word is a punctuation mark: by its part of speech, or else without letter and digit, `W`."""
    if PUNCTUATION in text.pointers:
        return text.pointers[PUNCTUATION] != NONE
    plain, places = str(text), zip(text.starts_W.tolist(), text.stops_W.tolist(), strict=True)
    return np.array([not any(map(str.isalnum, plain[begin:end])) for begin, end in places], bool)

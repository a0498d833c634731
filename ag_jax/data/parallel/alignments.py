"""Read the word alignments of pairs of texts, and find the tokens that they align.

A file has a line for each pair, in the order of the pairs, with the alignment in the Pharaoh format, as eflomal and
fast_align write it: `0-0 1-2` says that source word 0 goes with target word 0, and source word 1 with target word 2.
Words are what white space separates (`str.split`), numbered from 0. Lines may be blank, and files compressed.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ag_jax.data import words
from ag_jax.data.records import files, formats
from ag_jax.data.records.units import Unit
from ag_jax.data.store import ABSENT

UNALIGNED = -1  # in place of the source word of a target word, or of the token in which a word begins

_WORD = re.compile(r"\S+")
_LINK = re.compile("([0-9]{1,9})-([0-9]{1,9})")


class AlignedPair(NamedTuple):
    """A text and its translation, with their word alignment.

    source: the text.
    target: the translation.
    alignment: the alignment, as in a line of the file.
    """

    source: str
    target: str
    alignment: str


def aligned(unit: Unit, file: pathlib.Path) -> Unit:
    """Return files of pairs, with the word alignments of a further file: `AlignedPair` in place of each pair.

    In place of a pair of which a side is null still stands its error. Reading raises ValueError, with the file and the
    line, for an alignment that is malformed or names a word that the pair lacks, and for a file that has not as many
    lines as there are pairs.
    """

    def read(field: str) -> Iterator[Any]:
        with files.decompressed(file) as stream:
            pairs, lines = unit.read(field), (line for _, line in formats.lines(stream, str(file)))
            for number, (pair, line) in enumerate(itertools.zip_longest(pairs, lines, fillvalue=None), 1):
                if pair is None or line is None:
                    rest = sum(1 for _ in itertools.chain(pairs, lines))
                    counts = (number - 1, number + rest)
                    of_file, of_pairs = counts if line is None else counts[::-1]
                    raise ValueError(
                        f"{file} has {of_file:,} lines and {unit.path} has {of_pairs:,} pairs: expected a line with "
                        "the alignment of each pair, in the order of the pairs; align the texts anew"
                    )
                if isinstance(pair, formats.NullText):
                    yield pair
                    continue
                found = AlignedPair(pair.source, pair.target, line)
                _check(found, f"{file}, line {number}")
                yield found

    has_changed = files.watched(file)
    return dataclasses.replace(
        unit, size=unit.size + file.stat().st_size, read=read, has_changed=lambda: unit.has_changed() or has_changed()
    )


def _check(pair: AlignedPair, place: str) -> None:
    """Raise ValueError if the alignment of a pair is malformed, or names a word that the pair lacks."""
    counts = len(pair.source.split()), len(pair.target.split())
    for item in pair.alignment.split():
        link = _LINK.fullmatch(item)
        if link is None:
            raise ValueError(
                f"{place}: expected the numbers of a source and a target word, such as 0-0 1-2, got {item!r}; write "
                "the alignments in the Pharaoh format"
            )
        for side, text, count in zip(("source", "target"), link.groups(), counts, strict=True):
            if int(text) >= count:
                raise ValueError(
                    f"{place}: {item} names {side} word {text}, but the {side} text has {count} words, numbered from "
                    "0; align the texts as they are, with the source first"
                )


def source_words(pair: AlignedPair) -> np.ndarray:
    """Return the source word with which each target word goes, the first of several; `UNALIGNED` for none."""
    words_of_target = np.full(len(pair.target.split()), UNALIGNED)
    links = (item.split("-") for item in pair.alignment.split())
    for source, target in sorted(((int(source), int(target)) for source, target in links), reverse=True):
        words_of_target[target] = source
    return words_of_target


def first_tokens(text: str, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the token that holds the first character of each word of a text; `UNALIGNED` for words without a token.

    ranges: (start, end) characters of each token, as in `Tokenizer.locate_batch`.
    """
    spans_W2, spans_T2 = (
        np.array(spans, np.int64).reshape(-1, 2) for spans in ([word.span() for word in _WORD.finditer(text)], ranges)
    )
    tokens, has_token = words.first_tokens(spans_W2[:, 0], spans_W2[:, 1], spans_T2)
    return np.where(has_token, tokens, UNALIGNED)


def source_tokens(
    pair: AlignedPair, sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Return the source token to which each token of a pair points, int16, first of the source, then of the target.

    The first token of a target word points to the first token of its source word, counted from 0. Of target words that
    begin in the same token, the first counts. All other tokens have `store.ABSENT`.

    sources, targets: (start, end) characters of each token of both sides.
    """
    pointers = np.full(len(sources) + len(targets), ABSENT)
    to, aligned_words = first_tokens(pair.source, sources), source_words(pair)
    # From the last word to the first, which overwrites the others in its token.
    for token, word in zip(first_tokens(pair.target, targets)[::-1], aligned_words[::-1], strict=True):
        if token != UNALIGNED:
            pointer = UNALIGNED if word == UNALIGNED else to[word]
            pointers[len(sources) + token] = ABSENT if pointer == UNALIGNED else pointer
    # A number that int16 does not hold is that of a text which is too long for any row (`DataConfig`).
    return pointers.astype(np.int16)

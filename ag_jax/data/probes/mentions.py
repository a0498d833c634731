"""Documents with coreference annotation: words, sentences, and the mentions of entities."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, order=True)
class Mention:
    """A span of words that refers to an entity.

    begin: index of the first word in the document.
    end: index after the last word.
    entity: name of the entity; mentions of one document with equal names refer to the same.
    """

    begin: int
    end: int
    entity: str


@dataclasses.dataclass(frozen=True)
class Document:
    """A document with coreference annotation: its words, sentences and mentions.

    name: name of the document; the parts of one document have the same name.
    part: number of the part, 0 if there is only one. Entities are those of a part.
    place: the file, for error messages and for official splits.
    words: all words.
    starts: index of the first word of each sentence.
    mentions: in reading order, a longer one before a shorter one with the same first word.
    tags: part of speech of each word, of the Penn Treebank; None if unknown.
    parses: piece of the bracketed parse at each word, with * for the word, such as `(NP*)`; None if unknown.
    """

    name: str
    words: tuple[str, ...]
    starts: tuple[int, ...]
    mentions: tuple[Mention, ...]
    part: int = 0
    place: str = ""
    tags: tuple[str, ...] | None = None
    parses: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Reading:
    """The documents read from files with coreference annotation, and counts, by reason, of what was left out.

    documents: in reading order.
    dropped: reason to number.
    """

    documents: tuple[Document, ...]
    dropped: Mapping[str, int]


def in_reading_order(mentions: Sequence[Mention]) -> tuple[Mention, ...]:
    """Return mentions sorted by their first words; of those with the same first word, the longest comes first.

    Outer mentions come before the ones inside, so that the first mention of an entity is the one that begins first.
    """
    return tuple(sorted(mentions, key=lambda mention: (mention.begin, -mention.end, mention.entity)))

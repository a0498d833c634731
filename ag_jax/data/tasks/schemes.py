"""Schemes of tags: how the tags of words say where an entity begins and ends, and plain tags.

    bio     B- first word, I- every other word (also called IOB2)
    iob1    I- every word, B- only the first word behind another entity of the same type
    ioe1    I- every word, E- only the last word before another entity of the same type
    ioe2    I- every word but the last, E- last word
    bioes   B- first word, I- inside, E- last word, S- an entity of one word (also called IOBES)
    bilou   as bioes, with L- and U- for E- and S-
    plain   no entities: a tag for each word, such as its part of speech

Words outside of entities have the tag O in all schemes but plain. An entity has a type, as in B-PER.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from ag_jax.data.tasks import lookalikes

Scheme = Literal["bio", "iob1", "ioe1", "ioe2", "bioes", "bilou", "plain"]
Entity = tuple[str, int, int]  # type, index of the first word, index of the last word
OUTSIDE = "O"
# Of each scheme the marks of an entity's first, inner and last word, and of its only word. The schemes are in the order
# in which they are tried, so that tags of I- and O alone are iob1.
_MARKS: dict[Scheme, tuple[str, str, str, str]] = {
    "bio": ("B", "I", "I", "B"),
    "iob1": ("I", "I", "I", "I"),
    "ioe2": ("I", "I", "E", "E"),
    "ioe1": ("I", "I", "I", "I"),
    "bioes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
}
_BETWEEN: dict[Scheme, str] = {"iob1": "B", "ioe1": "E"}  # further marks, between adjacent entities of one type
_TAG = re.compile(r"[BIELSU]-.+")


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """Yield (type, index of the first word, index of the last word) for each entity in the tags of a sentence.

    One rule reads all schemes but plain: adjacent words with tags of one type are an entity, which ends before B-, S-
    and U- and behind E-, L-, S- and U-. So tags that are not well-formed, as models predict them, have entities, too:
    those that the script conlleval and seqeval's default mode find if L and U are written as E and S. Other tags than
    these, such as [SEP], are read as O. Indices count from 0.
    """
    kind, first, last = "", 0, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        tag = tag if _TAG.fullmatch(tag) else OUTSIDE
        mark = tag[:1]
        continues = tag != OUTSIDE and tag[2:] == kind and mark in "IEL" and last in "BI"
        if kind and not continues:
            yield kind, first, place - 1
            kind = ""
        if tag != OUTSIDE and not continues:
            kind, first = tag[2:], place
        last = mark


def tags(of: Sequence[Entity], words: int, scheme: Scheme) -> list[str]:
    """Return the tags of a sentence of so many words in a scheme with entities: the inverse of `entities`.

    of: the entities, in the order of the words.
    """
    found, (begin, inner, end, only) = [OUTSIDE] * words, _MARKS[scheme]
    for number, (kind, first, last) in enumerate(of):
        found[first : last + 1] = [f"{inner}-{kind}"] * (last + 1 - first)
        found[last], found[first] = f"{end}-{kind}", f"{begin if last > first else only}-{kind}"
        if scheme == "iob1" and number and of[number - 1][::2] == (kind, first - 1):
            found[first] = f"B-{kind}"
        if scheme == "ioe1" and of[number + 1 : number + 2] and of[number + 1][:2] == (kind, last + 1):
            found[last] = f"E-{kind}"
    return found


def strict_entities(tags_of_words: Sequence[str], scheme: Scheme) -> list[Entity]:
    """Return the entities in the tags of a sentence each of whose tags is what the scheme writes for them.

    seqeval's strict mode finds the same, except (in version 1.2.2) in the scheme ioe1, where it misses the entity
    behind one that ends with E-, and in tags of the scheme iob1 that are not well-formed.
    """
    found = [*entities(tags_of_words)]
    expected = tags(found, len(tags_of_words), scheme)
    return [one for one in found if [*tags_of_words[one[1] : one[2] + 1]] == expected[one[1] : one[2] + 1]]


def all_tags(types: Sequence[str], scheme: Scheme = "bio") -> tuple[str, ...]:
    """Return all tags of a scheme: O, then those of each type of entity; of the scheme plain the types themselves."""
    if scheme == "plain":
        return tuple(types)
    return (OUTSIDE, *(f"{mark}-{type}" for type in types for mark in _marks(scheme)))


def _marks(scheme: Scheme) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_MARKS[scheme], *_BETWEEN.get(scheme, ()))))


def check(tags_of_words: Sequence[str], labels: Sequence[str], scheme: Scheme) -> None:
    """Raise ValueError for a tag that is not among `labels`, and for one that is misplaced in its scheme."""
    for number, tag in enumerate(tags_of_words, 1):
        if tag not in labels:
            if difference := lookalikes.find(tag, labels):
                raise ValueError(
                    f"unknown tag {tag!r} at word {number}: {difference} look alike; write both in one way"
                )
            raise ValueError(f"unknown tag {tag!r} at word {number}: expected one of {', '.join(labels)}")
    if scheme == "plain":
        return
    expected = tags([*entities(tags_of_words)], len(tags_of_words), scheme)
    for place, (tag, right) in enumerate(zip(tags_of_words, expected, strict=True)):
        if tag != right:
            before = tags_of_words[place - 1] if place else OUTSIDE
            raise ValueError(
                f"the tags are not {scheme.upper()}: {tag} at word {place + 1} follows {before}, expected {right}; "
                "mend the tags, or set custom.scheme if the task is a custom one"
            )


def recognised(sentences: Sequence[Sequence[str]]) -> Scheme:
    """Return the scheme of tags: the one in which the fewest sentences are not well-formed.

    Of equal ones it is the first of bio, iob1, ioe2, ioe1, bioes and bilou. Tags of which none begins with a mark, such
    as B-, are plain, unless all are O, which is bio.
    """
    different = {tag for of_words in sentences for tag in of_words} - {OUTSIDE}
    if different and not any(map(_TAG.fullmatch, different)):
        return "plain"
    found: list[tuple[int, Scheme]] = []
    for scheme in _MARKS:
        wrong = sum(list(of_words) != tags([*entities(of_words)], len(of_words), scheme) for of_words in sentences)
        if not wrong:
            return scheme
        found.append((wrong, scheme))
    return min(found, key=lambda pair: pair[0])[1]


def type_of(tag: str, scheme: Scheme) -> str | None:
    """Return the type of entity of a tag, O for O, and a plain tag itself; None if the scheme has no such tag."""
    if scheme == "plain" or tag == OUTSIDE:
        return tag
    mark, hyphen, kind = tag.partition("-")
    return kind if hyphen and kind and mark in _marks(scheme) else None

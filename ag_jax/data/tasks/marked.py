"""Parsers of the records of WiC and WSC, which mark the words in question in their text, as in `* bank *`.

The model reads the marked text as any other. SuperGLUE's own baseline instead classifies from the hidden states of the
words. The marks are those of Raffel et al. 2020 (T5, appendix D), with spaces, so that the words are tokenised as
elsewhere.
"""

import re
from typing import Any, NamedTuple

from ag_jax.data.records.formats import Record
from ag_jax.data.tasks.task import Task, Texts
from ag_jax.data.tasks.texts import label_of, text_of

FIRST, SECOND = "*", "#"  # marks around the first and the second words


class Span(NamedTuple):
    """The characters `begin` to `end` - 1 of a text."""

    begin: int
    end: int


def wic(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Return a list with the one example of a WiC record: whether a word means the same in two sentences."""
    sentences = []
    for number in (1, 2):
        text, places = text_of(record, f"sentence{number}"), (record.get(f"start{number}"), record.get(f"end{number}"))
        begin, end = (_whole(place) for place in places)
        if begin is None or end is None or not 0 <= begin < end <= len(text) or not text[begin:end].strip():
            raise ValueError(
                f"expected start{number} and end{number} to be the first and last + 1 character of the word "
                f"{record.get('word')!r} in {text!r}, got {places[0]!r} and {places[1]!r}"
            )
        sentences.append(marked(text, (Span(begin, end), FIRST)))
    first, second = sentences
    return [Texts(record["id"], first, second, label_of(record, task.label_index, labelled))]


def wsc(record: Record, task: Task, labelled: bool) -> list[Texts]:
    """Return a list with the one example of a WSC record: whether a pronoun refers to a phrase of the same text."""
    text, phrase, pronoun = wsc_spans(record)
    marked_text = marked(text, (phrase, FIRST), (pronoun, SECOND))
    return [Texts(record["id"], marked_text, None, label_of(record, task.label_index, labelled))]


def wsc_spans(record: Record) -> tuple[str, Span, Span]:
    """Return the text of a WSC record, and the spans of the phrase and of the pronoun in it.

    Raises ValueError if one of them is not where the record says, or if they overlap.
    """
    text = text_of(record, "text")
    target = record.get("target", record)  # TFDS has the fields of `target` beside `text`
    phrase, pronoun = (
        _find(text, text_of(target, f"span{number}_text"), target.get(f"span{number}_index")) for number in (1, 2)
    )
    if phrase.begin < pronoun.end and pronoun.begin < phrase.end:
        raise ValueError(f"the phrase and the pronoun overlap: {text[slice(*phrase)]!r}, {text[slice(*pronoun)]!r}")
    return text, phrase, pronoun


def marked(text: str, *spans: tuple[Span, str]) -> str:
    """Return a text in which each span is enclosed by its mark, with spaces between, as in `* bank *`.

    spans: each with its mark; they must not overlap.
    """
    for (begin, end), mark in sorted(spans, reverse=True):
        text = f"{text[:begin]}{mark} {text[begin:end]} {mark}{text[end:]}"
    return text


def _find(text: str, phrase: str, index: Any) -> Span:
    """Return the span in `text` of a phrase that begins in word number `index` or in a word next to it.

    WSC counts words that are separated by white space. Some of its indices are off by one, and some phrases end in a
    full stop or comma that is not theirs; the script for WSC of fairseq allows for both. Word `index` comes first, then
    the word behind it, then the word before it. Parts of words do not count: `he` is not in `the`, but in `he's`.
    """
    place = _whole(index)
    words = [match.start() for match in re.finditer(r"\S+", text)]
    if place is None or not 0 <= place < len(words):
        raise ValueError(f"expected {phrase!r} at one of the words 0 to {len(words) - 1} of the text, got {index!r}")
    words_pattern = r"\s+".join(map(re.escape, phrase.strip().rstrip(".,").split()))
    pattern = re.compile(rf"(?<!\w){words_pattern}(?!\w)", re.IGNORECASE)
    for number in (place, place + 1, place - 1):
        if 0 <= number < len(words) and phrase.strip(" .,"):
            end = words[number + 1] if number + 1 < len(words) else len(text)
            for begin in range(words[number], end):
                if match := pattern.match(text, begin):
                    return Span(*match.span())
    raise ValueError(f"expected {phrase!r} at word {place} of the text, found {text[words[place] :][:40]!r}")


def _whole(value: Any) -> int | None:
    """Return an integer, or a text of digits as an integer; None for anything else.

    The files of some releases of WiC have texts.
    """
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None

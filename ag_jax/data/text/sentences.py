"""Split text into sentences by rules for languages with `. ! ?` and capitals, accurate enough to fill rows."""

import itertools
import re

from ag_jax.data.records.annotated import Annotated

# A full stop after these does not end a sentence; nor does one after a single capital other than I ("J. Smith").
ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev gen col capt lt sgt hon st mt ft jr sr messrs gov sen rep pres cf viz etc al vs e.g i.e a.m "
    "p.m u.s jan feb mar apr jun jul aug sept sep oct nov dec inc co corp ltd".split()
)
# A full stop after these does not end a sentence before a number: "No. 7", but "He said no. We left."
BEFORE_NUMBERS = frozenset("no nos vol vols art sec secs ch p pp fig figs".split())
_BORDER = re.compile(r"""[.!?…]["'”’)\]]*(?=\s+["'“‘(\[]*[^\sa-z])""")
# Lines of a hard-wrapped text: hardly any is longer than the first number, and at least half reach the second.
_WRAPPED_AT_MOST, _FULL_AT_LEAST = 100, 50  # characters


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order; the end of a line ends a sentence.

    A space before a sentence stays its first character, so the sentences of a line, joined, are the line, and a
    byte-level BPE sees the words as in the line. In a text with hard-wrapped lines, such as an e-book, a paragraph up
    to the next blank line counts as one line. An annotated text has the sentences of its file.
    """
    if isinstance(text, Annotated):
        return text.sentences()
    sentences = []
    for line in _unwrapped(text.splitlines()):
        line = line.strip()
        start = 0
        for border in _BORDER.finditer(line):
            if line[border.start()] == "." and _is_abbreviation(line, start, border):
                continue
            sentences.append(line[start : border.end()])
            start = border.end()
        if start < len(line):
            sentences.append(line[start:])
    return sentences


def join_sentences(sentences: list[str]) -> str:
    """Return a text that `split_sentences` would split into the given sentences."""
    return "".join(sentence if sentence[0].isspace() else f"\n{sentence}" for sentence in sentences).lstrip("\n")


def _unwrapped(lines: list[str]) -> list[str]:
    """Return the lines, or the paragraphs between blank lines if the lines are hard-wrapped."""
    lengths = sorted(len(line.strip()) for line in lines if line.strip())
    if not lengths or len(lengths) == len(lines):
        return lines
    if lengths[len(lengths) * 99 // 100] > _WRAPPED_AT_MOST or lengths[len(lengths) // 2] < _FULL_AT_LEAST:
        return lines
    return [" ".join(line.strip() for line in paragraph) for paragraph in _paragraphs(lines)]


def _paragraphs(lines: list[str]) -> list[list[str]]:
    groups = itertools.groupby(lines, key=lambda line: bool(line.strip()))
    return [list(group) for is_text, group in groups if is_text]


def _is_abbreviation(line: str, start: int, border: re.Match) -> bool:
    """Whether the full stop at `border` belongs to the word before it, in the sentence that begins at `start`."""
    words = line[start : border.start()].rsplit(None, 1)
    word = words[-1].lstrip("\"'“‘([") if words else ""
    if word.lower() in BEFORE_NUMBERS:
        return line[border.end() :].lstrip()[:1].isdigit()
    return word.lower() in ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")

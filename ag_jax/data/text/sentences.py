"""Where a sentence ends: rules for languages that write `. ! ?` and capitals, good enough to pack rows with."""

import itertools
import re

# A full stop after these does not end a sentence; nor does one after a single capital but I, as in "J. Smith".
ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev gen col capt lt sgt hon st mt ft jr sr messrs gov sen rep pres cf viz etc al vs e.g i.e a.m "
    "p.m u.s jan feb mar apr jun jul aug sept sep oct nov dec inc co corp ltd".split()
)
# The same, but only before a number: "No. 7", and not "He said no. We left."
BEFORE_NUMBERS = frozenset("no nos vol vols art sec secs ch p pp fig figs".split())
_BORDER = re.compile(r"""[.!?…]["'”’)\]]*(?=\s+["'“‘(\[]*[^\sa-z])""")
# Lines of a text that was wrapped by hand or by a program: none much longer than the others, most of them nearly full.
_WRAPPED_AT_MOST, _FULL_AT_LEAST = 100, 50  # characters


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, in order; every line ends one. A space before a sentence stays its first character.

    So the sentences of a line, joined, are the line, and a byte-level BPE sees the words as they stood in it. In a text
    with hard-wrapped lines, as e-books have, a paragraph up to the next blank line counts as one line.
    """
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
    """A text that `split_sentences` would split into these sentences."""
    return "".join(sentence if sentence[0].isspace() else f"\n{sentence}" for sentence in sentences).lstrip("\n")


def _unwrapped(lines: list[str]) -> list[str]:
    """The lines themselves or, if they are hard-wrapped, the paragraphs between blank lines."""
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
    words = line[start : border.start()].rsplit(None, 1)
    word = words[-1].lstrip("\"'“‘([") if words else ""
    if word.lower() in BEFORE_NUMBERS:
        return line[border.end() :].lstrip()[:1].isdigit()
    return word.lower() in ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I")

"""Where a sentence ends: rules for languages that write `. ! ?` and capitals, good enough to pack rows with."""

import re

# A full stop after these does not end a sentence; nor does one after a single capital, as in "J. Smith".
ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof rev gen col capt lt sgt hon st mt ft jr sr messrs gov sen rep pres no nos vol vols art sec secs "
    "ch pp fig figs cf viz etc al vs e.g i.e a.m p.m u.s jan feb mar apr jun jul aug sept sep oct nov dec inc co corp ltd".split()
)
_BORDER = re.compile(r"""[.!?…]["'”’)\]]*(?=\s+["'“‘(\[]*[^\sa-z])""")
_LAST_WORD = re.compile(r"([\w.]+)\.$")


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, in order; every line ends one. A space before a sentence stays its first character.

    So the sentences of a line, joined, are the line, and a byte-level BPE sees the words as they stood in it.
    """
    sentences = []
    for line in text.splitlines():
        line = line.strip()
        start = 0
        for border in _BORDER.finditer(line):
            if line[border.start()] == "." and _is_abbreviation(line[start : border.start() + 1]):
                continue
            sentences.append(line[start : border.end()])
            start = border.end()
        if start < len(line):
            sentences.append(line[start:])
    return sentences


def join_sentences(sentences: list[str]) -> str:
    """A text that `split_sentences` would split into these sentences."""
    return "".join(sentence if sentence[0].isspace() else f"\n{sentence}" for sentence in sentences).lstrip("\n")


def _is_abbreviation(until_stop: str) -> bool:
    word = _LAST_WORD.search(until_stop)
    return bool(word) and (word[1].lower() in ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper()))

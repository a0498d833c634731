"""Checks of the lines of translations and references before they are scored.

Shape letter: S sentences.
"""

import collections
from collections.abc import Callable, Sequence

import numpy as np

# What marks a line of tokenised text, and how to tell. A full stop after a space is sacreBLEU's own sign.
_MARKS: dict[str, Callable[[str], bool]] = {
    "'@@' at the end of a word (byte-pair encoding)": lambda line: "@@ " in line or line.endswith("@@"),
    "'▁' (sentencepiece)": lambda line: "▁" in line,
    "a space before the final full stop": lambda line: line.endswith(" ."),
}
_MARKED = 0.1  # the share of marked lines from which a text counts as tokenised
# For `_where_they_part`: the share of words in common that counts as a fit, and how many times that of the lines moved
# against each other it must be. Unrelated sentences of a language share a tenth to a fifth of their words.
_FIT, _FIT_RATIO = 0.2, 2.0


def check(who: str, hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise ValueError unless there is one line of text in `hypotheses`, named `who`, for each reference."""
    for name, lines in ((who, hypotheses), ("the references", references)):
        if isinstance(lines, str):
            raise ValueError(f"expected {name} as a list of lines, got one text: {_excerpt(lines)}")
        for number, line in enumerate(lines, 1):
            if not isinstance(line, str):
                raise ValueError(f"expected lines of text, but line {number} of {name} is {line!r}")
            # A line break in a translation moves all later lines of a file, and the scores of its sentences.
            if "\n" in line or "\r" in line:
                raise ValueError(
                    f"expected one line for each sentence, but line {number} of {name} has a line break: "
                    f"{_excerpt(line)}. Replace line breaks by spaces, and strip the ends of lines that were read "
                    "from a file"
                )
    if len(hypotheses) != len(references):
        raise ValueError(
            f"expected one hypothesis for each reference, but {who} have {len(hypotheses):,} lines and the references "
            f"{len(references):,}{_where_they_part(hypotheses, references)}"
        )
    if not len(references):
        raise ValueError("expected at least one sentence to score, got none: the lists of lines are empty")
    if not any(line.strip() for line in references):
        raise ValueError(f"expected references to score against, but all {len(references):,} of them are empty lines")


def _where_they_part(hypotheses: Sequence[str], references: Sequence[str]) -> str:
    """Return where texts of different lengths stop to fit line by line, as the end of a sentence; "" if unknown.

    It is assumed that the additional lines of the longer text are in one place, at line k of the shorter text. For
    every k, the words in common are added up for the lines before k, and for the lines from k on with those of the
    longer text moved by the difference. The best k counts if lines then fit clearly better than with each line moved
    the other way.
    """
    swapped = len(hypotheses) > len(references)
    shorter, longer = (references, hypotheses) if swapped else (hypotheses, references)
    count, extra = len(shorter), len(longer) - len(shorter)
    if not count:
        return ""
    words = [collections.Counter(line.split()) for line in (*shorter, *longer)]
    short, long = words[:count], words[count:]
    level_S = np.array([_overlap(*pair) for pair in zip(short, long, strict=False)])
    moved_S = np.array([_overlap(*pair) for pair in zip(short, long[extra:], strict=True)])
    fits = np.append(0, level_S.cumsum()) + np.append(moved_S[::-1].cumsum()[::-1], 0)
    place = int(fits.argmax())
    best, other = fits[place] / count, (level_S.sum() + moved_S.sum() - fits[place]) / count
    if best < _FIT or best < _FIT_RATIO * other:
        return ""
    of_longer = "hypotheses" if swapped else "references"
    if place == count:
        return f". By their words, the first {count:,} lines fit: the {of_longer} go on after the end of the others"
    return (
        f". By their words, the first {place:,} lines fit: at line {place + 1:,} the {of_longer} have {extra:,} more, "
        f"which begin with {_excerpt(longer[place])}"
    )


def _overlap(words: collections.Counter, others: collections.Counter) -> float:
    """Return the share of words that two lines have in common (Dice's coefficient); 0 for two empty lines."""
    return 2 * (words & others).total() / max(1, words.total() + others.total())


def note_on_marks(hypotheses: Sequence[str], references: Sequence[str]) -> str:
    """Return a sentence that names the marks of tokenised text that many lines have; "" if few lines have any."""
    notes = []
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        for mark, is_marked in _MARKS.items():
            count = sum(map(is_marked, lines))
            if count >= _MARKED * len(lines):
                notes.append(f"{count:,} of {len(lines):,} {name} have {mark}")
    if not notes:
        return ""
    return f"Score of tokenised text, not comparable with scores of plain text: {'; '.join(notes)}."


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")

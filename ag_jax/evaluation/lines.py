"""Checks of the lines of translations and references before they are scored."""

from collections.abc import Callable, Sequence

# What marks a line of tokenised text, and how to tell. A full stop after a space is sacreBLEU's own sign.
_MARKS: dict[str, Callable[[str], bool]] = {
    "'@@' at the end of a word (byte-pair encoding)": lambda line: "@@ " in line or line.endswith("@@"),
    "'▁' (sentencepiece)": lambda line: "▁" in line,
    "a space before the final full stop": lambda line: line.endswith(" ."),
}
_MARKED = 0.1  # the share of marked lines from which a text counts as tokenised


def check(who: str, hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise ValueError unless `hypotheses`, called `who` in messages, has one line of text for each reference."""
    for name, lines in ((who, hypotheses), ("the references", references)):
        if isinstance(lines, str):
            raise ValueError(f"expected {name} as a list of lines, got one text: {_excerpt(lines)}")
        for number, line in enumerate(lines, 1):
            # A line break in a translation moves all later lines of a file, and the scores of its sentences.
            if "\n" in line or "\r" in line:
                raise ValueError(
                    f"expected one line for each sentence, but line {number} of {name} has a line break: "
                    f"{_excerpt(line)}; replace line breaks by spaces, and strip the ends of lines"
                )
    if len(hypotheses) != len(references):
        raise ValueError(
            f"expected one hypothesis for each reference, but {who} have {len(hypotheses):,} lines and the references "
            f"{len(references):,}"
        )
    if not len(references):
        raise ValueError("expected at least one sentence to score, got none: the lists of lines are empty")
    if not any(line.strip() for line in references):
        raise ValueError(f"expected references to score against, but all {len(references):,} of them are empty lines")


def note_on_marks(hypotheses: Sequence[str], references: Sequence[str]) -> str:
    """Return a warning that names marks of tokenised text, such as "@@", on many lines; "" if few lines have any."""
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

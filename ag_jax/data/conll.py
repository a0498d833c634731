"""Leave out the comments of CoNLL files, which have a line for each word and blank lines between sentences."""

import collections
from collections.abc import Iterator, Sequence

_MARKS = ("-DOCSTART-", "#begin document", "#end document")  # lines of files of which no sentence consists


def without_comments(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (number, line) for each line of a CoNLL file that is not a comment; numbers count from 1.

    A comment begins with "# ", stands before the first word of a sentence, and has not the number of columns of the
    file. So "# sent_id = 3" is a comment, and "#<tab>O" is the word "#". The number of columns is that of most lines
    that do not begin with "#", and includes what separates them: spaces in a file with tabs separate nothing.
    """
    words = [line for line in lines if line.strip() and not line.startswith(("#", *_MARKS))]
    of_file = collections.Counter(map(_columns, words)).most_common(1)
    between = True  # two sentences
    for number, line in enumerate(lines, 1):
        if between and line.startswith("# ") and [_columns(line)] != [columns for columns, _ in of_file]:
            continue
        yield number, line
        between = not line.strip() or (between and line.startswith(_MARKS))


def _columns(line: str) -> tuple[str, int]:
    """Return (column separator, number of columns) of a line; the separator is a tab if there is one, else a space."""
    return ("\t", line.count("\t") + 1) if "\t" in line else (" ", sum(map(bool, line.split(" "))))

"""Tables of reports in Markdown."""

import re
from collections.abc import Iterable


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table, with a blank line after it.

    rows: texts of the cells, as many in each row as in `header`. Bars in them are escaped, because a bare bar ends a
        cell, even inside code.
    """
    names = list(header)
    first, *others = (f"| {' | '.join(map(_escape, cells))} |" for cells in (names, *rows))
    return [first, "|---" * len(names) + "|", *others, ""]


def _escape(text: str) -> str:
    """Return the text of a Markdown table's cell with a backslash before each bar (`|`) that has none yet."""
    return re.sub(r"(?<!\\)\|", r"\|", text)

"""Tables of reports in Markdown."""

from collections.abc import Iterable


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table, with a blank line after it.

    rows: texts of the cells, as many in each row as in `header`.
    """
    names = list(header)
    first, *others = (f"| {' | '.join(cells)} |" for cells in (names, *rows))
    return [first, "|---" * len(names) + "|", *others, ""]

"""Tables of reports in Markdown."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, with a blank line after it.

    rows: texts of the cells, as many in each row as in `header`.
    """
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)] + [""]

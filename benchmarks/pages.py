"""Tables that programs write into pages, between two marked lines."""

import pathlib
from collections.abc import Iterable, Sequence

from ag_jax.analysis.tables import Table
from ag_jax.evaluation.significance import PairedDifference

ROOT = pathlib.Path(__file__).resolve().parent.parent
END = "<!-- end of the tables -->\n"
DIFFERENCE = ("difference (95 % interval)", "p", "detectable")


def with_tables(text: str, page: str, program: str, lines: Iterable[str]) -> str:
    """Return the text of a page with the tables of a program as they are now.

    page: its path, for errors.
    program: file name of the program, which the line before the tables states.
    lines: the tables, as Markdown.

    Raises ValueError if the place of the tables is not marked.
    """
    begin = f"<!-- tables of benchmarks/{program} -->\n"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"{page} must have the lines {begin.strip()!r} and {END.strip()!r}")
    return before + begin + "\n" + "\n".join(lines) + END + after


def write(page: str, program: str, lines: Iterable[str]) -> None:
    """Write the tables of a program into a page; see `with_tables`."""
    path = ROOT / page
    path.write_text(with_tables(path.read_text(), page, program, lines))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown, and an empty line."""
    return [Table(header, rows).markdown(), ""]


def difference_cells(difference: PairedDifference | None, digits: int) -> list[str]:
    """Return the cells under `DIFFERENCE`: a difference and its interval, p after Holm's correction, and the smallest
    difference that the test detects; dashes for None.

    digits: number of decimals.
    """
    if difference is None:
        return ["–"] * 3
    low, high = difference.interval
    mean = f"{difference.mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
    return [mean, shown_p(difference.p_corrected), f"{difference.smallest:.{digits}f}"]


def shown_p(p_value: float) -> str:
    """Return a p-value as tables show it."""
    return "< .001" if p_value < 0.001 else f"{p_value:.3f}".lstrip("0") if p_value < 1 else "1"

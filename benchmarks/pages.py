"""Parts of pages that a program writes: what stands between two marked lines."""

import pathlib
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
END = "<!-- end of the tables -->\n"


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

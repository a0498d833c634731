"""Tables of texts, as Markdown and for the terminal."""

import dataclasses
import io
import re
from collections.abc import Iterable, Sequence

import rich.table
from rich import box
from rich.console import Console
from rich.text import Text


@dataclasses.dataclass(frozen=True)
class Table:
    """A table whose cells are texts.

    header: names of the columns.
    rows: texts of the cells, as many in each row as in `header`.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [_line(cells) for cells in (self.header, *self.rows)]
        return "\n".join([lines[0], "|---" * len(self.header) + "|", *lines[1:]])

    def terminal(self, totals: int = 0) -> str:
        """Return the table as aligned lines, without spaces at their ends.

        totals: number of rows at the end that an empty line sets apart from the others.
        """
        table = rich.table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in self.header:
            table.add_column(Text(name), justify="right", no_wrap=True)
        for number, cells in enumerate(self.rows, 1):
            table.add_row(*map(Text, cells), end_section=number == len(self.rows) - totals)
        # Wide enough that rich wraps no row: the text may go to a file or a narrow terminal.
        text = io.StringIO()
        Console(file=text, width=1000, color_system=None, force_jupyter=False).print(table)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def shortened(text: str, longest: int) -> str:
    """Return a text on one line, with an ellipsis in the place of what is beyond `longest` characters."""
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def verbatim(text: str) -> str:
    """Return a text escaped, so that Markdown shows its characters as they are."""
    return re.sub(r"([\\`*\[\]<>#~$&|]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", text)


def _line(cells: Iterable[str]) -> str:
    # A bare bar would end the cell, even inside code.
    escaped = (re.sub(r"(?<!\\)\|", r"\|", cell) for cell in cells)
    return f"| {' | '.join(escaped)} |"

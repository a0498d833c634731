"""Tables of numbers for the terminal."""

import io

from rich import box
from rich.console import Console
from rich.table import Table


def new_table() -> Table:
    """Return an empty `rich` table in the style of the tables that ag-jax prints."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def printed(table: Table) -> list[str]:
    """Return a `rich` table as lines of text, without spaces at their ends."""
    # Wide enough that rich wraps no row: the text may go to a file or a narrow terminal.
    text = io.StringIO()
    console = Console(file=text, width=1000, color_system=None, force_jupyter=False)
    console.print(table)
    return [line.rstrip() for line in text.getvalue().rstrip().splitlines()]

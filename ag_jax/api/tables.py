"""Tables in the output of a notebook's cell."""

import html
from collections.abc import Mapping, Sequence
from typing import Any


def to_html(rows: Sequence[Mapping[str, Any]], note: str) -> str:
    """Return rows with the same columns as a table of HTML, with a line of text below.

    Numbers that are not whole have three decimals.
    """

    def cell(tag: str, value: Any) -> str:
        text = f"{value:.3f}" if isinstance(value, float) else "" if value is None else str(value)
        return f"<{tag}>{html.escape(text)}</{tag}>"

    head = "".join(cell("th", name.replace("_", " ")) for name in rows[0]) if rows else ""
    body = "".join("<tr>" + "".join(cell("td", value) for value in row.values()) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table><p>{html.escape(note)}</p>"

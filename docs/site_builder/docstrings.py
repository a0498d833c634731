"""Docstrings of ag_jax as reStructuredText for autodoc, and as Markdown for generated pages."""

import re
from collections.abc import Iterator
from typing import Any

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")
_SPECIAL = re.compile(r"(?<!\w)(\*\w+\*)(?!\w)|[*|\\]|(?<=\w)_(?=\W|$)")  # the first group: an emphasised word
_CODE = re.compile(r"(`+[^`]+`+)")


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring by reStructuredText. Called by autodoc."""
    lines[:] = list(to_rest(lines, names_of(obj)))


def names_of(obj: Any) -> set[str]:
    """Return the names that a docstring may have entries for: a class's fields, or a function's arguments.

    Local variables of a function are among them, which no docstring has entries for.
    """
    code = getattr(obj, "__code__", None)
    return {*getattr(obj, "__annotations__", {}), *(code.co_varnames if code else ())}


def to_rest(lines: list[str], names: set[str]) -> Iterator[str]:
    """Yield a docstring as reStructuredText.

    Entries `name: meaning` become definitions, indented blocks become Python code, and `words` in backquotes become
    code, too.

    names: what the docstring may have entries for.
    """
    in_entry, in_block = False, False
    for line in lines:
        entry = _ENTRY.fullmatch(line)
        if entry and names.issuperset(entry[1].split(", ")):
            yield from ("", ", ".join(f"``{name}``" for name in entry[1].split(", ")), f"    {_rest(entry[2])}")
            in_entry, in_block = True, False
        elif line.startswith("    ") and not in_entry:
            if not in_block:
                yield from ("", ".. code-block:: python", "")
            yield line
            in_block = True
        else:
            if in_block and line:
                in_block = False
                yield ""
            if in_entry and not line.startswith(" "):
                in_entry = False
                yield ""
            yield _rest(line)


def _rest(line: str) -> str:
    parts = _CODE.split(line)
    return "".join(
        f"``{part.strip('`')}``" if number % 2 else _SPECIAL.sub(lambda found: found[1] or f"\\{found[0]}", part)
        for number, part in enumerate(parts)
    )


def to_markdown(text: str) -> str:
    """Return a docstring of a config as Markdown: indented blocks become code, and other text is shown as it is."""
    blocks = []
    for block in re.split(r"\n(?:[ \t]*\n)+", text.strip("\n")):
        rows = block.split("\n")
        if all(row.startswith("    ") for row in rows):
            code = "\n".join(row[4:] for row in rows)
            language = "bash" if re.match(r"(\w+=\S+ )*(ag-jax|bash|python) ", code) else "text"
            blocks.append(f"```{language}\n{code}\n```")
        else:
            blocks.append("\n".join(map(plain, rows)))
    return "\n\n".join(blocks)


def plain(text: str) -> str:
    """Return text as Markdown that shows it unchanged, except that `words` in backquotes are code."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([\\*_<\[\]|~#])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)

"""Read JSON text and files; any fault of a file is a `ValueError` that names the file."""

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from etils import epath

from ag_jax import imported

DEEPEST = 100  # levels of nesting; no file that is read here has more than ten
# An escape of a JSON text: a surrogate pair, or half of a pair alone, which is the group, or any other.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)")
_NAMES = {dict: "object", list: "array", str: "string", int: "whole number", float: "number", bool: "boolean"}


def read_json(path: str | os.PathLike, expected: type = dict, fields: Mapping[str, type] | None = None) -> Any:
    """Return the content of a JSON file; the content must be of the type `expected` and have the keys in `fields`.

    expected: `dict` or `list`.
    fields: keys that a `dict` must have, with the types of their values.

    Functions that the file names by their import path are not imported from now on (`imported.distrust`).

    Raises FileNotFoundError if there is no such file, and ValueError, with the file's name, if the file is not UTF-8,
    not JSON, nested too deeply or of another type.
    """
    try:
        value = parse_json(epath.Path(path).read_bytes().decode("utf-8-sig"), expected)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; copy or write the file anew") from error
    imported.distrust(value)
    check_fields(path, value, fields or {})
    return value


def check_fields(path: str | os.PathLike, value: Mapping[str, Any], fields: Mapping[str, type]) -> None:
    """Check that a JSON object has the keys of `fields`, with values of the given types.

    path: the file that the object was read from, for the error message.
    fields: the type of each required key; integers are accepted for `float`.

    Raises ValueError with the name of the file.
    """
    for key, kind in fields.items():
        if not isinstance(value.get(key), (int, float) if kind is float else kind):
            found = repr(value[key])[:40] if key in value else "nothing"
            raise ValueError(
                f"{path}: expected a JSON {_NAMES[kind]} under the key {key!r}, got {found}; write the file anew"
            )


def parse_json(text: str, expected: type = dict) -> Any:
    """Return the content of a JSON text, which must be of the type `expected` (`dict`, `list`, or `object` for any).

    Raises ValueError if the text is not JSON, nested too deeply, of another type, or has half of a surrogate pair, such
    as "\\ud800", which is no text for a tokenizer or a file; the caller adds the file and the remedy to the message.
    """
    if "\\ud" in text or "\\uD" in text:
        for escape in _ESCAPE.finditer(text):
            if escape[1]:
                line = f" in line {text.count(chr(10), 0, escape.start()) + 1}" if "\n" in text.strip() else ""
                raise ValueError(f"expected Unicode text, got {escape[0]}{line}, half of a surrogate pair")
    try:
        value = json.loads(text)
        too_deep = _is_deeper(value, DEEPEST)
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise ValueError(f"expected JSON, got text that cannot be parsed: {error}") from error
    if too_deep:
        raise ValueError(f"expected JSON nested at most {DEEPEST} levels deep, got more levels")
    if not isinstance(value, expected):
        raise ValueError(f"expected a JSON {_NAMES[expected]}, got {type(value).__name__}")
    return value


def check_unicode(text: str, place: str) -> None:
    """Raise ValueError if a text has half of a surrogate pair, which neither tokenizers nor files take.

    place: what the text is, for the error message.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"expected Unicode text, got {text[error.start]!r}, half of a surrogate pair, in {place}; replace it, for "
            "instance by text.encode(errors='replace').decode()"
        ) from error


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and dicts are nested in `value` more than `levels` deep, found without recursion."""
    level = [value]
    for _ in range(levels + 1):
        level = [container for container in level if isinstance(container, (dict, list))]
        if not level:
            return False
        level = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
    return True

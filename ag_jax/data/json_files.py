"""Read JSON text and files; any fault of a file is a `ValueError` that names the file."""

import json
import os
from collections.abc import Mapping
from typing import Any

from etils import epath

DEEPEST = 100  # levels of nesting; no file that is read here has more than ten
_NAMES = {dict: "object", list: "array", str: "string", int: "whole number", float: "number", bool: "boolean"}


def read_json(path: str | os.PathLike, expected: type = dict, fields: Mapping[str, type] | None = None) -> Any:
    """Return the content of a JSON file; the content must be of the type `expected` and have the keys in `fields`.

    expected: `dict` or `list`.
    fields: keys that a `dict` must have, with the types of their values.

    Raises FileNotFoundError if there is no such file, and ValueError, with the file's name, if the file is not UTF-8,
    not JSON, nested too deeply or of another type.
    """
    try:
        value = parse_json(epath.Path(path).read_bytes().decode("utf-8-sig"), expected)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; copy or write the file anew") from error
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
    """Return the content of a JSON text, which must be of the type `expected` (`dict` or `list`).

    Raises ValueError if the text is not JSON, nested too deeply or of another type; the caller adds the file and
    the remedy to the message.
    """
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


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether lists and dicts are nested in `value` more than `levels` deep, found without recursion."""
    level = [value]
    for _ in range(levels + 1):
        level = [container for container in level if isinstance(container, (dict, list))]
        if not level:
            return False
        level = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
    return True

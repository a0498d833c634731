"""Read JSON text and files; whatever is wrong with a file is one `ValueError` that names it."""

import json
import os
from typing import Any

from etils import epath

DEEPEST = 100  # levels of nesting; no file that is read here has more than ten
_NAMES = {dict: "object", list: "array"}


def read_json(path: str | os.PathLike, expected: type = dict) -> Any:
    """Return the content of a JSON file, which must be a `dict` or a `list` as `expected`.

    Raises FileNotFoundError if there is no such file, and ValueError, with the file's name, if it is not UTF-8, not
    JSON, nested too deeply or of another type.
    """
    try:
        return parse_json(epath.Path(path).read_bytes().decode("utf-8-sig"), expected)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; copy or write it anew") from error


def parse_json(text: str, expected: type = dict) -> Any:
    """Return the content of a JSON text, which must be a `dict` or a `list` as `expected`.

    Raises ValueError that says what is wrong, without the name of a file.
    """
    try:
        value = json.loads(text)
        too_deep = _is_deeper(value, DEEPEST)
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if too_deep:
        raise ValueError(f"JSON nested more than {DEEPEST} levels deep")
    if not isinstance(value, expected):
        raise ValueError(f"expected a JSON {_NAMES[expected]}, got {type(value).__name__}")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether a value has more than `levels` of lists and dicts inside each other, without recursion."""
    level = [value]
    for _ in range(levels + 1):
        level = [container for container in level if isinstance(container, (dict, list))]
        if not level:
            return False
        level = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
    return True

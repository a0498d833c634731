"""Read JSON text and files; any fault of a file is a `ValueError` that names the file."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from ag_jax.settings import imported

# What Python raises in code that reads a file which does not hold what the code expects.
FAULTS = (KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError, ValueError)
# An escape of a JSON text: a surrogate pair, or half of a pair alone, which is the group, or any other.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)")
_NAMES = {dict: "object", list: "array", str: "string", int: "whole number", float: "number", bool: "boolean"}


@contextlib.contextmanager
def reading(place: str | os.PathLike, remedy: str = "write the file anew") -> Iterator[None]:
    """Turn every error of the code inside, which reads a file, into one ValueError that names the file.

    place: the file, with the line if it is known.
    remedy: what the user should do, the end of the message.

    Messages that name the place already stay as they are. `OSError` is not caught: it names its file; nor is
    `CannotImport`, for which the file is not to blame.
    """
    try:
        yield
    except imported.CannotImport:
        raise
    except FAULTS as fault:
        if isinstance(fault, ValueError) and str(place) in str(fault):
            raise
        raise ValueError(f"{place}: {reason(fault)}; {remedy}") from fault


def reason(fault: BaseException) -> str:
    """Return in words what is wrong with the content of a file, by the exception (`FAULTS`) that reading it raised."""
    if isinstance(fault, KeyError):
        return f"expected the key {fault.args[0]!r}, got none"
    if isinstance(fault, RecursionError):
        return "expected JSON of a few levels, got a deeper nesting"
    if isinstance(fault, ValueError):
        return str(fault)
    return f"expected other content ({type(fault).__name__}: {fault})"


def read_json(path: str | os.PathLike, expected: type = dict, fields: Mapping[str, type] | None = None) -> Any:
    """Return the content of a JSON file; the content must be of the type `expected` and have the keys in `fields`.

    expected: `dict` or `list`.
    fields: keys that a `dict` must have, with the types of their values.

    Functions that the file names by their import path are not imported from now on (`imported.distrust`).

    Raises FileNotFoundError if there is no such file, and ValueError, with the file's name, if the file is not UTF-8,
    not JSON or of another type.
    """
    with reading(path, "copy or write the file anew"):
        value = parse_json(epath.Path(path).read_bytes().decode("utf-8-sig"), expected)
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

    Raises ValueError if the text is not JSON, of another type, or has half of a surrogate pair, such as "\\ud800",
    which is no text for a tokenizer or a file; call it in `reading`, which adds the name of the file.
    """
    if "\\ud" in text or "\\uD" in text:
        for escape in _ESCAPE.finditer(text):
            if escape[1]:
                line = f" in line {text.count(chr(10), 0, escape.start()) + 1}" if "\n" in text.strip() else ""
                raise ValueError(f"expected Unicode text, got {escape[0]}{line}, half of a surrogate pair")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(reason(error)) from error
    except ValueError as error:
        raise ValueError(f"expected JSON, got text that cannot be parsed: {error}") from error
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


def without_numpy(value: Any) -> Any:
    """Return a value with numpy's scalars and arrays, also inside dicts and lists, replaced by Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {name: without_numpy(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [without_numpy(item) for item in value]
    return value

"""Read a `config.json` key by key, and report all of its unsupported options at once."""

from collections.abc import Mapping
from typing import Any

LARGEST = 2**31 - 1  # JAX's integers have 32 bits


class Settings:
    """The keys of a `config.json`, with a list `problems` of values that are wrong or not supported."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values
        self.problems: list[str] = []

    def take(self, key: str, default: Any) -> Any:
        """Return the value of a key; the default if the key is missing or null, or its value is one of the problems.

        A value of another type than the default's, or beyond `LARGEST`, becomes a problem, and the default is returned.
        """
        value = self._values.get(key)
        if value is None:
            return default
        fits = isinstance(value, type(default)) or (isinstance(default, float) and isinstance(value, int))
        if not fits or (isinstance(value, bool) and not isinstance(default, bool)):
            self.problems.append(f"{key} must be of type {type(default).__name__}, got {value!r}")
            return default
        if isinstance(value, int | float) and not abs(value) <= LARGEST:  # NaN is not, either
            self.problems.append(f"{key} must be a number of at most {LARGEST}, got {str(value)[:20]}")
            return default
        return value

    def need(self, key: str) -> int:
        """Return the size under a key; if it is missing or below 1, add this to `problems` and return 1."""
        if self._values.get(key) is None:
            self.problems.append(f"{key} is missing: expected a whole number")
            return 1
        value = self.take(key, 1)
        if value < 1:
            self.problems.append(f"{key} must be at least 1, got {value}")
        return max(value, 1)

    def only(self, key: str, supported: Any, default: Any = None) -> None:
        """Add a key to `problems` unless the key has the `supported` value; a missing key stands for `default`.

        default: what a missing key stands for, by default the supported value.
        """
        value = self._values.get(key)
        value = (supported if default is None else default) if value is None else value
        if value != supported and not (not value and not supported):
            self.problems.append(f"{key}={value!r} is not supported, only {supported!r}")

    def has(self, key: str) -> bool:
        """Return whether there is a key, even one whose value is null."""
        return key in self._values

    def raw(self, key: str) -> Any:
        """Return the value of a key without any check, None if it is missing."""
        return self._values.get(key)

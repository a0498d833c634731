"""A `config.json` that is read key by key, and whose every unsupported option is told at once."""

from collections.abc import Mapping
from typing import Any

LARGEST = 2**31 - 1  # JAX counts with 32 bits


class Settings:
    """The keys of a `config.json`; what cannot be read or done is collected in `problems`."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values
        self.problems: list[str] = []

    def take(self, key: str, default: Any) -> Any:
        """The value of a key, or the default; a value of another type than the default's is a problem."""
        value = self._values.get(key)
        if value is None:
            return default
        fits = isinstance(value, type(default)) or (isinstance(default, float) and isinstance(value, int))
        if not fits or (isinstance(value, bool) and not isinstance(default, bool)):
            self.problems.append(f"{key} must be of type {type(default).__name__}, got {value!r}")
            return default
        if isinstance(value, int | float) and not abs(value) <= LARGEST:  # NaN is not, either
            shown = "a number of more than 20 digits" if abs(value) > 10**20 else repr(value)
            self.problems.append(f"{key} must be a number of at most {LARGEST}, got {shown}")
            return default
        return value

    def need(self, key: str) -> int:
        """A size, which must be there."""
        if self._values.get(key) is None:
            self.problems.append(f"{key} is missing: expected a whole number")
            return 1
        value = self.take(key, 1)
        if value < 1:
            self.problems.append(f"{key} must be at least 1, got {value}")
        return max(value, 1)

    def only(self, key: str, supported: Any, default: Any = None) -> None:
        """A problem unless the key has the one value that is supported; `default` is what a missing key stands for."""
        value = self._values.get(key)
        value = (supported if default is None else default) if value is None else value
        if value != supported and not (not value and not supported):
            self.problems.append(f"{key}={value!r} is not supported, only {supported!r}")

    def raw(self, key: str) -> Any:
        """The value of a key as it stands, None if there is none."""
        return self._values.get(key)

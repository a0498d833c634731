"""A short `repr` for dataclasses that hold parameters and arrays."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ag_jax.models.config import EncoderConfig

LONGEST = 100  # characters of a value


def one_line(self: Any) -> str:
    """Return a dataclass's `repr` in one line, with the shapes of arrays and sizes of models instead of their values.

        class OpenRun:
            __repr__ = one_line

    Values that are defaults, empty, long, or named by their place in memory alone are left out.
    """
    fields = dataclasses.fields(self)
    texts = {field.name: _text_of(getattr(self, field.name)) for field in fields}
    parts = [
        f"{field.name}={texts[field.name]}"
        for field in fields
        if texts[field.name] not in ("", _text_of(field.default))
    ]
    return f"{type(self).__name__}({', '.join(parts)})"


def _text_of(value: Any) -> str:
    """Return a field's value as text for the `repr`, empty if the field is left out."""
    if value is None or (isinstance(value, str | tuple | Mapping) and not value):
        return ""
    if isinstance(value, np.ndarray | jax.Array):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping) and all(hasattr(leaf, "size") for leaf in jax.tree.leaves(value)):
        return f"<{sum(leaf.size for leaf in jax.tree.leaves(value)):,} numbers>"
    config = getattr(value, "config", value)  # a model has one
    if isinstance(config, EncoderConfig):
        return f"<{config.layers} layers of {config.heads} heads, width {config.width}>"
    text = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return "" if len(text) > LONGEST or "\n" in text or " at 0x" in text else text

"""Functions of other modules that settings name by their import path, such as `my_metrics.kappa`.

The import of a module executes it, and the JSON files of a stored run, suite or search may be somebody else's. So what
such a file names is imported only if the user names it, too (in the command line, in a config file, or in a config that
Python trains), or allows it (`--trust_code`, or `trust_code=True` in Python).
"""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

# The last parts of the names of settings that may name functions.
SETTINGS = ("heads", "decoder_heads", "cross_heads", "metric", "reader", "function")
_stored: set[str] = set()  # texts of stored files that may hold an import path
_allowed: set[str] = set()  # import paths
_trusts_all = False


class CannotImport(ValueError):
    """Error for a function that cannot be imported by its path."""


def distrust(content: Any) -> None:
    """Mark the strings of a stored file as untrusted: functions they name are imported only if the user allows it."""
    if isinstance(content, dict | list):
        for item in content.values() if isinstance(content, dict) else content:
            distrust(item)
    elif isinstance(content, str) and "." in content:
        _stored.add(content)


def _is_stored(path: str) -> bool:
    return any(path in text for text in _stored)


def allow(settings: Mapping[str, Any], even_stored: bool = True) -> None:
    """Allow the import of the functions that settings, {"section.key": value}, name.

    even_stored: also of those that a stored file names, from which a config file may have taken them.
    """
    values = [str(value) for key, value in settings.items() if key.rpartition(".")[2] in SETTINGS]
    paths = {path for value in values for path in re.split(r"[,:\s]+", value)}  # of lists such as next:1,my.second:1
    _allowed.update(path for path in paths if even_stored or not _is_stored(path))


def trust_all() -> None:
    """Allow all imports in this process, as `--trust_code` does."""
    global _trusts_all
    _trusts_all = True


def is_allowed(path: str) -> bool:
    """Return whether the function at an import path may be imported."""
    return _trusts_all or path in _allowed or not _is_stored(path)


def function(label: str, path: str) -> Callable[..., Any]:
    """Import the function that a setting names as `module.function`.

    label: the setting with its value, for error messages.

    Raises CannotImport if only a stored file names it, if its module cannot be imported, or if the module lacks it, and
    ValueError if it is no function.
    """
    if not is_allowed(path):
        raise CannotImport(
            f"{label} is named by a stored file, and importing it can run any program, so it was not imported: if you "
            "trust it, add --trust_code (trust_code=True in Python), or name it in a flag --config.SECTION.KEY"
        )
    module, _, name = path.rpartition(".")
    try:
        value = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise CannotImport(
            f"cannot import {label}: {type(error).__name__}: {error}; expected module.function, with the module "
            "installed or in a folder on PYTHONPATH"
        ) from error
    if not callable(value):
        raise ValueError(f"{label} must be a function, got an object of type {type(value).__name__}")
    return value

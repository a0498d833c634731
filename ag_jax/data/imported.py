"""Functions of other modules that a setting names by their import path, such as `my_metrics.kappa`."""

import importlib
from collections.abc import Callable
from typing import Any


def function(setting: str, path: str) -> Callable[..., Any]:
    """Import the function that a setting names as `module.function`.

    setting: name of the setting, for the error message.

    Raises ValueError if the module cannot be imported, or has no such function.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise ValueError(
            f"cannot import {setting}={path}: {type(error).__name__}: {error}; expected module.function, with the "
            "module installed or in a folder on PYTHONPATH"
        ) from error
    if not callable(found):
        raise ValueError(f"{setting}={path} must be a function, got an object of type {type(found).__name__}")
    return found

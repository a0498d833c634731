"""Verbs with the values of their flags, to run in the process of a test."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ag_jax.command_line.verbs import VERBS, Verb
from ag_jax.settings import config_files


def verb_of(name: str, config: str | None = None, overrides: Mapping[str, Any] | None = None, **values: Any) -> Verb:
    """Return a verb with these values of its flags; a flag that must be given and is not is None.

    config: config file with its arguments.
    overrides: changes of its settings.
    """
    kind = VERBS[name]
    if config is not None:
        values["config"] = config_files.load(str(config), overrides)
    required = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    return kind(**dict.fromkeys(required) | values)

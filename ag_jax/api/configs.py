"""Configs and settings as Python gives them."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.probing.config import ProbingConfig
from ag_jax.settings import config_files
from ag_jax.settings.config_files import ConfigDict

# A packaged config or a config file, as in "quickstart:arm=ag", or what a `get_config` returned.
Config: TypeAlias = str | os.PathLike | ConfigDict
# What follows `--config.` on the command line, with values of Python: {"training.steps": 60}.
Settings = Mapping[str, Any]
FOR = {  # kinds of configs, and the functions that take them
    ExperimentConfig: "ag_jax.pretrain or ag_jax.compare",
    FinetuningConfig: "ag_jax.finetune",
    ProbingConfig: "ag_jax.probe",
}


class SettingsError(ValueError):
    """Error for a config or a setting that does not exist, or whose value is not allowed."""


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Context manager in which a ValueError becomes a SettingsError."""
    try:
        yield
    except ValueError as error:  # `from None`, because the message is all that helps
        raise SettingsError(str(error).removeprefix("--config=")) from None


def load(
    config: Config, settings: Settings | None, expected: type, arguments: Mapping[str, Any] | None = None
) -> config_files.Config:
    """Return a config with settings on top, checked.

    expected: the dataclass that the config must be made for.
    arguments: further arguments of the config file.

    Raises SettingsError.
    """
    changes = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in (settings or {}).items()
    }
    with errors():
        if isinstance(config, ConfigDict):
            loaded = config_files.of_dict(config)
        else:
            loaded = config_files.load(os.fspath(config), given=arguments)
        if loaded.kind is not expected:
            raise ValueError(f"{loaded.source} is a config for {FOR[loaded.kind]}, expected one for {FOR[expected]}")
        loaded = loaded.with_overrides(changes)
        _ = loaded.settings  # checks them
    return loaded

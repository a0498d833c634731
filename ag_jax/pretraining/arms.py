"""The arms of a comparison: the configs that one config file gives for different values of its argument `arm`.

All arms have the same command-line flags on top.
"""

import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax.distributed import hosts
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import schema
from ag_jax.settings.config_files import Config

NOT_COMPARED = {"title", "seed"}  # arms that differ only in these settings count as the same


def configs_of(base: Config, arms: str | None, setting: str, verb: str) -> dict[str, Config]:
    """Return {arm: config} for the arms (values of the config file's argument `arm`) in `arms`, with commas.

    base: the config; with an arm, as in `quickstart:arm=ag`, it is one arm, not several.
    setting: the setting that holds the list, for messages.
    verb: the command that trains a config without arms, for messages.

    Raises ValueError if `arms` is empty or None, if a name occurs twice, or if `base` has an arm already.
    """
    check_argument(base, verb)
    if not arms:
        raise ValueError(f"{base.source} names no arms to compare; set {setting}, or use `ag-jax {verb}` without arms")
    names = arms.split(",")
    if len(set(names)) < len(names):
        raise ValueError(f"arms must be different, got {arms}: name each of them once")
    return {name: base.with_argument("arm", name) for name in names}


def check_argument(base: Config, verb: str) -> None:
    """Raise ValueError if the command gives the config file's argument `arm`, although it trains all arms.

    verb: the command that trains one arm, for the message.
    """
    if arm := base.texts.get("arm"):
        raise ValueError(
            f"--config={base.source} chooses one arm, which would be ignored, because all of them are compared: leave "
            f"out arm={arm}, or use `ag-jax {verb}` for one arm"
        )


def check_seed(config: ExperimentConfig, seeds: Sequence[int], setting: str) -> None:
    """Raise ValueError if a config sets `seed` to a value that is not among `seeds`, with which its runs are trained.

    setting: name of the setting with `seeds`, for the message.
    """
    if config.seed and config.seed not in seeds:
        raise ValueError(
            f"seed={config.seed} would be ignored, because the runs have the seeds of {setting}="
            f"{','.join(map(str, seeds))}: set --config.{setting}={config.seed}, and leave out seed"
        )


def overridden(arms: Mapping[str, Config]) -> list[str]:
    """Return a warning for each flag that overrides a setting in which the arms {name: config} of a file differ."""
    of_files = {arm: schema.flat(config.values) for arm, config in arms.items()}
    sentences = []
    for key, value in next(iter(arms.values())).overrides.items():
        values = {arm: settings.get(key) for arm, settings in of_files.items()}
        if len({repr(of_arm) for of_arm in values.values()}) > 1:
            sentences.append(f"{' '.join(schema.flags({key: value}))} overrides what the arms set: {listed(values)}")
    return sentences


def listed(values: Mapping[str, Any]) -> str:
    """Return the value of a setting in each arm as text, such as `10.0 (plain), 1.0 (ag)`."""
    return ", ".join(f"{schema.shown(value)} ({arm})" for arm, value in values.items())


def announce(sentences: Sequence[str]) -> None:
    """Print warnings about a comparison or a search to stderr, on host 0 only."""
    if hosts.is_first():
        for sentence in sentences:
            print(sentence, file=sys.stderr, flush=True)


def command(verb: str, config: Config) -> str:
    """Return the command line `ag-jax VERB` for a config file with its changed settings, without `--workdir`."""
    flags = [f"--config={config.typed}", *schema.flags(config.overrides)]
    return " ".join(["ag-jax", verb, *map(shlex.quote, flags)])


def check_distinct(base: Config, arms: Mapping[str, Config], in_effect: Mapping[str, Any]) -> None:
    """Raise ValueError if two arms of a comparison have the same settings apart from title and seed.

    The error names the command-line flags that gave both arms one value where the config file has different ones.

    in_effect: the checked settings of each arm, with those that have no effect at their defaults.
    """
    settings = {arm: schema.flat(schema.to_dict(of_arm)) for arm, of_arm in in_effect.items()}
    for one, other in itertools.combinations(settings, 2):
        keys = (settings[one].keys() | settings[other].keys()) - NOT_COMPARED
        if any(settings[one].get(key) != settings[other].get(key) for key in keys):
            continue
        flags = overridden({arm: arms[arm] for arm in (one, other)})
        reason = ", because " + " and ".join(flags) if flags else ""
        remedy = "leave that out" if flags else "change the arguments of the config file"
        raise ValueError(
            f"the arms {one} and {other} of {base.source} have the same settings{reason}: {remedy}, or name other arms"
        )

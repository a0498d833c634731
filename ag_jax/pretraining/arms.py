"""The arms of a comparison: the configs that one config file gives for different values of its argument `arm`.

All arms have the same command-line flags on top.
"""

import itertools
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ag_jax import config_reader
from ag_jax.distributed import hosts
from ag_jax.pretraining.config import ExperimentConfig

NOT_COMPARED = {"title", "seed"}  # arms that differ only in these settings count as the same


def names(source: str, listed: str | None, setting: str, verb: str) -> list[str]:
    """Return the names of the arms (configs to compare) in `listed`, separated by commas; None raises ValueError.

    source: the config file, as the user names it; with an arm, as in `quickstart:arm=ag`, it is one arm, not several.
    setting: the setting that holds the list, for messages.
    verb: the command that trains a config without arms, for messages.

    Raises ValueError if `listed` is empty or None, if a name occurs twice, or if `source` has an arm already.
    """
    check_argument(source, verb)
    if not listed:
        raise ValueError(f"{source} names no arms to compare; set {setting}, or use `ag-jax {verb}` without arms")
    result = listed.split(",")
    if len(set(result)) < len(result):
        raise ValueError(f"arms must be different, got {listed}: name each of them once")
    return result


def check_argument(source: str, verb: str) -> None:
    """Raise ValueError if `source` gives the config file's argument `arm`, because the command trains all arms.

    verb: the command that trains one arm, for the message.
    """
    if arm := config_reader.argument_of(source, "arm"):
        raise ValueError(
            f"--config={source} chooses one arm, which would be ignored, because all of them are compared: leave out "
            f"arm={arm}, or use `ag-jax {verb}` for one arm"
        )


def load(source: str, arm: str, overrides: Mapping[str, Any]) -> config_reader.ConfigDict:
    """Load the config of one arm of the config file `source`, with the flags `overrides` on top."""
    return config_reader.load(config_reader.with_argument(source, "arm", arm), overrides)


def check_seed(config: ExperimentConfig, seeds: Sequence[int], setting: str) -> None:
    """Raise ValueError if a config sets `seed` to a value that is not among `seeds`, with which its runs are trained.

    setting: name of the setting with `seeds`, for the message.
    """
    if config.seed and config.seed not in seeds:
        raise ValueError(
            f"seed={config.seed} would be ignored, because the runs have the seeds of {setting}="
            f"{','.join(map(str, seeds))}: set --config.{setting}={config.seed}, and leave out seed"
        )


def overridden(source: str, arms: Iterable[str], overrides: Mapping[str, Any]) -> list[str]:
    """Return a warning for each flag in `overrides` that overrides a setting in which the arms of a config file differ.

    arms: their names.
    """
    of_arms = {arm: config_reader.flat(load(source, arm, {}).to_dict()) for arm in arms}
    sentences = []
    for key, value in overrides.items():
        values = {arm: settings.get(key) for arm, settings in of_arms.items()}
        if len({repr(of_arm) for of_arm in values.values()}) > 1:
            sentences.append(
                f"{' '.join(config_reader.flags({key: value}))} overrides what the arms set: {listed(values)}"
            )
    return sentences


def listed(values: Mapping[str, Any]) -> str:
    """Return the value of a setting in each arm as text, such as `10.0 (mlm), 1.0 (ag)`."""
    return ", ".join(f"{config_reader.shown(value)} ({arm})" for arm, value in values.items())


def announce(sentences: Sequence[str]) -> None:
    """Print warnings about a comparison or a search to stderr, on host 0 only."""
    if hosts.is_first():
        for sentence in sentences:
            print(sentence, file=sys.stderr, flush=True)


def command(verb: str, source: str, overrides: Mapping[str, Any]) -> str:
    """Return the command line `ag-jax VERB` for a config file, with `overrides` as flags and without `--workdir`."""
    return " ".join(["ag-jax", verb, *map(shlex.quote, [f"--config={source}", *config_reader.flags(overrides)])])


def check_distinct(source: str, in_effect: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raise ValueError if two arms of a comparison have the same settings apart from title and seed.

    The error names the command-line flags that gave both arms one value where the config file has different ones.

    in_effect: the checked config of each arm, with settings that have no effect at their defaults.
    """
    settings = {arm: config_reader.flat(config_reader.to_dict(config)) for arm, config in in_effect.items()}
    for one, other in itertools.combinations(settings, 2):
        keys = (settings[one].keys() | settings[other].keys()) - NOT_COMPARED
        if any(settings[one].get(key) != settings[other].get(key) for key in keys):
            continue
        flags = overridden(source, (one, other), overrides)
        reason = ", because " + " and ".join(flags) if flags else ""
        remedy = "leave that out" if flags else "change the arguments of the config file"
        raise ValueError(
            f"the arms {one} and {other} of {source} have the same settings{reason}: {remedy}, or name other arms"
        )

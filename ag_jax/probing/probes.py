"""The queries of each kind of probe, in windows that fit the tokenizers of the compared models."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ag_jax.analysis.heads.encoding import word_lengths
from ag_jax.data.probes import checking, coreference, gap, reflexive, trees
from ag_jax.data.probes.queries import Probe
from ag_jax.probing.config import ProbeConfig
from ag_jax.probing.models import ProbedModel
from ag_jax.settings import imported

SPECIALS = 2  # begin and end token of a window


def make(name: str, config: ProbeConfig, compared: Sequence[ProbedModel]) -> Probe:
    """Return the queries of a probe, in windows that all models of a comparison can read.

    All models get the same queries, whatever their tokenizers: a window has as many words as fit in the tokens of each.

    name: name of the probe, for error messages.

    Raises FileNotFoundError or ValueError if the files, or the function of a custom probe, cannot be used, or if a
    query cannot be asked.
    """
    probe = MAKERS[config.kind](name, config, _limits(config, compared))
    checking.check(probe, among_words="words" in config.modes)
    if np.asarray(probe.development, bool).all():
        raise ValueError(f"the probe {name} has queries for development only: give documents for the test, too")
    return probe


def check(name: str, config: ProbeConfig) -> None:
    """Raise FileNotFoundError or ValueError if the data file or the custom function of a probe does not exist."""
    if config.kind == "custom":
        imported.function(f"probes.{name}.function={config.function}", config.function or "")
    elif config.data and not pathlib.Path(config.data).expanduser().exists():
        raise FileNotFoundError(f"probes.{name}.data={config.data} does not exist: expected a file or a folder")


def _limits(config: ProbeConfig, compared: Sequence[ProbedModel]) -> dict[str, Any]:
    """Return arguments that limit a probe's windows to the number of tokens that the setting and all models allow."""
    counts = {probed.tokenizer.fingerprint(): word_lengths(probed.tokenizer) for probed in compared}

    def most(words: Sequence[str]) -> Sequence[int]:
        return np.max([count(words) for count in counts.values()], axis=0).tolist()

    return {"lengths": most, "window": min(config.window, *(probed.longest for probed in compared)) - SPECIALS}


def _coreference(name: str, config: ProbeConfig, limits: dict[str, Any]) -> Probe:
    settings = {"head_word": config.head_word, "direction": config.direction} | limits
    return coreference.coreference(str(config.data), **settings)


def _reflexives(name: str, config: ProbeConfig, limits: dict[str, Any]) -> Probe:
    return reflexive.reflexive(config.data, distractor=config.distractor, **limits)


def _gap(name: str, config: ProbeConfig, limits: dict[str, Any]) -> Probe:
    return gap.gap(str(config.data), **limits)


def _dependencies(name: str, config: ProbeConfig, limits: dict[str, Any]) -> Probe:
    return trees.dependencies(str(config.data), subtypes=config.subtypes, **limits)


def _custom(name: str, config: ProbeConfig, limits: dict[str, Any]) -> Probe:
    """Return the probe that a custom function makes from the setting `data`; the function cuts its own windows."""
    probe = imported.function(f"probes.{name}.function={config.function}", config.function or "")(config.data)
    if not isinstance(probe, Probe):
        raise ValueError(
            f"probes.{name}.function={config.function} returned {type(probe).__name__}, expected an "
            "ag_jax.data.probes.queries.Probe"
        )
    return probe


MAKERS: dict[str, Callable[[str, ProbeConfig, dict[str, Any]], Probe]] = {
    "coreference": _coreference,
    "reflexives": _reflexives,
    "gap": _gap,
    "dependencies": _dependencies,
    "custom": _custom,
}

"""The queries of each kind of probe, made for a model's tokenizer."""

import importlib
from collections.abc import Callable
from typing import Any

from ag_jax.data.probes import coreference, gap, reflexive, trees
from ag_jax.data.probes.queries import Probe
from ag_jax.probing.config import ProbeConfig
from ag_jax.probing.encoding import word_lengths
from ag_jax.probing.models import ProbedModel

SPECIALS = 2  # begin and end token of a window


def make(name: str, config: ProbeConfig, probed: ProbedModel) -> Probe:
    """Return the queries of a probe, in windows that the model can read.

    name: name of the probe, for error messages.

    Raises FileNotFoundError or ValueError if the files, or the function of a custom probe, cannot be used.
    """
    return MAKERS[config.kind](name, config, probed)


def _lengths(config: ProbeConfig, probed: ProbedModel) -> dict[str, Any]:
    """Return the arguments by which a probe keeps its texts as short as the setting and the model allow."""
    room = min(config.window, probed.longest) - SPECIALS
    return {"lengths": word_lengths(probed.tokenizer), "window": room}


def _coreference(name: str, config: ProbeConfig, probed: ProbedModel) -> Probe:
    settings = {"head_word": config.head_word, "direction": config.direction} | _lengths(config, probed)
    return coreference.coreference(str(config.data), **settings)


def _reflexives(name: str, config: ProbeConfig, probed: ProbedModel) -> Probe:
    return reflexive.reflexive(config.data, distractor=config.distractor, **_lengths(config, probed))


def _gap(name: str, config: ProbeConfig, probed: ProbedModel) -> Probe:
    return gap.gap(str(config.data), **_lengths(config, probed))


def _dependencies(name: str, config: ProbeConfig, probed: ProbedModel) -> Probe:
    return trees.dependencies(str(config.data), subtypes=config.subtypes, **_lengths(config, probed))


def _custom(name: str, config: ProbeConfig, probed: ProbedModel) -> Probe:
    """Call the function of a custom probe with the setting `data`."""
    module, _, function = (config.function or "").rpartition(".")
    try:
        found = getattr(importlib.import_module(module), function)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise ValueError(
            f"cannot import probes.{name}.function={config.function}: {type(error).__name__}: {error}; expected "
            "module.function, with the module installed or in a folder on PYTHONPATH"
        ) from error
    made = found(config.data)
    if not isinstance(made, Probe):
        raise ValueError(
            f"probes.{name}.function={config.function} returned {type(made).__name__}, expected an "
            "ag_jax.data.probes.queries.Probe"
        )
    return made


MAKERS: dict[str, Callable[[str, ProbeConfig, ProbedModel], Probe]] = {
    "coreference": _coreference,
    "reflexives": _reflexives,
    "gap": _gap,
    "dependencies": _dependencies,
    "custom": _custom,
}

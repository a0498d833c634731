"""Scores of one model on one probe: a cell that is measured once and stored, with a file of arrays for each mode."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath

from ag_jax.analysis.heads import measuring
from ag_jax.analysis.heads.measuring import ARRAYS, Measured
from ag_jax.analysis.heads.rows import Convention
from ag_jax.data.probes.queries import Mode, Probe
from ag_jax.distributed.terminal import tenths
from ag_jax.grid import store
from ag_jax.grid.cells import Artifact, Cell, Result
from ag_jax.probing.config import ProbeConfig
from ag_jax.probing.models import ProbedModel

VERSION = 2  # of the computation of scores; a new one makes stored results of the earlier ones invalid


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """The scores of all heads of a model on a probe, with the model and the probe.

    probed: the model.
    config: settings of the probe.
    probe: the queries, made for the tokenizer of the model.
    modes: scores of all heads, for each mode.
    """

    probed: ProbedModel
    config: ProbeConfig
    probe: Probe
    modes: dict[Mode, Measured]


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeCell(Cell):
    """A probe of a model.

    probed: the model.
    config: settings of the probe.
    probe: the queries, made for the tokenizer of the model.
    """

    probed: ProbedModel
    config: ProbeConfig
    probe: Probe

    @functools.cached_property
    def inputs(self) -> Mapping[str, str]:
        """Digests of the model, of the queries with their windows, and of the settings."""
        windows = [of.words if of.spaces is None else (of.words, of.spaces) for of in self.probe.windows]
        queries = [list(vars(query).values()) for query in self.probe.queries]
        return {
            "model": store.digest(self.probed.digest, self.probed.longest),
            "text": store.digest([windows, queries], self.probe.before),
            "settings": store.digest(VERSION, dataclasses.asdict(self.config)),
        }

    def compute(self, directory: epath.Path) -> Result:
        """Measure the scores of all heads in all modes."""
        config = self.config
        convention = Convention(config.from_word, config.to_word, config.transposed)
        modes = measuring.measure(
            self.probed, self.probe, config.modes, convention, progress=tenths(self.path, "queries")
        )
        artifacts: dict[str, Artifact] = {
            mode: store.write_arrays(directory, f"{mode}.npz", _arrays(of)) for mode, of in modes.items()
        }
        dropped = {mode: dict(of.dropped) for mode, of in modes.items()}
        return Result({"model": self.probed.description, "dropped": dropped}, artifacts)

    def read(self, directory: epath.Path, result: Result) -> ProbeResult:
        """Return the scores that a result and its files hold."""
        modes = {mode: _read(directory, mode, result) for mode in self.config.modes}
        return ProbeResult(self.probed, self.config, self.probe, modes)


def _arrays(measured: Measured) -> dict[str, np.ndarray]:
    return {name: value for name in ARRAYS if (value := getattr(measured, name)) is not None}


def _read(folder: epath.Path, mode: Mode, result: Result) -> Measured:
    """Return the stored scores of a mode."""
    arrays = store.read_arrays(folder, result.artifacts[mode])
    fields: dict[str, Any] = {name: arrays.get(name) for name in ARRAYS}
    return Measured(**fields, dropped=result.facts["dropped"][mode])

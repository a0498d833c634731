"""Scores of one model on one probe, measured once and stored, with a file of arrays for each mode.

Stored scores are used again if the model, the tokenizer, the texts and the settings are those they were measured with.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from etils import epath

from ag_jax.data.probes.queries import Probe
from ag_jax.grid import store
from ag_jax.grid.store import Artifact, Result
from ag_jax.probing import measuring
from ag_jax.probing.config import Mode, ProbeConfig
from ag_jax.probing.measuring import ARRAYS, Measured
from ag_jax.probing.models import ProbedModel
from ag_jax.probing.rows import Convention

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


def obtain(probed: ProbedModel, config: ProbeConfig, probe: Probe, folder: epath.Path, label: str) -> ProbeResult:
    """Return the scores of a model on a probe, from `folder` if they are stored there, otherwise measured and stored.

    Stored scores are used if model, tokenizer, texts and settings are the same and the files are undamaged.

    label: name of model and probe, for progress.
    """
    questions = [[window.words for window in probe.windows], [list(vars(query).values()) for query in probe.queries]]
    inputs = {
        "model": store.digest(probed.digest, probed.longest),
        "text": store.digest(questions, probe.before),
        "settings": store.digest(VERSION, dataclasses.asdict(config)),
    }

    def measure() -> Result:
        convention = Convention(config.from_word, config.to_word, config.transposed)
        modes = measuring.measure(probed, probe, config.modes, convention, progress=_progress(label))
        dropped = {mode: dict(of.dropped) for mode, of in modes.items()}
        artifacts: dict[str, Artifact] = {
            mode: store.write_arrays(folder, f"{mode}.npz", _arrays(of)) for mode, of in modes.items()
        }
        facts = {"model": probed.description, "dropped": dropped}
        return Result(inputs, facts, artifacts)

    def load(result: Result) -> dict[Mode, Measured]:
        return {mode: _read(folder, mode, result) for mode in config.modes}

    return ProbeResult(probed, config, probe, store.measured(folder, inputs, measure, load))


def _progress(label: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        print(f"{label}: {done:,} of {total:,} queries", file=sys.stderr, flush=True)

    return show


def _arrays(measured: Measured) -> dict[str, np.ndarray]:
    return {name: value for name in ARRAYS if (value := getattr(measured, name)) is not None}


def _read(folder: epath.Path, mode: Mode, result: Result) -> Measured:
    """Return the stored scores of a mode."""
    arrays = store.read_arrays(folder, result.artifacts[mode])
    fields: dict[str, Any] = {name: arrays.get(name) for name in ARRAYS}
    return Measured(**fields, dropped=result.facts["dropped"][mode])

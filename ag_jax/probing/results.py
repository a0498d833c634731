"""Scores of one model on one probe, measured once and stored, with a file of arrays for each mode.

Stored scores are used again if the model, the tokenizer, the texts and the settings are those they were measured with.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

from etils import epath

from ag_jax.data.probes.queries import Probe
from ag_jax.probing import measuring, storing
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
    fingerprint = _fingerprint(probed, config, probe)
    modes = storing.read(
        folder, fingerprint, lambda record: {mode: _read(folder, mode, record["modes"][mode]) for mode in config.modes}
    )
    if modes is None:
        convention = Convention(config.from_word, config.to_word, config.transposed)
        modes = measuring.measure(probed, probe, config.modes, convention, progress=_progress(label))
        _store(folder, fingerprint, probed, modes)
    return ProbeResult(probed, config, probe, modes)


def _progress(label: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        print(f"{label}: {done:,} of {total:,} queries", file=sys.stderr, flush=True)

    return show


def _fingerprint(probed: ProbedModel, config: ProbeConfig, probe: Probe) -> str:
    """Return the SHA-256 of everything on which a model's scores on a probe depend."""
    settings = [VERSION, dataclasses.asdict(config), probed.digest, probed.longest]
    questions = [[window.words for window in probe.windows], [list(vars(query).values()) for query in probe.queries]]
    content = json.dumps([settings, questions, probe.before], default=int)  # a custom probe may have numpy's integers
    return hashlib.sha256(content.encode()).hexdigest()


def _store(folder: epath.Path, fingerprint: str, probed: ProbedModel, modes: dict[Mode, Measured]) -> None:
    storing.begin(folder)
    files: dict[str, dict[str, Any]] = {}
    for mode, measured in modes.items():
        arrays = {name: value for name in ARRAYS if (value := getattr(measured, name)) is not None}
        digest = storing.write_arrays(folder / f"{mode}.npz", arrays)
        files[mode] = {"sha256": digest, "dropped": dict(measured.dropped)}
    storing.finish(folder, {"model": probed.description, storing.FINGERPRINT: fingerprint, "modes": files})


def _read(folder: epath.Path, mode: Mode, record: dict[str, Any]) -> Measured:
    """Read the stored scores of a mode from its file of arrays.

    Raises ValueError if the file is not the one that was written.
    """
    arrays = storing.read_arrays(folder / f"{mode}.npz", record["sha256"])
    fields: dict[str, Any] = {name: arrays.get(name) for name in ARRAYS}
    return Measured(**fields, dropped=record["dropped"])

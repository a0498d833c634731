"""How far the runs of a search are, read from their directories: the tree of runs is all the state that a search has.

A run is done when its `summary.json` is there. `failure.json` says why a run failed, and `rungs.json` holds its losses
at the steps at which it was compared with others.
"""

import dataclasses
import json
import math
from typing import Any

from etils import epath

from ag_jax.data.json_files import check_fields, read_json
from ag_jax.distributed import storage
from ag_jax.pretraining import run
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.search.points import Study

FAILURE, RUNGS = "failure.json", "rungs.json"
LOSSES = ("train_loss", "validation_loss", "average_train_loss")


@dataclasses.dataclass(frozen=True)
class RunState:
    """How far one run is.

    losses: `LOSSES` of a finished run; None for any other.
    failure: why the run failed; None if it did not.
    rungs: `LOSSES` after each step, written as text, at which it was compared with others.
    """

    losses: dict[str, float] | None = None
    failure: str | None = None
    rungs: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to train."""
        return self.losses is not None or self.failure is not None


States = dict[tuple[int, int], RunState]  # by number of the point and seed


def read(directory: epath.Path, config: ExperimentConfig) -> RunState:
    """Read the state of a run. Raises ValueError, with the file's name, if a file is damaged."""
    rungs = _rungs(directory / RUNGS)
    summary = run.read_summary(directory)
    if summary is not None and run.is_complete(summary, config):
        found = {name: summary[name] for name in LOSSES}
        if bad := [name for name, value in found.items() if not math.isfinite(value)]:
            return RunState(failure=f"{bad[0]} is not finite", rungs=rungs)
        return RunState(losses=found, rungs=rungs)
    failure = directory / FAILURE
    reason = read_json(failure, dict, {"reason": str})["reason"] if failure.exists() else None
    return RunState(failure=reason, rungs=rungs)


def _rungs(path: epath.Path) -> dict[str, dict[str, float]]:
    found = read_json(path) if path.exists() else {}
    check_fields(path, found, dict.fromkeys(found, dict))
    for losses in found.values():
        check_fields(path, losses, dict.fromkeys(LOSSES, float))
    return found


def read_all(study: Study, workdir: epath.Path) -> States:
    """Return the state of every run of a search."""
    return {
        (number, seed): read(point.directory(workdir, seed), config)
        for number, point in enumerate(study.points)
        for seed, config in point.configs.items()
    }


def write_failure(directory: epath.Path, reason: str) -> None:
    """Note that a run failed, so that it is not trained again."""
    directory.mkdir(parents=True, exist_ok=True)
    storage.write_whole(directory / FAILURE, json.dumps({"reason": reason}, indent=2) + "\n")


def write_rung(directory: epath.Path, step: int, losses: dict[str, Any]) -> None:
    """Note the losses of a run after the step at which it is compared with others."""
    rungs = _rungs(directory / RUNGS) | {str(step): {name: losses[name] for name in LOSSES}}
    storage.write_whole(directory / RUNGS, json.dumps(rungs, indent=2) + "\n")

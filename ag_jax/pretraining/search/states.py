"""State of the runs of a search, read from the files in their directories.

A search has no other state.

A run is done when its `result.json` is there and is of all its steps, or of what `training.time_limit` or
`training.patience` allow. `failure.json` says why a run failed, with which settings, and whether
it diverged; `rungs.json` holds its losses and metrics at the steps at which it was compared with others.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from etils import epath

from ag_jax.data.json_files import check_fields, read_json, reading
from ag_jax.distributed import storage
from ag_jax.grid import store
from ag_jax.pretraining import run_directory
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.search.points import Study
from ag_jax.settings import schema

FAILURE, RUNGS = "failure.json", "rungs.json"
LOSSES = ("train_loss", "validation_loss", "average_train_loss")
OUT_OF_MEMORY = "out of memory"  # how reasons begin if a run did not diverge
# Settings that do not decide whether a run fails.
NOT_OF_FAILURE = tuple(name for name in run_directory.MAY_DIFFER if name not in run_directory.OF_FAILURE)

Numbers = dict[str, float | None]  # of losses and metrics, by their names; None for one that was not measured


@dataclasses.dataclass(frozen=True)
class RunState:
    """State of one run of a search: its final metrics, its metrics at each comparison with others, and any failure.

    measured: `LOSSES` and `search.metric` of a finished run; None for any other. The metric is None if it was not
        measured, because nothing was counted for it, such as a share of the alarms of a model that raised none.
    failure: why the run failed; None if it did not.
    diverged: whether it failed because a number was not finite, and not for want of memory.
    rungs: `LOSSES` and `search.metric` after each step, written as text, at which it was compared with others.
    """

    measured: Numbers | None = None
    failure: str | None = None
    diverged: bool = False
    rungs: dict[str, Numbers] = dataclasses.field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed, so that nothing is left to train."""
        return self.measured is not None or self.failure is not None


States = dict[tuple[int, int], RunState]  # by number of the point and seed


def read(directory: epath.Path, config: ExperimentConfig, retry: bool = False) -> RunState:
    """Read the state of a run from its directory; a recorded failure counts only with equal settings and no `retry`.

    Settings of `NOT_OF_FAILURE` may have changed since.

    retry: leave out a failure that --retry would forget, that of `failure.json`.

    Raises ValueError, with the file's name, if a file is damaged, or lacks the number `search.metric`.
    """
    metric = config.search.metric
    names = dict.fromkeys((*LOSSES, metric))
    with reading(directory / RUNGS, "train the points in another --workdir"):
        rungs = {step: {name: numbers[name] for name in names} for step, numbers in _rungs(directory / RUNGS).items()}
    summary = run_directory.read_summary(directory)
    if summary is not None and run_directory.is_complete(summary, config):
        with reading(store.path_of(directory), "train the points in another --workdir"):
            numbers = numbers_of(summary)
            measured = {name: numbers[name] for name in names}
        if (reason := not_finite(measured, metric)) is not None:
            return RunState(failure=reason, diverged=True, rungs=rungs)
        return RunState(measured=measured, rungs=rungs)
    path = directory / FAILURE
    if retry or not path.exists():
        return RunState(rungs=rungs)
    failure = read_json(path, dict, {"reason": str, "diverged": bool, "settings": str})
    if failure["settings"] != _settings(config):
        return RunState(rungs=rungs)
    return RunState(failure=failure["reason"], diverged=failure["diverged"], rungs=rungs)


def numbers_of(summary: Mapping[str, Any]) -> Numbers:
    """Return {name: value} of the losses and metrics in a run's summary by which search points can be judged.

    These are `LOSSES`, and the metrics of the last evaluation that are one number, not one for each layer, or that were
    not measured.
    """
    metrics = summary["validation"].items()
    return {name: summary[name] for name in LOSSES} | {
        name: value for name, value in metrics if value is None or isinstance(value, (int, float))
    }


def not_finite(numbers: Mapping[str, float | None], metric: str) -> str | None:
    """Return a sentence that names the first number of `LOSSES` and `metric` that is not finite; None if all are.

    Numbers that were not measured do not count.
    """
    for name in (*LOSSES, metric):
        if (value := numbers[name]) is not None and not math.isfinite(value):
            return f"{name} is not finite"
    return None


def _settings(config: ExperimentConfig) -> str:
    """Return a hash of the settings that may decide whether a run fails, such as batch size and devices.

    Settings at their defaults are left out, so that a setting that a later version adds does not change the hash.
    """
    defaults = schema.flat(schema.to_dict(ExperimentConfig()))
    settings = {
        name: value
        for name, value in schema.flat(schema.to_dict(config)).items()
        if not schema.is_among(name, NOT_OF_FAILURE) and (name not in defaults or defaults[name] != value)
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _rungs(path: epath.Path) -> dict[str, Numbers]:
    rungs = read_json(path) if path.exists() else {}
    check_fields(path, rungs, dict.fromkeys(rungs, dict))
    for numbers in rungs.values():
        measured = [name for name, value in numbers.items() if value is not None]
        check_fields(path, numbers, dict.fromkeys((*LOSSES, *measured), float))
    return rungs


def read_all(study: Study, workdir: epath.Path, retry: bool = False) -> States:
    """Return {(number of the point, seed): state} of every run of a search; `retry` leaves out recorded failures."""
    return {
        (number, seed): read(point.directory(workdir, seed), config, retry)
        for number, point in enumerate(study.points)
        for seed, config in point.configs.items()
    }


def write_failure(directory: epath.Path, config: ExperimentConfig, reason: str, diverged: bool) -> None:
    """Record in a run's directory that the run failed, so that it is not trained again with the same settings.

    reason: why it failed.
    diverged: whether a number of the run was not finite.
    """
    directory.mkdir(parents=True, exist_ok=True)
    failure = {"reason": reason, "diverged": diverged, "settings": _settings(config)}
    storage.write_whole(directory / FAILURE, json.dumps(failure, indent=2) + "\n")


def write_rung(directory: epath.Path, step: int, numbers: Mapping[str, float | None]) -> None:
    """Store in a run's directory its losses and metrics at a step at which it is compared with other runs."""
    rungs = _rungs(directory / RUNGS) | {str(step): dict(numbers)}
    storage.write_whole(directory / RUNGS, json.dumps(rungs, indent=2) + "\n")

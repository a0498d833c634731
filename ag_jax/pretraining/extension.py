"""Extension of finished runs: training continues when `training.steps` is raised.

The checkpoints of the milestones of the shorter run are kept. Their steps are in `kept_steps.json`, because the longer
run may have other milestones.
"""

import json
import sys
from collections.abc import Iterable

from etils import epath

from ag_jax.data.json_files import check_fields, read_json, reading
from ag_jax.distributed import storage
from ag_jax.grid import store
from ag_jax.pretraining.config import ExperimentConfig

KEPT = "kept_steps.json"


def is_finished(steps: int, workdir: epath.Path) -> bool:
    """Return whether the run in `workdir` was trained for all of its `steps` steps, and not ended before."""
    return (workdir / "checkpoints" / str(steps)).exists()  # of the weights alone, no training can go on


def begin(steps: int, config: ExperimentConfig, workdir: epath.Path) -> None:
    """Mark a finished run of `steps` steps as unfinished, so that training can extend it to `config.training.steps`.

    Prints both numbers. The run's result is deleted, and the steps of its milestones are stored; its `config.json` must
    still be that of the shorter run.
    """
    steps_to_keep = {*_stored_steps(workdir), *_steps(_stored_milestones(workdir), steps)}
    storage.write_whole(workdir / KEPT, json.dumps({"steps": sorted(steps_to_keep)}) + "\n")
    store.path_of(workdir).unlink(missing_ok=True)
    print(
        f"extending the run of {steps} steps to {config.training.steps}: from here on the learning rate and the "
        "coefficient of guidance follow the schedules of the longer run",
        file=sys.stderr,
        flush=True,
    )


def kept_steps(config: ExperimentConfig, workdir: epath.Path) -> tuple[int, ...]:
    """Return the steps whose checkpoints are never deleted: of the milestones now, and before the run was extended.

    Those of now are the `training.milestones` of the config and of `config.json`.
    """
    if not (workdir / "config.json").exists():
        return ()
    fractions = {*config.training.milestones, *_stored_milestones(workdir)}
    return tuple(sorted({*_stored_steps(workdir), *_steps(fractions, config.training.steps)}))


def _steps(fractions: Iterable[float], steps: int) -> set[int]:
    return {round(fraction * steps) for fraction in fractions}


def _stored_milestones(workdir: epath.Path) -> list[float]:
    """Return the milestones, as fractions of training, that a run's `config.json` holds; [] if there is no such file.

    A run may be resumed with other milestones, which are not written to `config.json`.
    """
    path = workdir / "config.json"
    if not path.exists():
        return []
    with reading(path):
        return read_json(path)["training"]["milestones"]


def _stored_steps(workdir: epath.Path) -> list[int]:
    """Return the steps of the milestones that a run had when `begin` extended it; [] if it was never extended."""
    path = workdir / KEPT
    if not path.exists():
        return []
    stored = read_json(path, fields={"steps": list})["steps"]
    values = {str(number): step for number, step in enumerate(stored)}
    check_fields(path, values, dict.fromkeys(values, int))
    return stored

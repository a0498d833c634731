"""Extension of finished runs: training continues when `training.steps` is raised.

The summary of the shorter run stays as `summary-STEPS.json`, and the checkpoints of its milestones are kept. Their
steps are in `kept_steps.json`, because the longer run may have other milestones.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence

from etils import epath

from ag_jax.data.json_files import check_fields, read_json, reading
from ag_jax.distributed import storage
from ag_jax.pretraining.config import ExperimentConfig

SUMMARY, KEPT = "summary.json", "kept_steps.json"
_EARLIER = re.compile(r"summary-(\d+)\.json")


def earlier_lengths(workdir: epath.Path) -> list[int]:
    """Return the values of `training.steps` that a run had before its extensions, ascending; [] if never extended."""
    matches = (_EARLIER.fullmatch(path.name) for path in workdir.iterdir()) if workdir.exists() else ()
    return sorted(int(match[1]) for match in matches if match)


def is_finished(steps: int, workdir: epath.Path) -> bool:
    """Return whether the run in `workdir` was trained for all of its `steps` steps."""
    if steps in earlier_lengths(workdir):
        return True
    # The run may have been ended by its time limit.
    path = workdir / SUMMARY
    return path.exists() and read_json(path, fields={"steps": int})["steps"] == steps


def begin(steps: int, config: ExperimentConfig, workdir: epath.Path) -> None:
    """Mark a finished run of `steps` steps as unfinished, so that training can extend it to `config.training.steps`.

    Prints both numbers. The run's summary is renamed. The steps of its milestones are stored; its `config.json` must
    still be that of the shorter run.
    """
    steps_to_keep = {*_stored_steps(workdir), *_steps(_stored_milestones(workdir), [*earlier_lengths(workdir), steps])}
    storage.write_whole(workdir / KEPT, json.dumps({"steps": sorted(steps_to_keep)}) + "\n")
    if (workdir / SUMMARY).exists():  # the new name may be taken: by an extension that was given up
        (workdir / SUMMARY).replace(workdir / f"summary-{steps}.json")
    print(
        f"extending the run of {steps} steps to {config.training.steps}: from here on the learning rate and the "
        "coefficient of guidance follow the schedules of the longer run",
        file=sys.stderr,
        flush=True,
    )


def kept_steps(config: ExperimentConfig, workdir: epath.Path) -> tuple[int, ...]:
    """Return the steps whose checkpoints are never deleted: training.milestones, now and before the run was extended.

    These are the `training.milestones`, stored or given now, of all lengths of the run, and those that it had when it
    was extended (`begin`).
    """
    fractions, lengths = {*config.training.milestones, *_stored_milestones(workdir)}, earlier_lengths(workdir)
    if (workdir / "config.json").exists():
        lengths = [*lengths, config.training.steps]
    return tuple(sorted({*_stored_steps(workdir), *_steps(fractions, lengths)}))


def _steps(fractions: Iterable[float], lengths: Sequence[int]) -> set[int]:
    return {round(fraction * steps) for fraction in fractions for steps in lengths}


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

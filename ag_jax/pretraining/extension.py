"""Extension of finished runs: training continues when `training.steps` is raised.

The summary of the shorter run stays as `summary-STEPS.json`, and its last checkpoint and milestones are kept.
"""

import re
import sys

from etils import epath

from ag_jax.data.json_files import read_json
from ag_jax.pretraining.config import ExperimentConfig

SUMMARY = "summary.json"
_EARLIER = re.compile(r"summary-(\d+)\.json")


def earlier_lengths(workdir: epath.Path) -> list[int]:
    """Return the values of `training.steps` that a run had before it was extended, ascending; none before it begins."""
    found = (_EARLIER.fullmatch(path.name) for path in workdir.iterdir()) if workdir.exists() else ()
    return sorted(int(match[1]) for match in found if match)


def is_finished(steps: int, workdir: epath.Path) -> bool:
    """Return whether the run in `workdir` was trained for all of its `steps` steps."""
    if steps in earlier_lengths(workdir):
        return True
    # The run may have been ended by its time limit; summaries of earlier versions have no number of steps.
    path = workdir / SUMMARY
    return path.exists() and read_json(path, dict).get("steps", steps) == steps


def begin(steps: int, config: ExperimentConfig, workdir: epath.Path) -> None:
    """Mark a finished run of `steps` steps as unfinished, so that training can extend the run to
    `config.training.steps`; print both numbers.

    For this, the run's summary is renamed.
    """
    if (workdir / SUMMARY).exists():
        (workdir / SUMMARY).rename(workdir / f"summary-{steps}.json")
    print(
        f"extending the run of {steps} steps to {config.training.steps}: from here on the learning rate and the "
        "coefficient of guidance follow the schedules of the longer run",
        file=sys.stderr,
        flush=True,
    )


def kept_steps(config: ExperimentConfig, workdir: epath.Path) -> tuple[int, ...]:
    """Return the steps of the milestones that a run had before it was resumed or extended; their checkpoints are never
    deleted.

    These are the `training.milestones`, stored or given now, of all lengths of the run.
    """
    fractions, lengths = set(config.training.milestones), earlier_lengths(workdir)
    # The run may have begun with other milestones, such as those of an earlier version.
    if (workdir / "config.json").exists():
        stored = read_json(workdir / "config.json", dict)
        fractions |= set(stored["training"]["milestones"] if "milestones" in stored.get("training", {}) else ())
        lengths = [*lengths, config.training.steps]
    return tuple(sorted({round(fraction * steps) for steps in lengths for fraction in fractions}))

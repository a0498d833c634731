"""Trials of a suite (one task, point of its sweep and seed each), and the results in their directories."""

import dataclasses
import math
from typing import Any

from etils import epath

from ag_jax.finetuning.config import Recipe, in_name, point_settings
from ag_jax.grid import store
from ag_jax.grid.cells import Result
from ag_jax.interop import finetuned
from ag_jax.training.checkpoint import ASIDE, steps_in

CHECKPOINTS = "checkpoints"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One fine-tuning of a suite: a task with a point of its sweep, a seed and perhaps a fold.

    task: name of the task.
    recipe: the settings of the task; those that its `sweep` lists have their values at the point.
    learning_rate: peak learning rate.
    batch_size: batch size in examples.
    seed: seed of randomly initialised parameters, batches and dropout.
    fold: number of the fold of cross-validation, from 0; None without folds.
    """

    task: str
    recipe: Recipe
    learning_rate: float
    batch_size: int
    seed: int
    fold: int | None = None

    @property
    def swept(self) -> dict[str, float]:
        """The values of the settings that the recipe's `sweep` lists, {name: value}."""
        return {name: getattr(self.recipe, name) for name in self.recipe.sweep.values}

    @property
    def point(self) -> dict[str, Any]:
        """The settings of the trial's point of the sweep, {name: value}, as `result.json` stores them."""
        return point_settings(self.learning_rate, self.batch_size, self.swept)

    @property
    def name(self) -> str:
        """The name of the trial's directory, made of learning rate, batch size, swept settings, seed and fold."""
        swept = "".join(f"-{name}{in_name(value)}" for name, value in self.swept.items())
        fold = "" if self.fold is None else f"-fold{self.fold}"
        return f"lr{self.learning_rate:g}-bs{self.batch_size}{swept}-seed{self.seed}{fold}"


def is_done(directory: epath.Path) -> bool:
    """Return whether a trial is done, that is whether `result.json`, its last file, exists."""
    return store.path_of(directory).exists()


def is_begun(directory: epath.Path) -> bool:
    """Return whether a trial's directory holds something worth keeping: a result, or the checkpoint of an epoch."""
    return is_done(directory) or any(steps_in(directory / name) for name in (CHECKPOINTS, ASIDE))


def is_trial(directory: epath.Path) -> bool:
    """Return whether a directory holds the result of a trial."""
    result = store.read(directory)
    return result is not None and "task" in result.facts


def read_result(directory: epath.Path) -> dict[str, Any]:
    """Return the facts of a finished trial's result; of a failed one, with the reason as `failed`.

    Raises ValueError, with the file's name, if it is missing or damaged, or if metrics are not finite.
    """
    result, path = store.read(directory), store.path_of(directory)
    if result is None:
        raise FileNotFoundError(f"{path} does not exist: expected the result of a trial")
    if not result.is_done:
        return {**result.facts, "failed": result.reason}
    for name, value in result.facts["metrics"].items():
        if not math.isfinite(value):
            raise ValueError(f"{path}: expected a finite {name}, got {value}; delete {directory} to train it again")
    return dict(result.facts)


def check_result(trial: Trial, directory: epath.Path, result: dict[str, Any]) -> None:
    """Raise ValueError if the result in a trial's directory belongs to a trial with other settings."""
    names = ("task", "learning_rate", "batch_size", "seed", "fold")
    expected = {name: getattr(trial, name) for name in names} | trial.swept
    stored = {name: result.get(name) for name in names} | result.get("swept", {})
    for name in expected | stored:
        if not _is_same(stored.get(name), expected.get(name)):
            raise ValueError(
                f"{store.path_of(directory)} is the result of another trial: expected {name}={expected.get(name)}, got "
                f"{stored.get(name)}; delete {directory} to train the trial itself"
            )


def _is_same(stored: Any, expected: Any) -> bool:
    """Return whether two settings are equal, floats up to a relative tolerance of 1e-5.

    The names of trials' directories have no more digits.
    """
    if isinstance(stored, float) and isinstance(expected, float):
        return math.isclose(stored, expected, rel_tol=1e-5)
    return stored == expected


def failure(trial: Trial, message: str) -> Result:
    """Return the result of a failed trial, which has no metrics."""
    facts = {
        "task": trial.task,
        **trial.point,
        "seed": trial.seed,
        **({} if trial.fold is None else {"fold": trial.fold}),
    }
    return Result(facts, status="diverged", reason=message)


def tidy(directory: epath.Path, keep: bool) -> None:
    """Delete the checkpoints of a finished trial, and its weights unless `keep` is set.

    Checkpoints are deleted last, so that the next call completes a call that was killed.
    """
    if (directory / CHECKPOINTS).exists():
        if not keep and (directory / finetuned.FOLDER).exists():
            (directory / finetuned.FOLDER).rmtree()
        (directory / CHECKPOINTS).rmtree()

"""Trials of a suite (one task, point of its sweep and seed each), and the results in their directories."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
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


def trials_of(task: str, recipe: Recipe, seeds: Sequence[int]) -> Iterator[Trial]:
    """Yield every trial of a task with this recipe and these seeds, ordered by point of the sweep, seed and fold."""
    for learning_rate, batch_size, swept in recipe.points:
        at_point = dataclasses.replace(recipe, **swept)
        for seed in seeds:
            for fold in range(recipe.folds) if recipe.folds else (None,):
                yield Trial(task, at_point, learning_rate, batch_size, seed, fold)


def directory_of(workdir: epath.Path, trial: Trial) -> epath.Path:
    """Return the directory of a trial in `workdir`, the directory of its suite."""
    return workdir / trial.task / trial.name


def is_begun(directory: epath.Path) -> bool:
    """Return whether a trial's directory holds something worth keeping: a result, or the checkpoint of an epoch."""
    has_result = store.path_of(directory).exists()
    return has_result or any(steps_in(directory / name) for name in (CHECKPOINTS, ASIDE))


def read(directory: epath.Path) -> Result | None:
    """Return the result of a trial, of which the directory may be; None if it holds none.

    Raises ValueError, with the file's name, if the result or one of its files is damaged.
    """
    result = store.read(directory)
    return result if result is not None and "task" in result.facts else None


def predictions(directory: epath.Path, result: Result, split: str) -> list[dict[str, Any]]:
    """Return a trial's predictions for a split, a dict for each example; [] for a split without predictions.

    Raises ValueError, with the file's name, if the file is damaged.
    """
    artifact = result.artifacts.get(split)
    text = "" if artifact is None else store.read_text(directory, artifact)
    # Not `splitlines`: an answer may contain other line separators, such as U+2028, which JSON writes as they are.
    return [json.loads(line) for line in text.split("\n") if line]


def failure(trial: Trial, message: str) -> Result:
    """Return the result of a failed trial, which has no metrics."""
    return Result(facts_of(trial), status="diverged", reason=message)


def facts_of(trial: Trial) -> dict[str, Any]:
    """Return the facts of a trial's result by which it is told from the other trials of its suite."""
    fold = {} if trial.fold is None else {"fold": trial.fold}
    return {"task": trial.task, "seed": trial.seed, **trial.point, **fold}


def tidy(directory: epath.Path, keep: bool) -> None:
    """Delete the checkpoints of a finished trial, and its weights unless `keep` is set.

    Checkpoints are deleted last, so that the next call completes a call that was killed.
    """
    if (directory / CHECKPOINTS).exists():
        if not keep and (directory / finetuned.FOLDER).exists():
            (directory / finetuned.FOLDER).rmtree()
        (directory / CHECKPOINTS).rmtree()

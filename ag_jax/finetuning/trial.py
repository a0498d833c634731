"""Trials of a suite (one task, learning rate, batch size and seed each), and the results in their directories."""

import dataclasses
import json
import math
from typing import Any

from etils import epath

from ag_jax.data.json_files import check_fields, read_json
from ag_jax.distributed import storage
from ag_jax.finetuning.config import Recipe
from ag_jax.interop import finetuned
from ag_jax.training.checkpoint import ASIDE, steps_in

CHECKPOINTS, RESULT = "checkpoints", "result.json"


@dataclasses.dataclass(frozen=True)
class Trial:
    """One fine-tuning of a suite: a task with a learning rate, a batch size, a seed and perhaps a fold.

    task: name of the task.
    recipe: the settings of the task.
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
    def name(self) -> str:
        """The name of the trial's directory in the directory of its task."""
        fold = "" if self.fold is None else f"-fold{self.fold}"
        return f"lr{self.learning_rate:g}-bs{self.batch_size}-seed{self.seed}{fold}"


def is_begun(directory: epath.Path) -> bool:
    """Return whether a trial's directory holds something worth keeping: a result, or the checkpoint of an epoch."""
    return (directory / RESULT).exists() or any(steps_in(directory / name) for name in (CHECKPOINTS, ASIDE))


def read_result(directory: epath.Path) -> dict[str, Any]:
    """Read the `result.json` of a finished trial.

    Raises ValueError, with the file's name, if the file is damaged or has metrics that are not finite.
    """
    path = directory / RESULT
    result = read_json(path, dict, {"task": str, "learning_rate": float, "batch_size": int, "seed": int})
    if "failed" not in result:
        counts = dict.fromkeys(("best_epoch", "truncated", "cut_words", "lost", "skipped"), int)
        check_fields(path, result, {"metrics": dict, "epochs": list, "examples": dict, "seconds": float, **counts})
        check_fields(path, result["metrics"], dict.fromkeys(result["metrics"], float))
        for name, value in result["metrics"].items():
            if not math.isfinite(value):
                raise ValueError(f"{path}: expected a finite {name}, got {value}; delete {directory} to train it again")
        check_fields(path, result["examples"], dict.fromkeys(("train", "validation"), int))
    return result


def check_result(trial: Trial, directory: epath.Path, result: dict[str, Any]) -> None:
    """Raise ValueError if a result is that of another trial than the one to which its directory belongs."""
    for name in ("task", "learning_rate", "batch_size", "seed", "fold"):
        theirs: Any = result.get(name)
        ours = getattr(trial, name)
        is_same = math.isclose(theirs, ours, rel_tol=1e-5) if name == "learning_rate" else theirs == ours
        if not is_same:
            raise ValueError(
                f"{directory / RESULT} is the result of another trial: expected {name}={ours}, got {theirs}; delete "
                f"{directory} to train the trial itself"
            )


def write_failure(trial: Trial, directory: epath.Path, message: str) -> None:
    """Write a failed trial's `result.json`, with `failed` instead of metrics, and delete its checkpoints."""
    point = {"learning_rate": trial.learning_rate, "batch_size": trial.batch_size, "seed": trial.seed}
    result = {"task": trial.task, **point, **({} if trial.fold is None else {"fold": trial.fold}), "failed": message}
    storage.write_whole(directory / RESULT, json.dumps(result, indent=2) + "\n")
    tidy(directory, keep=False)


def tidy(directory: epath.Path, keep: bool) -> None:
    """Delete the checkpoints of a finished trial, and its weights unless `keep` is set.

    Checkpoints are deleted last, so that the next call completes a call that was killed.
    """
    if (directory / CHECKPOINTS).exists():
        if not keep and (directory / finetuned.FOLDER).exists():
            (directory / finetuned.FOLDER).rmtree()
        (directory / CHECKPOINTS).rmtree()

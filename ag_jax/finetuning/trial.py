"""Trials, one point of a task's sweep with one seed each, and the results in their directories."""

import dataclasses
import json
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
    """One point of a task's sweep with one seed, and with one fold of its cross-validation if it has one."""

    task: str
    recipe: Recipe
    learning_rate: float
    batch_size: int
    seed: int
    fold: int | None = None

    @property
    def name(self) -> str:
        """Of its directory, below that of the task."""
        fold = "" if self.fold is None else f"-fold{self.fold}"
        return f"lr{self.learning_rate:g}-bs{self.batch_size}-seed{self.seed}{fold}"


def is_begun(directory: epath.Path) -> bool:
    """Whether a trial's directory holds something worth keeping: a result, or the checkpoint of an epoch."""
    return (directory / RESULT).exists() or any(steps_in(directory / name) for name in (CHECKPOINTS, ASIDE))


def read_result(directory: epath.Path) -> dict[str, Any]:
    """The `result.json` of a trial that is done. Raises ValueError, which names the file, if it is damaged."""
    path = directory / RESULT
    result = read_json(path, dict, {"task": str, "learning_rate": float, "batch_size": int, "seed": int})
    if "failed" not in result:
        counts = dict.fromkeys(("best_epoch", "truncated", "cut_words", "lost", "skipped"), int)
        check_fields(path, result, {"metrics": dict, "epochs": list, "examples": dict, "seconds": float, **counts})
        check_fields(path, result["metrics"], dict.fromkeys(result["metrics"], float))
        check_fields(path, result["examples"], dict.fromkeys(("train", "validation"), int))
    return result


def write_failure(trial: Trial, directory: epath.Path, message: str) -> None:
    """End a trial that cannot go on: a `result.json` with `failed` instead of metrics. Its checkpoints go."""
    point = {"learning_rate": trial.learning_rate, "batch_size": trial.batch_size, "seed": trial.seed}
    result = {"task": trial.task, **point, **({} if trial.fold is None else {"fold": trial.fold}), "failed": message}
    storage.write_whole(directory / RESULT, json.dumps(result, indent=2) + "\n")
    tidy(directory, keep=False)


def tidy(directory: epath.Path, keep: bool) -> None:
    """Remove what a trial that is done needs no more, checkpoints last: a kill in between is made good by the next call."""
    if (directory / CHECKPOINTS).exists():
        if not keep and (directory / finetuned.FOLDER).exists():
            (directory / finetuned.FOLDER).rmtree()
        (directory / CHECKPOINTS).rmtree()

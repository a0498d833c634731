"""Metrics: sums while they are collected, numbers when they are written."""

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from etils import epath

Sums = dict[str, tuple[Any, Any]]  # name -> (total, weight), numbers or lists of numbers, one for each layer

# Fields of a row of metrics.jsonl that depend on the clock; everything else is the same whenever a run is repeated.
CLOCK_FIELDS = ("seconds", "tokens_per_second")


def add(sums: Sums, metrics: Sums) -> Sums:
    """Sums plus one step's (total, weight), in float64; lists add element by element."""
    added = dict(sums)
    for name, (total, weight) in metrics.items():
        old_total, old_weight = sums.get(name, (0.0, 0.0))
        added[name] = (_plus(old_total, total), _plus(old_weight, weight))
    return added


def _plus(left: Any, right: Any) -> Any:
    return (np.asarray(left, np.float64) + np.asarray(right, np.float64)).tolist()


def divide(sums: Sums) -> dict[str, Any]:
    """total / weight of each metric: a number, or a list of them; None where the weight is 0."""

    def quotient(total: Any, weight: Any) -> Any:
        if isinstance(total, list):
            return [quotient(one, of) for one, of in zip(total, weight, strict=True)]
        return total / weight if weight else None

    return {name: quotient(total, weight) for name, (total, weight) in sums.items()}


class MetricWriter:
    """Rows of `metrics.jsonl` in a run directory, and the same as TensorBoard events and, if asked for, to wandb.

    Opened at step s it drops the rows after s: those that a run which died left behind, and will now be written again.
    """

    def __init__(self, workdir: epath.Path, step: int, *, tensorboard: bool = True, wandb: str = ""):
        self._path = workdir / "metrics.jsonl"
        if self._path.exists():
            kept = [row for row in read_metrics(workdir) if row["step"] <= step]
            partial = self._path.with_suffix(".partial")
            partial.write_text("".join(json.dumps(row) + "\n" for row in kept))
            partial.replace(self._path)
        self._events = self._wandb = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            self._events = SummaryWriter(str(workdir / "tensorboard"), purge_step=step + 1 if step else None)
        if wandb:
            self._wandb = _start_wandb(wandb, workdir)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, which has the keys `step` and `split`, and is on disk when this returns."""
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        scalars = dict(_scalars(row))
        for name, value in scalars.items() if self._events else ():
            self._events.add_scalar(name, value, row["step"])
        if self._wandb:
            self._wandb.log(scalars, step=row["step"])

    def close(self) -> None:
        """Flush and close."""
        if self._events:
            self._events.close()
        if self._wandb:
            self._wandb.finish()


def _scalars(row: dict[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in row.items():
        if name in ("step", "split") or value is None:
            continue
        if isinstance(value, list):
            for layer, of_layer in enumerate(value):
                if of_layer is not None:
                    yield f"{row['split']}/{name}/layer_{layer + 1:02d}", of_layer
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield f"{row['split']}/{name}", value


def _start_wandb(project: str, workdir: epath.Path) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            f"training.wandb={project!r} needs the package wandb: pip install 'ag_jax[wandb]', or leave training.wandb empty"
        ) from error
    identity = workdir / "wandb_id"
    if not identity.exists():
        identity.write_text(wandb.util.generate_id())
    return wandb.init(project=project, id=identity.read_text(), resume="allow", dir=str(workdir))


def read_metrics(workdir: epath.Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`; a last line that a dying run cut off is left out."""
    path = epath.Path(workdir) / "metrics.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: is {workdir} the directory of a run?")
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows

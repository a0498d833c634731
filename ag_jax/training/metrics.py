"""Metrics: sums while they are collected, numbers when they are written."""

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from etils import epath

from ag_jax.training import storage

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


def not_finite(metrics: Sums) -> list[str]:
    """Those of a step's losses, and the norms of its gradient, that are no numbers any more."""
    watched = [*losses(metrics), "loss", "gradient_norm", "adversary_gradient_norm"]
    return [name for name in watched if name in metrics and not np.isfinite(metrics[name][0]).all()]


def losses(names: Iterable[str], first: str = "") -> list[str]:
    """Those of some metrics that are the loss of a term, with `first` before the others."""
    found = [name for name in names if name.endswith("_loss")]
    return sorted(found, key=lambda name: name != first)


class MetricWriter:
    """Rows of `metrics.jsonl` in a run directory, and the same as TensorBoard events and, if asked for, to wandb.

    In an object store rows and events are there when `flush` returns, on a disk when `write` does. Opened at step s it drops
    the rows after s: those that a run which died left behind, and will now be written again.
    """

    def __init__(self, workdir: epath.Path, step: int, *, tensorboard: bool = True, wandb: str = ""):
        path = workdir / "metrics.jsonl"
        kept = [row for row in read_metrics(workdir) if row["step"] <= step] if path.exists() else []
        self._rows = storage.GrowingFile(path, "".join(json.dumps(row) + "\n" for row in kept))
        self._events = self._events_copy = self._wandb = None
        if tensorboard:
            from tensorboardX import SummaryWriter

            events = workdir / "tensorboard"
            if storage.is_remote(events):  # tensorboardX would need the library of each store
                self._events_copy = storage.LocalCopy(events)
                events = self._events_copy.path
            self._events = SummaryWriter(str(events), purge_step=step + 1 if step else None)
        if wandb:
            self._wandb = _start_wandb(wandb, workdir)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, which has the keys `step` and `split`."""
        self._rows.add(json.dumps(row) + "\n")
        scalars = dict(_scalars(row))
        for name, value in scalars.items() if self._events else ():
            self._events.add_scalar(name, value, row["step"])
        if self._wandb:
            self._wandb.log(scalars, step=row["step"])

    def flush(self) -> None:
        """Return when all rows are where they belong."""
        self._rows.flush()
        if self._events_copy:
            self._events.flush()
            self._events_copy.flush()

    def close(self) -> None:
        """Flush and close."""
        self._rows.flush()
        if self._events:
            self._events.close()
        if self._events_copy:
            self._events_copy.close()
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
    local = None if storage.is_remote(workdir) else str(workdir)  # None: wandb's own choice
    return wandb.init(project=project, id=identity.read_text(), resume="allow", dir=local)


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

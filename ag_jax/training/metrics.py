"""Metrics: sums while they are collected, numbers when they are written."""

import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from etils import epath

from ag_jax.distributed import storage
from ag_jax.training.wandb_run import WandbRun

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
    """Rows of `metrics.jsonl` in a run directory, and the same as TensorBoard events and to a run at wandb, where there is one.

    In an object store rows and events are there when `flush` returns, on a disk when `write` does. Opened at step s it drops
    the rows after s: those that a run which died left behind, and will now be written again. `evaluated` says whether the
    evaluation of step s belongs to the rows that stay.
    """

    def __init__(
        self,
        workdir: epath.Path,
        step: int,
        *,
        evaluated: bool = False,
        tensorboard: bool = True,
        wandb: WandbRun | None = None,
    ):
        self._workdir, self._wandb = workdir, wandb
        path = workdir / "metrics.jsonl"
        rows = read_metrics(workdir) if path.exists() else []
        kept = [row for row in rows if row["step"] < step + (evaluated or row["split"] == "train")]
        self._events = None
        with self._explained():
            self._rows = storage.GrowingFile(path, "".join(json.dumps(row) + "\n" for row in kept))
            if tensorboard:
                self._events = _Events(workdir / "tensorboard", step)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, which has the keys `step` and `split`. Raises OSError that says what to do about a full disk."""
        scalars = dict(_scalars(row))
        with self._explained():
            self._rows.add(json.dumps(row) + "\n")
            if self._events:
                self._events.add(scalars, row["step"])
        if self._wandb:
            self._wandb.log(row["step"], scalars)

    def flush(self) -> None:
        """Return when all rows are where they belong."""
        with self._explained():
            self._rows.flush()
            if self._events:
                self._events.flush()

    def close(self, failed: bool = False) -> None:
        """Flush and close; `failed` says how the run at wandb ended."""
        with self._explained():
            self._rows.flush()
            if self._events:
                self._events.close()
        if self._wandb:
            self._wandb.finish(failed)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"cannot write metrics to {self._workdir}: {error.strerror or error}\n"
                "Checkpoints that are whole stay so. Free some disk space and run the same command again"
            ) from error


class _Events:
    """A file of TensorBoard events, written by whoever calls.

    tensorboardX's own writer hands events to a thread; on a full disk that dies unseen, and then everybody waits for it.
    """

    def __init__(self, folder: epath.Path, step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._copy = storage.LocalCopy(folder) if storage.is_remote(folder) else None  # it knows no object stores
        folder = self._copy.path if self._copy else folder
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        if step:  # tells TensorBoard to forget what a run that died wrote after this step
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def add(self, scalars: dict[str, float], step: int) -> None:
        """All numbers of a row, as one event."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def flush(self) -> None:
        """Bring the file to an object store, if that is where it belongs."""
        if self._copy:
            self._copy.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
        if self._copy:
            self._copy.close()


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


def read_metrics(workdir: epath.Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`; a last line that a dying run cut off is left out.

    Raises FileNotFoundError if there is no such file, ValueError that names the line if it is damaged elsewhere.
    """
    path = epath.Path(workdir) / "metrics.jsonl"
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: is {workdir} the directory of a run?")
    rows = []
    *lines, unfinished = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is None:
            raise ValueError(
                f"line {number} of {path} is damaged: delete that line, or the file to do without the earlier rows"
            )
        rows.append(row)
    last = _row(unfinished)
    return rows if last is None else [*rows, last]


def _row(line: bytes) -> dict[str, Any] | None:
    """A row of metrics, None if the line does not hold one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("split"), str)
    return row if is_row else None

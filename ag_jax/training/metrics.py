"""Training metrics: sums with weights while they are collected, divided when they are written to `metrics.jsonl`."""

import contextlib
import json
import math
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from ag_jax.distributed import storage
from ag_jax.training.wandb_run import WandbRun

# name -> (total, weight): numbers, lists with a number for each layer, or a list of counts of classes and their sum.
Sums = dict[str, tuple[Any, Any]]

# Fields of a row of metrics.jsonl that depend on the clock; everything else is the same whenever a run is repeated.
CLOCK_FIELDS = ("seconds", "tokens_per_second", "mfu")


def add(sums: Sums, metrics: Sums) -> Sums:
    """Return the sums {metric: (total, weight)} with one step's metrics added in float64, elementwise for lists."""
    added = dict(sums)
    for name, (total, weight) in metrics.items():
        old_total, old_weight = sums.get(name, (0.0, 0.0))
        added[name] = (_plus(old_total, total), _plus(old_weight, weight))
    return added


def _plus(left: Any, right: Any) -> Any:
    return (np.asarray(left, np.float64) + np.asarray(right, np.float64)).tolist()


def divide(sums: Sums) -> dict[str, Any]:
    """Return {metric: total / weight}, with a number or a list of numbers by layer; None for a weight of 0.

    Of a list of counts with one weight it is the share of the most frequent class.
    """

    def quotient(total: Any, weight: Any) -> Any:
        if isinstance(weight, list):
            return [quotient(*pair) for pair in zip(total, weight, strict=True)]
        if isinstance(total, list):
            total = max(total)
        return total / weight if weight else None

    return {name: quotient(total, weight) for name, (total, weight) in sums.items()}


def not_finite(metrics: Sums) -> list[str]:
    """Return the names of a step's losses and gradient norms that are not finite."""
    watched = [*losses(metrics), "loss", "gradient_norm", "adversary_gradient_norm"]
    return [name for name in watched if name in metrics and not np.isfinite(metrics[name][0]).all()]


def losses(names: Iterable[str], first: str = "") -> list[str]:
    """Return those of the `names` that end in `_loss`, in the given order, but with `first` in front."""
    return sorted((name for name in names if name.endswith("_loss")), key=lambda name: name != first)


class MetricWriter:
    """Writer of metrics to `metrics.jsonl` in a run directory and, optionally, to TensorBoard and Weights & Biases.

    On a disk, rows and events are written when `write` returns, in an object store when `flush` returns. A writer
    opened at step s deletes the rows after s, which a killed run left behind and the resumed run writes again.

    step: step from which the run starts or resumes.
    evaluated: whether the evaluation at `step` was done, so that its row is not deleted either.
    logged: whether the steps up to `step` have their train row, so that a row at `step` is not deleted.
    tensorboard: whether TensorBoard events are written.
    wandb: run that also gets the rows; None sends nothing.

    The attribute `digest` is the length in bytes of `metrics.jsonl` and its CRC-32 checksum, see `check_rows`.
    """

    def __init__(
        self,
        workdir: epath.Path,
        step: int,
        *,
        evaluated: bool = False,
        logged: bool = True,
        tensorboard: bool = True,
        wandb: WandbRun | None = None,
    ):
        self._workdir, self._wandb = workdir, wandb
        path = workdir / "metrics.jsonl"
        rows = read_metrics(workdir) if path.exists() else []
        rows = [row for row in rows if row["step"] < step + (logged if row["split"] == "train" else evaluated)]
        self._events, text = None, "".join(json.dumps(row) + "\n" for row in rows)
        self.digest = _digest(text.encode())
        with self._explained():
            self._rows = storage.GrowingFile(path, text)
            if tensorboard:
                self._events = _Events(workdir / "tensorboard", step)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row of metrics, which must have `step` and `split`, to `metrics.jsonl` and to the other open logs.

        Raises OSError with advice if the disk is full.
        """
        scalars, line = dict(_scalars(row)), json.dumps(row) + "\n"
        self.digest = _digest(line.encode(), self.digest)
        with self._explained():
            self._rows.add(line)
            if self._events:
                self._events.add(scalars, row["step"])
        if self._wandb:
            self._wandb.log(row["step"], scalars)

    def flush(self) -> None:
        """Write or upload all rows of metrics and TensorBoard events that are still buffered."""
        with self._explained():
            self._rows.flush()
            if self._events:
                self._events.flush()

    def close(self, failed: bool = False) -> None:
        """Flush and close all outputs, even if one fails; `failed` marks the run at Weights & Biases as failed."""
        with contextlib.ExitStack() as last:  # calls, from the last to the first, whatever fails
            if self._wandb:
                last.callback(self._wandb.finish, failed)
            last.enter_context(self._explained())
            if self._events:
                last.callback(self._events.close)
            self._rows.flush()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Context manager that adds advice to an OSError raised while metrics are written."""
        try:
            yield
        except storage.StoreError as error:
            raise type(error)(f"cannot write metrics: {error}. Complete checkpoints are not affected") from error
        except OSError as error:
            raise OSError(
                f"cannot write metrics to {self._workdir}: {error.strerror or error}\n"
                "Complete checkpoints are not affected. Free some disk space and run the same command again"
            ) from error


class _Events:
    """Writer of a file of TensorBoard events, in the calling thread.

    tensorboardX's `SummaryWriter` uses a thread, which dies without an error on a full disk, so that its callers hang.
    """

    def __init__(self, folder: epath.Path, step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._copy = storage.LocalCopy(folder) if storage.is_remote(folder) else None  # EventsWriter needs a disk
        folder = self._copy.path if self._copy else folder
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"))
        if step:  # makes TensorBoard discard the events that a killed run wrote after this step
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._writer.write_event(event_pb2.Event(wall_time=time.time(), step=step + 1, session_log=start))

    def add(self, scalars: dict[str, float], step: int) -> None:
        """Write all numbers of a row of metrics as one TensorBoard event."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def flush(self) -> None:
        """Upload the TensorBoard file, if the run directory is in an object store."""
        if self._copy:
            self._copy.flush()

    def close(self) -> None:
        """Close the TensorBoard file, and upload the file if the run directory is in an object store."""
        try:
            self._writer.close()
        finally:
            if self._copy:
                self._copy.close()


def _scalars(row: dict[str, Any]) -> Iterable[tuple[str, float]]:
    for name, value in row.items():
        if name in ("step", "split") or value is None:
            continue
        if isinstance(value, list):
            for layer, of_layer in enumerate(value):
                if of_layer is not None:
                    yield f"{row['split']}/{name}/layer_{layer:02d}", of_layer
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield f"{row['split']}/{name}", value


def _digest(data: bytes, before: Sequence[int] = (0, 0)) -> list[int]:
    """Return [length, CRC-32 checksum] of bytes that follow others, whose length and checksum are `before`."""
    return [before[0] + len(data), zlib.crc32(data, before[1])]


def check_rows(workdir: epath.Path, digest: Sequence[int] | None) -> None:
    """Raise ValueError if `metrics.jsonl` does not begin with the rows that it had when a checkpoint was saved.

    If there is no such file, print a warning.

    digest: `MetricWriter.digest` when the checkpoint was saved; None, and nothing is checked, without a checkpoint.
    """
    if digest is None:
        return
    path = workdir / "metrics.jsonl"
    if not path.exists():
        print(f"warning: {path} is missing, so the rows before the newest checkpoint are lost", file=sys.stderr)
    elif _digest(path.read_bytes()[: digest[0]]) != [*digest]:
        raise ValueError(
            f"{path} was changed: expected it to begin with the {digest[0]:,} bytes that it had when the newest "
            "checkpoint was saved; put back a copy, or delete the file to go on without its rows"
        )


def read_metrics(workdir: epath.Path) -> list[dict[str, Any]]:
    """Read the rows of a run's `metrics.jsonl`, without an incomplete last line, which a killed run may leave.

    Raises FileNotFoundError if there is no such file, and ValueError, naming the line, if any other line is damaged.
    """
    path = epath.Path(workdir) / "metrics.jsonl"
    rows = []
    *lines, unfinished = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        row = _row(line)
        if row is None:
            raise ValueError(
                f"line {number} of {path} is damaged: put back a copy, or delete the file if its rows are not needed"
            )
        rows.append(row)
    last = _row(unfinished)
    return rows if last is None else [*rows, last]


def _row(line: bytes) -> dict[str, Any] | None:
    """Return the row of metrics that a line of `metrics.jsonl` holds; None if the line holds no such row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("step"), int) and isinstance(row.get("split"), str)
    return row if is_row else None

"""Progress of a run on standard error: a bar on a terminal, lines elsewhere."""

import sys
from typing import Any

import rich.console
import rich.progress

from ag_jax.training import metrics


class Silence:
    """Stand-in for `ProgressLine` and `MetricWriter` on all hosts but the first, with methods that do nothing."""

    def update(self, row: dict[str, Any], seconds_left: float) -> None:
        """Do nothing."""

    def say(self, message: str) -> None:
        """Do nothing."""

    def write(self, row: dict[str, Any]) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self, failed: bool = False) -> None:
        """Do nothing."""


class ProgressLine:
    """Progress display of a run: step, losses, tokens per second and time left.

    name: name of the run, shown first.
    start: step at which the run starts or resumes.
    total: number of steps of the run.
    primary: name of the primary metric, shown before the other losses.
    """

    def __init__(self, name: str, start: int, total: int, primary: str):
        self._name, self._total, self._primary = name, total, primary
        self._bar = None
        console = rich.console.Console(stderr=True)
        if console.is_terminal:
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.description}"),
                rich.progress.BarColumn(),
                rich.progress.MofNCompleteColumn(),
                rich.progress.TextColumn("{task.fields[status]}"),
                console=console,
            )
            self._bar.start()
            self._task = self._bar.add_task(name, total=total, completed=start, status="compiling ...")
        else:
            print(f"{name}: step {start} of {total}, compiling the step ...", file=sys.stderr, flush=True)

    def update(self, row: dict[str, Any], seconds_left: float) -> None:
        """Show a row of training metrics, and the estimated number of seconds left."""
        losses = "  ".join(f"{name} {row[name]:.3f}" for name in metrics.losses(row, self._primary))
        minutes, seconds = divmod(round(seconds_left), 60)
        status = f"{losses}  {row['tokens_per_second']:,.0f} tokens/s  {minutes}:{seconds:02d} left"
        if self._bar:
            self._bar.update(self._task, completed=row["step"], status=status)
        else:
            print(f"{self._name}: step {row['step']}/{self._total}  {status}", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Print a message above the bar, or as a line if there is no bar."""
        if self._bar:
            self._bar.console.print(f"{self._name}: {message}", highlight=False, markup=False)
        else:
            print(f"{self._name}: {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop the bar and restore the terminal."""
        if self._bar:
            self._bar.stop()

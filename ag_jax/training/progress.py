"""What a person sees while a run goes on: a bar on a terminal, a line now and then elsewhere."""

import sys
from typing import Any

import rich.console
import rich.progress

from ag_jax.training import metrics


class Silence:
    """Takes the place of a `ProgressLine` and a `MetricWriter` on the hosts that neither talk nor write."""

    def update(self, row: dict[str, Any], seconds_left: float) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""

    def write(self, row: dict[str, Any]) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def close(self, failed: bool = False) -> None:
        """Nothing."""


class ProgressLine:
    """Step, losses, the `headline` first, tokens/s and time left of a run of `total` steps that starts at step `start`."""

    def __init__(self, name: str, start: int, total: int, headline: str):
        self._name, self._total, self._headline = name, total, headline
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
        """Show a row of training metrics."""
        losses = "  ".join(f"{name} {row[name]:.3f}" for name in metrics.losses(row, self._headline))
        minutes, seconds = divmod(round(seconds_left), 60)
        status = f"{losses}  {row['tokens_per_second']:,.0f} tokens/s  {minutes}:{seconds:02d} left"
        if self._bar:
            self._bar.update(self._task, completed=row["step"], status=status)
        else:
            print(f"{self._name}: step {row['step']}/{self._total}  {status}", file=sys.stderr, flush=True)

    def say(self, message: str) -> None:
        """Show a line that stays."""
        if self._bar:
            self._bar.console.print(f"{self._name}: {message}", highlight=False, markup=False)
        else:
            print(f"{self._name}: {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar:
            self._bar.stop()

"""Progress on standard error: a bar on a terminal, and a line for every tenth of some work."""

import sys
from collections.abc import Callable

import rich.console
import rich.progress
import rich.table


class Bar(rich.progress.Progress):
    """Context manager of a bar on a terminal, which moves while the program works; elsewhere nothing is shown.

    What is printed meanwhile appears above the bar.

    name: name of the work, shown before the bar.
    total: amount of the work; None if it is unknown, and the bar shows the time that has passed.
    stays: whether the bar stays on the terminal at the end.
    is_shown: whether it is shown at all.
    """

    def __init__(
        self,
        name: str,
        total: float | None = None,
        *,
        stays: bool = False,
        is_shown: bool = True,
    ):
        console = rich.console.Console(stderr=True)
        whole = rich.table.Column(no_wrap=True)
        super().__init__(
            rich.progress.SpinnerColumn("line", finished_text=""),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TimeElapsedColumn(whole) if total is None else rich.progress.MofNCompleteColumn("/", whole),
            rich.progress.TextColumn("{task.fields[status]}"),
            console=console,
            transient=not stays,
            redirect_stdout=sys.stdout.isatty(),  # the bar is on standard error
            disable=not (is_shown and console.is_terminal),
        )
        self._task = self.add_task(name, total=total, status="")

    def show(self, status: str, done: float | None = None) -> None:
        """Show another status, and another amount that is done; None leaves the amount as it is."""
        self.update(self._task, completed=done, status=status)

    def stop(self) -> None:
        """Stop the bar and restore the terminal."""
        if not self.disable:
            super().stop()


def tenths(label: str, unit: str) -> Callable[[int, int], None]:
    """Return a function of (number that is done, number of all) that prints a line for every tenth of some work."""
    printed = 0

    def show(done: int, total: int) -> None:
        nonlocal printed
        if (tenth := 10 * done // total) > printed:
            printed = tenth
            print(f"{label}: {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)

    return show

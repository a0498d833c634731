"""Progress on standard error: a bar on a terminal, one line that is overwritten in a notebook, lines elsewhere."""

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import rich.console
import rich.progress
import rich.table

# None shows progress, False shows nothing, and a function gets each row of training metrics, while nothing is shown.
Progress = bool | Callable[[Mapping[str, Any]], None] | None
_progress: contextvars.ContextVar[Progress] = contextvars.ContextVar("progress", default=None)


@contextlib.contextmanager
def progress(to: Progress) -> Iterator[None]:
    """Context manager in which progress is shown, not shown, or given to a function; see `Progress`."""
    token = _progress.set(None if to is True else to)
    try:
        yield
    finally:
        _progress.reset(token)


def say(message: str) -> None:
    """Print a message about progress, unless none is to be shown."""
    if _progress.get() is None:
        print(message, file=sys.stderr, flush=True)


def report(row: Mapping[str, Any]) -> None:
    """Give a row of training metrics to the function that is to get them, if there is one."""
    if callable(to := _progress.get()):
        to(row)


def is_notebook() -> bool:
    """Return whether the process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class Bar(rich.progress.Progress):
    """Context manager of a bar on a terminal, which moves while the program works; elsewhere nothing is shown.

    What is printed meanwhile appears above the bar. In a notebook it is a line of text, which needs no ipywidgets.

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
        console = rich.console.Console(stderr=True, force_jupyter=False)
        whole = rich.table.Column(no_wrap=True)
        is_shown, in_notebook = is_shown and _progress.get() is None, is_notebook()
        self._name, self._stays = name, stays
        self._line = "" if is_shown and in_notebook else None  # what the line of a notebook shows
        super().__init__(
            rich.progress.SpinnerColumn("line", finished_text=""),
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.TimeElapsedColumn(whole) if total is None else rich.progress.MofNCompleteColumn("/", whole),
            rich.progress.TextColumn("{task.fields[status]}"),
            console=console,
            transient=not stays,
            redirect_stdout=sys.stdout.isatty(),  # the bar is on standard error
            # The streams of a notebook's kernel say that they are terminals.
            disable=not (is_shown and console.is_terminal) or in_notebook,
        )
        self._task = self.add_task(name, total=total, status="")

    @property
    def is_live(self) -> bool:
        """Whether the bar, or its line in a notebook, is shown, so that its status need not be printed."""
        return self._line is not None or not self.disable

    def show(self, status: str, done: float | None = None) -> None:
        """Show another status, and another amount that is done; None leaves the amount as it is."""
        self.update(self._task, completed=done, status=status)
        if self._line is not None:
            task = self.tasks[0]
            amount = "" if task.total is None else f" {task.completed:,.0f}/{task.total:,.0f}"
            self._write(f"{self._name}{amount}  {status}")

    def stop(self) -> None:
        """Stop the bar and restore the terminal."""
        if not self.disable:
            super().stop()
        if self._line:
            self._write(self._line if self._stays else "", "\n" if self._stays else "\r")

    def _write(self, line: str, end: str = "") -> None:
        """Overwrite the line of a notebook."""
        sys.stdout.write(f"\r{line.ljust(len(self._line or ''))}{end}")
        sys.stdout.flush()
        self._line = line


def tenths(label: str, unit: str) -> Callable[[int, int], None]:
    """Return a function of (number that is done, number of all) that prints a line for every tenth of some work."""
    printed = 0

    def show(done: int, total: int) -> None:
        nonlocal printed
        if (tenth := 10 * done // total) > printed:
            printed = tenth
            say(f"{label}: {done:,} of {total:,} {unit}")

    return show

"""Progress: a bar on a terminal, one line that is overwritten in a notebook, and lines on standard error elsewhere."""

import contextlib
import contextvars
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import rich.console
import rich.progress
import rich.table

NOTEBOOK_EVERY = 0.2  # seconds between two updates of the line of a notebook
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
        print(message, file=sys.stdout if is_notebook() else sys.stderr, flush=True)


def report(row: Mapping[str, Any]) -> None:
    """Give a row of training metrics to the function that is to get them, if there is one."""
    if callable(to := _progress.get()):
        to(row)


def is_notebook() -> bool:
    """Return whether the process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


class Bar(rich.progress.Progress):
    """Context manager of a bar on a terminal, or a line of text in a notebook, which move while the program works.

    What is printed meanwhile appears above the bar. Elsewhere, as in a file, nothing is shown. The line of a notebook
    needs no ipywidgets.

    name: name of the work, shown before the bar.
    total: amount of the work; None if it is unknown, and the bar shows the time that has passed.
    stays: whether the bar or the line stays at the end.
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
        self._next, self._written = "", 0.0  # what it shows next, and when it was last written
        super().__init__(
            rich.progress.SpinnerColumn("line", finished_text=""),
            rich.progress.TextColumn("{task.description}", markup=False),
            rich.progress.BarColumn(),
            rich.progress.TimeElapsedColumn(whole) if total is None else rich.progress.MofNCompleteColumn("/", whole),
            rich.progress.TextColumn("{task.fields[status]}", markup=False),
            console=console,
            transient=not stays,
            redirect_stdout=sys.stdout.isatty(),  # the bar is on standard error
            # The streams of a notebook's kernel say that they are terminals.
            disable=not (is_shown and console.is_terminal) or in_notebook,
        )
        self._task = self.add_task(name, total=total, status="")

    @property
    def is_live(self) -> bool:
        """Whether the bar or the line of a notebook is shown; otherwise, a caller prints the status."""
        return self._line is not None or not self.disable

    def show(self, status: str, done: float | None = None) -> None:
        """Show another status, and another amount that is done; None leaves the amount as it is."""
        self.update(self._task, completed=done, status=status)
        if self._line is not None:
            task = self.tasks[0]
            amount = "" if task.total is None else f" {task.completed:,.0f}/{task.total:,.0f}"
            self._next = f"{self._name}{amount}  {status}"
            if time.monotonic() - self._written > NOTEBOOK_EVERY:
                self._write(self._next)

    def stop(self) -> None:
        """Stop the bar and restore the terminal."""
        if not self.disable:
            super().stop()
        if self._next:
            self._write(self._next if self._stays else "", "\n" if self._stays else "\r")
            self._line = self._next = ""

    def _write(self, line: str, end: str = "") -> None:
        """Overwrite the line of a notebook."""
        sys.stdout.write(f"\r{line.ljust(len(self._line or ''))}{end}")
        sys.stdout.flush()
        self._line, self._written = line, time.monotonic()


def tenths(label: str, unit: str) -> Callable[[int, int], None]:
    """Return a function of (number that is done, number of all) that prints a line for every tenth of some work."""
    printed = 0

    def show(done: int, total: int) -> None:
        nonlocal printed
        if (tenth := 10 * done // total) > printed:
            printed = tenth
            say(f"{label}: {done:,} of {total:,} {unit}")

    return show

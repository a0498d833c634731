"""Watchdog that ends a hanging run, after printing where it hangs, so that a launcher can restart the run.

Without a watchdog a hang prints nothing for hours, for example if a host waits for another one in a step, or a disk
does not answer.
"""

import contextlib
import faulthandler
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self

import jax

from ag_jax.distributed import hosts, interruption

# Additional seconds for compilation, here or on a host for which this one waits, and for reading a checkpoint.
COMPILING = 3600.0


class Watchdog:
    """Context manager that ends a run without progress, after printing the stacks of all threads.

    Progress is a step whose result is ready (`follow`), or a call of `beat` by the loop.

    seconds: time without progress after which the run ends; None means never.
    end: ends the process; it gets the exit status. None only prints the stacks.
    """

    def __init__(self, seconds: float | None, end: Callable[[int], None] | None = hosts.leave_at_once):
        self._seconds, self._end = seconds, end
        self._lock, self._done = threading.Lock(), threading.Event()
        self._underway: deque[tuple[int, jax.Array]] = deque()
        self._step: int | None = None  # the last step whose result is ready
        self._what, self._extra = "", 0.0
        self._last = time.monotonic()
        self._compiled: set[str] = set()

    def __enter__(self) -> Self:
        self.beat()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if self._seconds:
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat(self, what: str = "the next batch, or what the loop does between steps") -> None:
        """Report progress to the watchdog; `what` names the work that begins now."""
        with self._lock:
            self._last, self._what = time.monotonic(), what

    def follow(self, step: int, result: jax.Array) -> None:
        """Report a step that was sent to the devices; it counts as progress once `result` is ready."""
        with self._lock:
            self._underway.append((step, result))

    @contextlib.contextmanager
    def patience(self, what: str, seconds: float = COMPILING) -> Iterator[None]:
        """Context manager that allows `seconds` more than usual without progress, for the work named `what`."""
        self.beat(what)
        self._extra = seconds
        try:
            yield
        finally:
            self._extra = 0.0
            self.beat()

    def compiling(self, what: str) -> contextlib.AbstractContextManager:
        """Return a context that allows extra time for compilation at the first use of `what`, and none afterwards."""
        if what in self._compiled:
            return contextlib.nullcontext()
        self._compiled.add(what)
        return self.patience(f"compiling {what}")

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self._seconds / 10)):
            with self._lock:
                while self._underway and self._underway[0][1].is_ready():  # type: ignore[attr-defined]
                    self._step, _ = self._underway.popleft()
                    self._last = time.monotonic()
                silent, doing, limit = time.monotonic() - self._last, self._what, self._seconds + self._extra
                if self._underway:
                    doing = f"step {self._underway[0][0]} on the devices"
                    limit += COMPILING if self._step is None else 0.0  # the other hosts may still be compiling it
            if silent > limit:
                self._bark(silent, doing)
                return

    def _bark(self, silent: float, doing: str) -> None:
        print(
            f"watchdog: host {hosts.index()} made no progress for {silent:.0f} seconds "
            f"(step_timeout={self._seconds:g}); the last step that was done is {self._step}, it waits for: {doing}. "
            f"The stacks of all threads follow{', then the program ends' if self._end else ''}. "
            "Its checkpoints are complete: run the same command again to resume",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        if self._end:
            self._end(interruption.AGAIN)

"""The watchdog: a run that hangs says where, and ends, so that whoever launched it can start it again.

A hang is silent by nature: a host waits for another one in a step, a disk does not answer, and nothing is printed for hours.
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

from ag_jax.distributed import hosts

COMPILING = (
    3600.0  # seconds more for what compiles, here or on a host that this one waits for, or reads a whole checkpoint
)


class Watchdog:
    """Within this context a run that makes no progress for `seconds` dumps the stacks of all threads and ends; None: never.

    Progress is a step whose result is there (`follow`), or a word of the loop that something was done (`beat`).
    """

    def __init__(self, seconds: float | None, end: Callable[[int], None] = hosts.leave_at_once):
        self._seconds, self._end = seconds, end
        self._lock, self._done = threading.Lock(), threading.Event()
        self._underway: deque[tuple[int, jax.Array]] = deque()
        self._step: int | None = None  # the last one that was done here
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
        """Something was done; `what` comes next."""
        with self._lock:
            self._last, self._what = time.monotonic(), what

    def follow(self, step: int, result: jax.Array) -> None:
        """A step was sent to the devices; it is progress once its result is there."""
        with self._lock:
            self._underway.append((step, result))

    @contextlib.contextmanager
    def patience(self, what: str, seconds: float = COMPILING) -> Iterator[None]:
        """Within this context `seconds` more may pass."""
        self.beat(what)
        self._extra = seconds
        try:
            yield
        finally:
            self._extra = 0.0
            self.beat()

    def compiling(self, what: str) -> contextlib.AbstractContextManager:
        """Patience when it is entered for the first time, as a jitted function is then compiled."""
        if what in self._compiled:
            return contextlib.nullcontext()
        self._compiled.add(what)
        return self.patience(f"compiling {what}")

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self._seconds / 10)):
            with self._lock:
                while self._underway and self._underway[0][1].is_ready():
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
            "The stacks of all threads follow, then the program ends. Its checkpoints are whole: the same command goes on",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        self._end(hosts.AGAIN)

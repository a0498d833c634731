"""Progress of work that takes seconds or hours on standard error: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType

from ag_jax.distributed import terminal
from ag_jax.distributed.terminal import Bar

EVERY = 10.0  # seconds between two lines
SHORTEST = 1.0  # MB or million tokens of work that takes long enough for a bar
Say = Callable[[str], None]


def announcer(quiet: bool) -> Say:
    """Return a function that prints messages about the data; with `quiet`, one that prints nothing."""
    return (lambda message: None) if quiet else _print


def _print(message: str) -> None:
    terminal.say(f"data: {message}")


class Progress:
    """Progress of work of a known amount, for a `with` statement: a bar on a terminal, and lines elsewhere.

    A line is such as "tokenising: 3,400 of 160,000 MB, 12.5 MB a second, about 3 h 29 min left".

    what: the work.
    total: amount of the work.
    unit: unit of the amount, such as MB.
    say: prints a line; that of `announcer`, which also decides whether a bar is shown.
    done: amount that is done at the beginning, which does not count for the rate.
    """

    def __init__(self, what: str, total: float, unit: str, say: Say, done: float = 0.0):
        self._what, self._total, self._unit, self._say, self._start = what, total, unit, say, done
        self._start_time = self._last_line = time.monotonic()
        self._bar = Bar(f"data: {what}", total, is_shown=say is _print and total >= SHORTEST)

    def __enter__(self) -> "Progress":
        self._bar.start()
        self._bar.show(self._unit, self._start)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def update(self, done: float, note: str = "") -> None:
        """Show the amount that is done; as a line at most every `EVERY` seconds, with `note` added to it."""
        now = time.monotonic()
        if not self._bar.is_live and now - self._last_line < EVERY:
            return
        self._last_line = now
        rate = (done - self._start) / (now - self._start_time) if now > self._start_time else 0.0
        remaining = f"about {duration((self._total - done) / rate)} left" if rate > 0 else "time left unknown"
        speed = f"{self._unit}, {rate:,.1f} {self._unit} a second, {remaining}"
        if not self._bar.is_live:
            amount = f"{done:,.0f} of {self._total:,.0f}"
            self._say(f"{self._what}: {amount} {speed}" + (f"; {note}" if note else ""))
        else:
            self._bar.show(speed, done)


def duration(seconds: float) -> str:
    """Return a duration in words: "45 s", "12 min" or "3 h 05 min"."""
    if seconds < 60:
        return f"{max(seconds, 0):.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min"

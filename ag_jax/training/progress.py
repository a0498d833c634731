"""Progress of a run on standard error: a bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable
from typing import Any

from ag_jax.distributed import terminal
from ag_jax.distributed.terminal import Bar
from ag_jax.training import metrics

SHOW_EVERY = 10.0  # seconds between two reports of a validation
SHORTEST_BAR = 6  # columns


class ValidationProgress:
    """Counter of the batches of one validation, which reports the count and the time left every `SHOW_EVERY` seconds.

    total: number of batches; None if it is unknown.
    show: function that shows a text such as "validating: 120 of 2,551 batches, 3:12 left".
    beat: function that is called for every batch, such as that of a watchdog.
    """

    def __init__(self, total: int | None, show: Callable[[str], None], beat: Callable[[], None] = lambda: None):
        self._total, self._show, self._beat, self._done = total, show, beat, 0
        self._began = self._shown = self._first = self._last = time.monotonic()

    def count(self) -> None:
        """Count a batch that was evaluated, and report the progress if `SHOW_EVERY` seconds have passed."""
        self._beat()
        self._done += 1
        self._last = now = time.monotonic()
        if self._done == 1:
            self._first = now
        if now - self._shown < SHOW_EVERY:
            return
        self._shown = now
        if self._total is None:
            self._show(f"validating: {self._done:,} batches so far")
            return
        seconds_left = (now - self._began) / self._done * (self._total - self._done)
        self._show(f"validating: {self._done:,} of {self._total:,} batches, {_clock(seconds_left)} left")

    def next_seconds(self, seconds: float) -> float:
        """Return the seconds that the next validation is expected to take, if this first one took so many seconds.

        Its first batch waited for the compilation of the step, so the others count.
        """
        return (self._last - self._first) / (self._done - 1) * self._done if self._done > 1 else seconds


def _clock(seconds: float) -> str:
    """Return a duration as text: minutes and seconds, such as 3:07, or with hours, such as 1:03:07."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Silence:
    """Stand-in for `ProgressLine` and `MetricWriter` on all hosts but the first, with methods that do nothing."""

    digest = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: None


class ProgressLine:
    """Progress display of a run: step, losses, tokens per second and time left.

    name: name of the run, shown first.
    start: step at which the run starts or resumes.
    total: number of steps of the run.
    primary: name of the primary metric, shown before the other losses.
    """

    def __init__(self, name: str, start: int, total: int, primary: str):
        self._name, self._total, self._primary = name, total, primary
        self._training = "compiling ..."
        self._bar = Bar(name, total, stays=True)
        self._bar.start()
        self._bar.show(self._training, start)
        if not self._is_bar:
            self.say(f"step {start} of {total}, compiling the step ...")

    @property
    def _is_bar(self) -> bool:
        return self._bar.is_live

    def update(self, row: dict[str, Any], seconds_left: float | None) -> None:
        """Show a row of training metrics, and the estimated number of seconds left (None if it is unknown)."""
        # A loss is None if it was not measured, such as that of an attack before it begins.
        losses = {
            name: f"{name} {row[name]:.3f}" for name in metrics.losses(row, self._primary) if row[name] is not None
        }
        first, others = losses.pop(self._primary, ""), list(losses.values())
        rate = f"lr {row['learning_rate']:.2e}"
        speed = "" if row["tokens_per_second"] is None else f"{row['tokens_per_second']:,.0f} tokens/s"
        mfu = "" if row.get("mfu") is None else f"MFU {row['mfu']:.1%}"
        time_left = "" if seconds_left is None else f"{_clock(seconds_left)} left"
        texts = [text for text in (first, *others, rate, speed, mfu, time_left) if text]
        if self._is_bar:
            # Of a terminal that is too narrow for all, the first of these is left out first.
            for text in (rate, speed, mfu, time_left, *reversed(others)):
                if len("  ".join(texts)) > self._room() and text in texts:
                    texts.remove(text)
        self._training = "  ".join(texts)
        if self._is_bar:
            self._bar.show(self._training, row["step"])
        else:
            self.say(f"step {row['step']}/{self._total}  {self._training}")

    def _room(self) -> int:
        """Return the terminal columns that are left for metrics beside the run's name, the bar and the step numbers."""
        widths = (1, len(self._name), SHORTEST_BAR, 2 * len(str(self._total)) + 1)  # the first is that of the spinner
        return self._bar.console.width - sum(width + 1 for width in widths)

    def begin(self, status: str | None) -> None:
        """Show a status such as "validating ..." beside the bar; None shows the last training metrics again."""
        self._bar.show(self._training if status is None else status)

    def say(self, message: str) -> None:
        """Print a message, above the bar if there is one."""
        terminal.say(f"{self._name}: {message}")

    def show(self, status: str) -> None:
        """Show a status beside the bar until the next one, or print it as a line if there is no bar."""
        if self._is_bar:
            self._bar.show(status)
        else:
            self.say(status)

    def close(self) -> None:
        """Stop the progress bar and restore the terminal."""
        self._bar.stop()

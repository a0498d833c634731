"""Speed of training between two rows of metrics, without compilation and evaluations, and the time that is left."""

import collections
import dataclasses
import time

AVERAGED = 10  # intervals whose mean gives the time that is left: a checkpoint makes one of them longer


@dataclasses.dataclass(frozen=True)
class Interval:
    """Duration, number and tokens of the training steps between two rows of metrics.

    seconds: their duration, with compilation and without evaluations.
    timed_seconds, timed_steps, timed_tokens: duration, number and tokens of the steps for which nothing was compiled.
    """

    seconds: float
    timed_seconds: float
    timed_steps: int
    timed_tokens: int

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second in the steps without compilation; None if there are no such steps."""
        return self.timed_tokens / self.timed_seconds if self.timed_steps else None


class Speedometer:
    """Clock of training steps and checkpoints, without evaluations, which is read at every row of metrics.

    step, tokens: the numbers of steps and of tokens so far.
    """

    def __init__(self, step: int, tokens: int):
        self._step, self._tokens, self._began = step, tokens, time.perf_counter()
        self._compiling, self._compiled_steps, self._compiled_tokens = 0.0, 0, 0
        self._recent: collections.deque[Interval] = collections.deque(maxlen=AVERAGED)
        self._evaluation_seconds = 0.0  # of an evaluation, by the last one

    def compiled(self, seconds: float, tokens: int) -> None:
        """Count a step in which the program was compiled, which is in `Interval.seconds` but not a timed step."""
        self._compiling += seconds
        self._compiled_steps += 1
        self._compiled_tokens += tokens

    def evaluated(self, seconds: float, next_seconds: float) -> None:
        """Leave the time of an evaluation out of the current interval, and note the expected time of the next one.

        next_seconds: seconds that the next evaluation is expected to take, without compilation.
        """
        self.paused(seconds)
        self._evaluation_seconds = next_seconds

    def paused(self, seconds: float) -> None:
        """Leave seconds in which no training step was computed out of the current interval."""
        self._began += seconds

    def read(self, step: int, tokens: int) -> Interval:
        """Return the interval of steps up to `step`, with `tokens` tokens seen so far, and begin the next interval."""
        now = time.perf_counter()
        seconds = now - self._began
        steps = step - self._step - self._compiled_steps
        timed = max(seconds - self._compiling, 1e-9)
        interval = Interval(seconds, timed, steps, tokens - self._tokens - self._compiled_tokens)
        if steps:
            self._recent.append(interval)
        self._step, self._tokens, self._began = step, tokens, now
        self._compiling, self._compiled_steps, self._compiled_tokens = 0.0, 0, 0
        return interval

    def seconds_left(self, steps: int, evaluations: int) -> float | None:
        """Return the estimated seconds for so many steps and evaluations; None before `read` returned a timed step."""
        if not self._recent:
            return None
        seconds = sum(interval.timed_seconds for interval in self._recent)
        step_seconds = seconds / sum(interval.timed_steps for interval in self._recent)
        return steps * step_seconds + evaluations * self._evaluation_seconds

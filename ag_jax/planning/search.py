"""Search for the largest number of rows that fits into a device's memory, with few compilations.

Memory grows nearly linearly in the rows. A compilation that runs out of memory fails at once and reports how much the
step would need; one that fits takes minutes. So each guess is on a straight line through the known points, and the
search comes from above.
"""

import math
from collections.abc import Callable

from ag_jax.planning.compilation import Compiled, TooLarge

MOST_PROBES, MOST_FITTING = 8, 2
NEAR = 0.05  # the search ends when a number fits, and a number larger by at most this share does not
# Factor of a guess while every known number fits: far enough above to fail, near enough to predict the next guess well.
OVERSHOT = 1.15
CAUTION = 0.99  # factor of a guess when a number is known that does not fit

Outcome = Compiled | TooLarge


def largest(
    probe: Callable[[int], Outcome], outcomes: dict[int, Outcome], fixed_bytes: float, available: float
) -> tuple[int, Outcome | None]:
    """Return (largest number of rows that was found to fit, its compiled step); (0, None) if not even one row fits.

    The search ends when a number of rows larger by a share of at most `NEAR` does not fit.

    probe: compiles for a number of rows.
    outcomes: those that need no probe, by number of rows.
    fixed_bytes: bytes that a step with an empty batch would need.
    available: bytes that a device has.
    There are at most `MOST_PROBES` compilations, of which at most `MOST_FITTING` fit: if memory is not linear, a few
    more rows may fit.
    """
    outcomes, fitting = dict(outcomes), 0
    for _ in range(MOST_PROBES):
        low = max((rows for rows, outcome in outcomes.items() if isinstance(outcome, Compiled)), default=0)
        high = min((rows for rows, outcome in outcomes.items() if isinstance(outcome, TooLarge)), default=None)
        if fitting >= MOST_FITTING or (high is not None and high - low <= max(1, NEAR * low)):
            break
        guess = predicted(outcomes, fixed_bytes, available)
        # A compilation that runs out of memory costs seconds, one that fits minutes: so overshoot at first.
        rows = (
            max(math.ceil(OVERSHOT * guess), low + 1)
            if high is None
            else min(max(math.floor(CAUTION * guess), low + 1), high - 1)
        )
        outcomes[rows] = probe(rows)
        fitting += isinstance(outcomes[rows], Compiled)
    best = max((rows for rows, outcome in outcomes.items() if isinstance(outcome, Compiled)), default=0)
    return best, outcomes.get(best)


def predicted(outcomes: dict[int, Outcome], fixed_bytes: float, available: float) -> int:
    """Estimate from the memory of the steps compiled so far how many rows fit into `available` bytes.

    The estimate is on a straight line through the two steps whose memory is nearest to `available`; a step without
    rows counts with `fixed_bytes`.
    """
    points = [(0, fixed_bytes)] + [(rows, needed(outcome)) for rows, outcome in outcomes.items()]
    (rows, size), (other, other_size) = sorted(points, key=lambda point: abs(point[1] - available))[:2]
    slope = (other_size - size) / (other - rows)
    return math.floor(rows + (available - size) / slope) if slope > 0 else max(rows, other)


def needed(outcome: Outcome) -> float:
    """Return the bytes that a device needs for a step, whether or not it fits."""
    return outcome.memory.total if isinstance(outcome, Compiled) else outcome.needed

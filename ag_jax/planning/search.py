"""The largest number of rows that fits, with few compilations.

Memory grows nearly linearly in the rows, a compiler that lacks memory says at once how much a step would need, and one that
has enough goes on for a minute. So a straight line through what is known makes each guess, and the search comes from above.
"""

import math
from collections.abc import Callable

from ag_jax.planning.compilation import Compiled, TooLarge

MOST_PROBES, MOST_FITTING = 8, 2
NEAR = 0.05  # a number that fits is the largest if one that is this share larger does not
# Of the first guess: far enough above to be refused, near enough to make the next guess a good one; and of the later ones.
OVERSHOT, CAUTION = 1.15, 0.99

Outcome = Compiled | TooLarge


def largest(
    probe: Callable[[int], Outcome], known: dict[int, Outcome], fixed_bytes: float, available: float
) -> tuple[int, Outcome | None]:
    """The largest number of rows, but for `NEAR`, that fits, with its outcome; 0 and None if not even one row does.

    probe: compiles for a number of rows; known: outcomes that need no probe; fixed_bytes: what no rows at all would need.
    At most `MOST_PROBES` compilations, of which `MOST_FITTING` fit: where memory is not linear, a few more rows may.
    """
    outcomes, fitting = dict(known), 0
    for _ in range(MOST_PROBES):
        low = max((rows for rows, outcome in outcomes.items() if isinstance(outcome, Compiled)), default=0)
        high = min((rows for rows, outcome in outcomes.items() if isinstance(outcome, TooLarge)), default=None)
        if fitting >= MOST_FITTING or (high is not None and high - low <= max(1, NEAR * low)):
            break
        guess = predicted(outcomes, fixed_bytes, available)
        # To be refused costs seconds, to fit a minute.
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
    """How many rows a straight line through the two known points nearest to `available` gives."""
    points = [(0, fixed_bytes)] + [(rows, needed(outcome)) for rows, outcome in outcomes.items()]
    (rows, size), (other, other_size) = sorted(points, key=lambda point: abs(point[1] - available))[:2]
    slope = (other_size - size) / (other - rows)
    return math.floor(rows + (available - size) / slope) if slope > 0 else max(rows, other)


def needed(outcome: Outcome) -> float:
    """Bytes that a device needs."""
    return outcome.memory.total if isinstance(outcome, Compiled) else outcome.needed

"""Check that a probe, which a custom function may have made, is well formed before a model is queried."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from ag_jax.data.probes.queries import ALL, Probe, Query

COMPUTED = frozenset(["chance", "best fixed offset"])  # baselines that reports compute


def check(probe: Probe, *, among_words: bool = True) -> None:
    """Raise ValueError for the first fault of a probe: an invalid value or, if `among_words`, an unanswerable query.

    The message names the probe, and the window, baseline or query.

    among_words: whether the probe is asked in the mode `words`, where heads must be able to choose an answer.
    """
    name = f"the probe {probe.name}"
    if not probe.windows or not probe.queries:
        part = "windows" if not probe.windows else "queries"
        raise ValueError(
            f"{name} has no {part}, expected at least one ({_listed(probe.dropped)}): give more text, or set longer "
            "windows"
        )
    for number, window in enumerate(probe.windows):
        # A text would be taken for a sequence of words of one letter.
        if isinstance(window.words, str) or not all(isinstance(word, str) for word in window.words):
            raise ValueError(f"{name}, window {number}: expected a sequence of words, got {window.words!r:.80}")
    _check_each(f"{name}: development", probe.development, len(probe.queries))
    # Numbers would be taken for indices.
    if np.asarray(probe.development).dtype != bool:
        raise ValueError(f"{name}: expected development to be booleans, got {np.asarray(probe.development).dtype}")
    for baseline, scores in probe.baselines.items():
        _check_each(f"{name}: baseline {baseline!r}", scores, len(probe.queries))
        if baseline in COMPUTED:
            raise ValueError(f"{name}: the report computes the baseline {baseline!r} itself: choose another name")
        if not ((values := np.asarray(scores, np.float64)) >= 0).all() or values.max() > 1:
            raise ValueError(f"{name}: expected scores in [0, 1] of baseline {baseline!r}, got others")
    words = [len(window.words) for window in probe.windows]
    for number, query in enumerate(probe.queries):
        try:
            fault = _fault(query, words)
            if fault is None and among_words:
                fault = _never_right(query, probe.before)
        except TypeError as error:
            fault = f"expected integers, in tuples as `Query` has them ({error})"
        if fault:
            raise ValueError(f"{name}, query {number} ({query!r:.200}): {fault}")


def _never_right(query: Query, before: bool) -> str | None:
    """Return an error text if, in the mode `words`, heads cannot choose any answer of a query; None if they can.

    before: `Probe.before`.
    """
    answers = [word for word in query.answers if word != query.at and not (before and word >= query.begin)]
    if answers or not len(query.answers):
        return None
    among = f"of the words before `begin`={query.begin}" if before else f"other than `at`={query.at}"
    return f"expected one of `answers` to be one {among}, among which a head chooses, got {tuple(query.answers)}"


def _listed(dropped: Mapping[str, int]) -> str:
    return "; ".join(f"{reason}: {count:,}" for reason, count in dropped.items()) or "nothing was left out"


def _check_each(name: str, values: Any, queries: int) -> None:
    """Raise ValueError unless `values` is one-dimensional, with one value for each of the `queries` queries."""
    if np.shape(values) != (queries,):
        raise ValueError(f"{name} must have a value for each of {queries:,} queries, got shape {np.shape(values)}")


def _fault(query: Query, words: Sequence[int]) -> str | None:
    """Return an error text about the first field of a query with an invalid value; None if all are valid.

    words: number of words of each window.

    Raises TypeError if something is no integer, or no sequence of integers.
    """
    if not 0 <= index(query.window) < len(words):
        return f"expected a window below {len(words):,}, got {query.window}"
    count = words[query.window]
    if not 0 <= index(query.at) < count:
        return f"expected `at` to be the index of a word below {count}, got {query.at}"
    if not 0 <= index(query.begin) <= query.at:
        return f"expected `begin` from 0 to at={query.at}, got {query.begin}"
    # An array with the single element 0 counts as false, so arrays would be misread.
    for name in ("candidates", "right", "answers"):
        if not isinstance(getattr(query, name), (tuple, list)):
            return f"expected `{name}` to be a tuple, got {type(getattr(query, name)).__name__}"
    if others := [group for group in query.candidates if not isinstance(group, (tuple, list))]:
        return f"expected a tuple of words for each of `candidates`, got {type(others[0]).__name__}"
    if not all(len(group) for group in query.candidates):
        return "expected at least one word in every candidate, got an empty one"
    if outside := [word for group in query.candidates for word in group if not 0 <= index(word) < count]:
        return f"expected words below {count} in `candidates`, got {outside[0]}"
    if outside := [word for word in query.answers if not 0 <= index(word) < count]:
        return f"expected words below {count} in `answers`, got {outside[0]}"
    if outside := [number for number in query.right if not 0 <= index(number) < len(query.candidates)]:
        return f"expected numbers of {len(query.candidates)} candidates, counted from 0, in `right`, got {outside[0]}"
    if not isinstance(query.kind, str) or query.kind in ("", ALL):
        return (
            f"expected `kind` to be a name, and not {ALL!r}, which is that of all queries together, got {query.kind!r}"
        )
    return None

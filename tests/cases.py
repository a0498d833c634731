"""Choose which cases of a parametrized test are run by default; the others get the marker `exhaustive`."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def pairwise(*axes: Sequence[Any], always: Callable[..., bool] | None = None) -> list:
    """Return the product of `axes` for `pytest.mark.parametrize`, with the marker `exhaustive` on redundant cases.

    The cases without the marker contain every pair of values of two different axes at least once, because nearly all
    bugs depend on one or two values. They are chosen greedily: next is always the case with the most pairs that no
    earlier case has, the first of equals. A case for which `always(*values)` is true is never marked.
    """
    cases = list(itertools.product(*(range(len(axis)) for axis in axes)))

    def values(case: tuple[int, ...]) -> list[Any]:
        return [axis[index] for axis, index in zip(axes, case, strict=True)]

    def pairs(case: tuple[int, ...]) -> set[tuple]:
        return set(itertools.combinations(enumerate(case), 2))

    chosen = {case for case in cases if always and always(*values(case))}
    missing = set().union(*map(pairs, cases)) - set().union(*map(pairs, chosen))
    while missing:
        best = max(cases, key=lambda case: len(pairs(case) & missing))
        chosen.add(best)
        missing -= pairs(best)
    return [pytest.param(*values(case), marks=() if case in chosen else pytest.mark.exhaustive) for case in cases]


def some(cases: Iterable[Any], *usual: Any) -> list:
    """Return `cases` for `pytest.mark.parametrize`, with the marker `exhaustive` on those that are not in `usual`.

    A case that is a tuple has one value for each of several arguments, as in `pytest.mark.parametrize`.

    Raises:
      ValueError: if an element of `usual` is not in `cases`.
    """
    cases = list(cases)
    if unknown := [case for case in usual if case not in cases]:
        raise ValueError(f"not among the cases: {unknown}")

    def values(case: Any) -> tuple:
        return case if isinstance(case, tuple) else (case,)

    return [pytest.param(*values(case), marks=() if case in usual else pytest.mark.exhaustive) for case in cases]

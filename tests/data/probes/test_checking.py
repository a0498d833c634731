"""Faults of custom probes: one error each, with the names of the probe and the query."""

import dataclasses

import numpy as np
import pytest

from ag_jax.data.probes import checking
from ag_jax.data.probes.queries import Probe, Query, Window

WINDOWS = (Window("a", ("He", "can", "not", "swim", ".")), Window("b", ("No",)))
FIRST = Query(0, 2, 1, ((0,), (3, 4)), (1,), (3, 4), "not")
LAST = Query(1, 0, 0, (), (), (), "no")


def probe(first=FIRST, **changed):
    settings = {"name": "mine", "windows": WINDOWS, "queries": (first, LAST), "dropped": {}}
    settings |= {"development": np.array([True, False]), "baselines": {"nearest": np.array([0.0, 1.0])}}
    return Probe(**settings | changed)


def test_what_can_be_asked():
    checking.check(probe())
    numbers = np.arange(5)
    first = Query(numbers[0], numbers[2], numbers[1], ((numbers[4],),), (numbers[0],), tuple(numbers), "not")
    checking.check(probe(first, development=[True, False], baselines={}))


FAULTS = [
    *(({"window": window}, f"window below 2.*{window}") for window in (2, -1)),
    *(({"at": at}, f"`at`.*below 5.*{at}") for at in (5, -1)), ({"at": 1.0}, "integers"),
    *(({"begin": begin}, f"`begin` from 0 to at=2.*{begin}") for begin in (3, -1)),
    *(({"candidates": ((0,), (3, word))}, f"below 5 in `candidates`.*{word}") for word in (5, -1)),
    ({"candidates": ((0,), ())}, "candidate"), ({"candidates": (0, 3)}, "tuple.*`candidates`.*int"),
    ({"candidates": (np.array([0]), (3,))}, "`candidates`.*ndarray"), ({"right": np.array([0])}, "`right`.*ndarray"),
    *(({"answers": (3, word)}, f"below 5 in `answers`.*{word}") for word in (5, -2)),
    ({"answers": 3}, "`answers`.*int"), ({"answers": (3.0,)}, "integers"), ({"answers": (2,)}, "`answers`.*`at`=2"),
    *(({"right": (number,)}, f"2 candidates.*`right`.*{number}") for number in (2, -1)),
    ({"kind": "all"}, "`kind`.*'all'"), ({"kind": ""}, "`kind`"),
]  # fmt: skip


@pytest.mark.parametrize("changed, match", FAULTS)
def test_faults_of_a_query(changed, match):
    with pytest.raises(ValueError, match=f"mine, query 0 .Query.window=.*: .*{match}"):
        checking.check(probe(dataclasses.replace(FIRST, **changed)))


def test_answers_that_no_head_may_choose():
    """Behind the mention in a probe with `before`; in the mode `positions` heads choose among all tokens."""
    behind = probe(dataclasses.replace(FIRST, answers=(3, 4)), before=True)
    with pytest.raises(ValueError, match="`begin`=1.*3, 4"):
        checking.check(behind)
    checking.check(behind, among_words=False)
    checking.check(dataclasses.replace(behind, before=False))


@pytest.mark.parametrize(
    "changed, match",
    [
        ({"windows": (), "dropped": {"long texts": 7}}, "no windows.*long texts: 7"),
        ({"queries": ()}, "no queries"),
        ({"windows": (Window("a", "He can not swim ."), WINDOWS[1])}, "window 0.*words.*'He"),
        ({"development": np.array([True])}, r"development.* 2 .*\(1,\)"),
        ({"development": np.array([0, 5])}, "development.*int64"),
        ({"baselines": {"one": np.zeros(3)}}, r"'one'.* 2 .*\(3,\)"),
        *(({"baselines": {"one": [0.5, score]}}, r"\[0, 1\].*'one'") for score in (np.nan, 1.5, -0.1)),
        ({"baselines": {"chance": [0.5, 0.5]}}, "'chance'"),
    ],
)
def test_faults_of_a_probe(changed, match):
    with pytest.raises(ValueError, match=f"mine.*{match}"):
        checking.check(probe(**changed))

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
    settings = {
        "name": "mine",
        "windows": WINDOWS,
        "queries": (first, LAST),
        "development": np.array([True, False]),
        "baselines": {"nearest": np.array([0.0, 1.0])},
        "dropped": {},
    }
    return Probe(**settings | changed)


def test_what_can_be_asked():
    checking.check(probe())
    numbers = np.arange(5)
    first = Query(numbers[0], numbers[2], numbers[1], ((numbers[4],),), (numbers[0],), tuple(numbers), "not")
    checking.check(probe(first, development=[True, False], baselines={}))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"window": 2}, "expected a window below 2, got 2"),
        ({"window": -1}, "expected a window below 2, got -1"),
        ({"at": 5}, "expected `at` to be the index of a word below 5, got 5"),
        ({"at": -1}, "below 5, got -1"),
        ({"at": 1.0}, "expected integers, .*float"),
        ({"begin": 3}, "expected `begin` from 0 to at=2, got 3"),
        ({"begin": -1}, "expected `begin` from 0 to at=2, got -1"),
        ({"candidates": ((0,), ())}, "at least one word in every candidate"),
        ({"candidates": ((0,), (3, 5))}, "expected words below 5 in `candidates`, got 5"),
        ({"candidates": (0, 3)}, "expected a tuple of words for each of `candidates`, got int"),
        ({"candidates": (np.array([0]), (3,))}, "expected a tuple of words for each of `candidates`, got ndarray"),
        ({"right": np.array([0])}, "expected `right` to be a tuple, got ndarray"),
        ({"answers": (3, -2)}, "expected words below 5 in `answers`, got -2"),
        ({"answers": 3}, "expected `answers` to be a tuple, got int"),
        ({"answers": (3.0,)}, "expected integers, in tuples"),
        ({"right": (2,)}, "expected numbers of 2 candidates, counted from 0, in `right`, got 2"),
        ({"answers": (2,)}, "expected one of `answers` to be one other than `at`=2, .* got .2,."),
        ({"kind": "all"}, "expected `kind` to be a name, and not 'all'.* got 'all'"),
        ({"kind": ""}, "expected `kind` to be a name"),
    ],
)
def test_faults_of_a_query(changed, message):
    with pytest.raises(ValueError, match=f"the probe mine, query 0 .Query.window=.*: .*{message}"):
        checking.check(probe(dataclasses.replace(FIRST, **changed)))


def test_answers_that_no_head_may_choose():
    """Behind the mention in a probe with `before`; in the mode `positions` heads choose among all tokens."""
    behind = probe(dataclasses.replace(FIRST, answers=(3, 4)), before=True)
    with pytest.raises(ValueError, match="to be one of the words before `begin`=.*, got .3, 4."):
        checking.check(behind)
    checking.check(behind, among_words=False)
    checking.check(dataclasses.replace(behind, before=False))


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"windows": (), "dropped": {"long texts": 7}}, "has no windows, .*long texts: 7"),
        ({"queries": ()}, "has no queries, .*nothing was left out"),
        (
            {"windows": (Window("a", "He can not swim ."), WINDOWS[1])},
            "window 0: expected a sequence of words, got 'He",
        ),
        ({"development": np.array([True])}, r"development must have a value for each of 2 queries, got shape \(1,\)"),
        ({"development": np.array([0, 5])}, "expected development to be booleans, got int64"),
        ({"baselines": {"one": np.zeros(3)}}, r"baseline 'one' must have a value for each of 2 .* got shape \(3,\)"),
        ({"baselines": {"one": [0.5, np.nan]}}, r"expected scores in \[0, 1\] of baseline 'one'"),
        ({"baselines": {"one": [0.5, 1.5]}}, r"expected scores in \[0, 1\] of baseline 'one'"),
        ({"baselines": {"chance": [0.5, 0.5]}}, "the report computes the baseline 'chance' itself"),
    ],
)
def test_faults_of_a_probe(changed, message):
    with pytest.raises(ValueError, match=f"the probe mine.*{message}"):
        checking.check(probe(**changed))

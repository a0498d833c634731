"""Choices of heads by planted attention: one-hot, uniform, tied and constant rows."""

import math

import numpy as np
import pytest

from ag_jax.data.probes.queries import Query
from ag_jax.probing import scores
from ag_jax.probing.encoding import EncodedWindow
from ag_jax.probing.scores import Choices

QUERY = Query(window=0, at=5, begin=4, candidates=((0,), (2, 3), (6,)), right=(1,), answers=(2, 3), kind="x")


def one_hot(*units, size=8):
    """Rows `QNHU` of one query, in which each of several heads attends equally to the units of an item."""
    rows = np.zeros((1, 1, len(units), size), np.float32)
    for head, of_head in enumerate(units):
        rows[0, 0, head, list(of_head)] = 1 / len(of_head)
    return rows


def test_words():
    choices = scores.word_choices([QUERY], 8, [7], before=False)
    assert choices.allowed_QU[0].tolist() == [True] * 5 + [False, True, False]
    assert choices.chance_Q == pytest.approx(2 / 6)
    found, chosen = scores.scores(one_hot([3], [0], [2, 0], [2, 3, 6], [5], range(8)), choices)
    # The fifth head attends to its own word alone, which does not count: the others are tied.
    assert found[0, 0].tolist() == pytest.approx([1, 0, 1 / 2, 2 / 3, 2 / 6, 2 / 6])
    assert chosen[0, 0, :3].tolist() == [3, 0, 0]


def test_words_before_the_mention():
    choices = scores.word_choices([QUERY], 8, [7], before=True)
    assert choices.allowed_QU[0].tolist() == [True] * 4 + [False] * 4
    assert scores.scores(one_hot([6], [3, 6]), choices)[0][0, 0].tolist() == [0.5, 1.0]


def test_positions():
    """Word 2 has the tokens 3 and 4, word 3 the token 5; begin and end tokens count as wrong answers."""
    window = EncodedWindow(np.arange(10), np.array([1, 2, 3, 5, 6, 7, 8, 9]))
    choices = scores.position_choices([QUERY], 12, [window])
    assert np.flatnonzero(choices.right_QU[0]).tolist() == [3, 4, 5] and choices.allowed_QU.sum() == 10
    assert scores.scores(one_hot([0], [4], [5], [7], [9], size=12), choices)[0][0, 0].tolist() == [0, 1, 1, 0, 0]
    assert choices.chance_Q == pytest.approx(0.3)


def test_candidates():
    words_QGU, choices = scores.candidate_choices([QUERY], 8)
    # Two words with .3 each are more than one with .4; word 7 is no candidate.
    rows = np.array([[[[0.4, 0, 0.3, 0.3, 0, 0, 0, 0], [0.1, 0, 0, 0, 0, 0, 0, 0.9]]]], np.float32)
    mass_QNHG = scores.candidate_mass(rows, words_QGU)
    np.testing.assert_allclose(mass_QNHG[0, 0], [[0.4, 0.6, 0], [0.1, 0, 0]], rtol=1e-6)
    found, chosen = scores.scores(mass_QNHG, choices)
    assert found[0, 0].tolist() == [1, 0] and chosen[0, 0].tolist() == [1, 0]
    assert choices.chance_Q == pytest.approx(1 / 3)
    lost = scores.confusion(mass_QNHG, choices)
    assert lost[0, 0, 0] == pytest.approx(-math.log2(0.6), abs=1e-6) and 20 < lost[0, 0, 1] < 30
    equal = scores.confusion(np.full_like(mass_QNHG, 0.2), choices)
    assert equal[0, 0].tolist() == pytest.approx([math.log2(3)] * 2)


def test_queries_with_fewer_candidates_than_others():
    """The places of candidates that a query lacks are never chosen, also where all attention is 0."""
    other = Query(window=0, at=3, begin=3, candidates=((1,),), right=(), answers=(), kind="x")
    words_QGU, choices = scores.candidate_choices([QUERY, other], 8)
    mass = scores.candidate_mass(np.zeros((2, 1, 1, 8), np.float32), words_QGU)
    found, chosen = scores.scores(mass, choices)
    assert found.ravel().tolist() == pytest.approx([1 / 3, 0]) and chosen.ravel().tolist() == [0, 0]
    assert choices.chance_Q.tolist() == pytest.approx([1 / 3, 0])


def test_no_choice_at_all():
    none = Choices(np.zeros((1, 3), bool), np.ones((1, 3), bool))
    found, chosen = scores.scores(np.ones((1, 1, 2, 3), np.float32), none)
    assert not found.any() and (chosen == -1).all()

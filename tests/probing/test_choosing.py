"""Scores of heads by planted attention, F1 with a threshold, the choice of heads, and intervals over documents."""

import dataclasses
import math

import numpy as np
import pytest

from ag_jax.analysis.heads import choosing, scores
from ag_jax.analysis.heads.choosing import ALL, Table
from ag_jax.analysis.heads.encoding import EncodedWindow
from ag_jax.analysis.heads.measuring import Measured
from ag_jax.analysis.heads.scores import Choices
from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.probing import f1

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


NAMES = ((0,), (1,))


def plain_f1(answers, threshold):
    """answers: (mass, index of the candidate with most, correct candidates) of each query."""
    true_positives = false_positives = false_negatives = 0
    for mass, chosen, right in answers:
        for candidate in range(len(NAMES)):
            is_taken, is_right = mass >= threshold and candidate == chosen, candidate in right
            true_positives += is_taken and is_right
            false_positives += is_taken and not is_right
            false_negatives += is_right and not is_taken
    precision = true_positives / max(1, true_positives + false_positives)
    recall = true_positives / max(1, true_positives + false_negatives)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def made(seed):
    """Queries of which a fifth has no correct name, in random order, and a head that is right more often if sure."""
    random = np.random.default_rng(seed)
    count = 300
    right = [() if random.random() < 0.2 else (int(random.integers(2)),) for _ in range(count)]
    mass_Q = np.round(random.random(count), 2).astype(np.float32)  # many are equal
    is_right_Q = random.random(count) < 0.4 + mass_Q / 2
    chosen_Q = np.array([sum(of) if is_right else 1 - sum(of) for of, is_right in zip(right, is_right_Q, strict=True)])
    mass_Q[[not of for of in right]] /= 2
    kinds = np.array(["feminine", "masculine"])[random.integers(2, size=count)]
    development_Q = random.random(count) < 0.5
    queries = tuple(Query(0, 2, 2, NAMES, of, of, str(kind)) for of, kind in zip(right, kinds, strict=True))
    text = Window("a", ("Ann", "Eve", "she"))
    asked_Q = np.flatnonzero(random.random(count) < 0.9)
    probe = Probe("made", (text,), queries, development_Q, {"nearest": np.array([0 in of for of in right])}, {})
    # The second of two heads; the first one has only zeros.
    chosen_QNH, mass_QNH = (np.stack([of[asked_Q] * 0, of[asked_Q]], -1)[:, None, :] for of in (chosen_Q, mass_Q))
    measured = Measured(asked_Q, mass_QNH * 0, chosen_QNH, asked_Q * 0.0, mass_QNH * 0, mass_QNH, {})
    answers = [(float(mass_Q[index]), int(chosen_Q[index]), right[index]) for index in asked_Q]
    return probe, measured, answers, development_Q[asked_Q], kinds[asked_Q]


@pytest.mark.parametrize("seed", range(3))
def test_against_counts(seed):
    probe, measured, answers, development_Q, kinds = made(seed)
    on_development = [answer for answer, is_one in zip(answers, development_Q, strict=True) if is_one]
    best = max(plain_f1(on_development, mass) for mass, *_ in on_development)
    found = f1.of_head(probe, measured, (0, 1), ("all", "feminine", "masculine"))
    assert found["head"] == [0, 1] and 0 < found["threshold"] < 1
    assert plain_f1(on_development, found["threshold"]) == pytest.approx(best)
    assert best > plain_f1(on_development, 0)
    expected = {}
    for kind in ("all", "feminine", "masculine"):
        chosen = ~development_Q & ((kinds == kind) | (kind == "all"))
        expected[kind] = plain_f1([answers[index] for index in np.flatnonzero(chosen)], found["threshold"])
    assert found["f1"] == pytest.approx(expected)
    assert found["ratio"] == pytest.approx(expected["feminine"] / expected["masculine"])

    always_first = [(1.0, 0, right) for (_, _, right), is_one in zip(answers, development_Q, strict=True) if not is_one]
    rule = f1.of_rule(probe, measured, "nearest", ("all",))
    assert rule == {"f1": {"all": pytest.approx(plain_f1(always_first, 0))}, "ratio": None}
    assert f1.of_rule(probe, measured, "sieves", ("all",)) is None
    # Without development queries or masses there is no threshold.
    nothing = dataclasses.replace(probe, development=probe.development & False)
    assert f1.of_head(nothing, measured, (0, 1), ("all",)) is None
    assert f1.of_head(probe, dataclasses.replace(measured, mass_QNH=None), (0, 1), ("all",)) is None


def test_queries_of_equal_mass_are_taken_together():
    """To take the second query alone would be best, but the wrong ones after it have the same mass."""
    correct_Q = np.array([1, 1, 0, 0, 0])
    decisions = f1.Decisions(np.array([0.9, 0.5, 0.5, 0.5, 0.5]), correct_Q > 0, correct_Q)
    assert f1.best_threshold(decisions) == 0.9


DOCUMENTS, EACH = 41, 7
GUIDED = np.array([[True, False, False]] * 2)


def table(scores_QNH):
    document_Q = np.arange(len(scores_QNH)) // EACH
    kinds = np.array(("a", "b"))[np.arange(len(scores_QNH)) % 2]
    return Table(scores_QNH.astype(np.float32), kinds, document_Q, document_Q % 5 == 0, DOCUMENTS)


def planted():
    """Head (0, 1) is right on development documents only, (1, 2) on most test queries, (1, 0) always on kind b."""
    random = np.random.default_rng(1)
    scores_QNH = (random.random((DOCUMENTS * EACH, 2, 3)) < 0.2).astype(float)
    development_Q = (np.arange(DOCUMENTS * EACH) // EACH) % 5 == 0
    scores_QNH[:, 0, 1] = development_Q
    scores_QNH[~development_Q, 1, 2] = random.random((~development_Q).sum()) < 0.8
    scores_QNH[:, 1, 0] = np.arange(len(scores_QNH)) % 2
    return scores_QNH


def test_a_head_that_is_right_on_development_documents_only():
    found = choosing.choose(table(planted()), ALL, GUIDED, choosing.resample(DOCUMENTS, 200))
    assert found.head == (0, 1) and found.test.mean == 0
    assert found.best_head == (1, 2) and 0.7 < found.best < 0.9
    assert found.guided < 0.6 and found.free == found.best
    assert found.queries == EACH * 32


def test_kinds_and_what_is_lacking():
    scores, resamples = table(planted()), choosing.resample(DOCUMENTS, 20)
    assert scores.kinds == (ALL, "a", "b")
    found = choosing.choose(scores, "b", GUIDED, resamples)
    assert found.best_head == (1, 0) and found.guided == 1 and found.free < 1
    # Head (1, 0) is always right on kind b, and free if layer 0 alone is guided.
    found = choosing.choose(scores, "b", GUIDED & [[True], [False]], resamples)
    assert found.free == 1 and found.guided < 0.5
    assert choosing.choose(scores, "c", GUIDED, resamples) is None
    everything, nothing = (
        dataclasses.replace(scores, development_Q=np.full_like(scores.development_Q, of)) for of in (True, False)
    )
    assert choosing.choose(everything, ALL, GUIDED, resamples) is None
    found = choosing.choose(nothing, ALL, GUIDED | True, resamples)
    assert found.head is found.test is found.free is None and found.guided == found.best


def test_intervals_resample_documents():
    """Against a loop over resamples; documents are alike inside, so resampling queries would be far too narrow."""
    random = np.random.default_rng(2)
    document_Q = np.sort(random.integers(0, 23, 600))
    scores_Q = (random.random(23) < 0.5)[document_Q].astype(float)
    chosen_Q = random.random(600) < 0.9
    resamples_RD = choosing.resample(23, 500)
    assert (resamples_RD.sum(1) == 23).all()
    found = choosing.interval(scores_Q, chosen_Q, document_Q, resamples_RD)
    assert found.mean == pytest.approx(scores_Q[chosen_Q].mean())
    for index in (0, 77):
        drawn = [scores_Q[chosen_Q & (document_Q == d)] for d, n in enumerate(resamples_RD[index]) for _ in range(n)]
        assert found.resampled_R[index] == pytest.approx(np.concatenate(drawn).mean())
    assert found.high - found.low > 4 * 1.96 * scores_Q.std() / 600**0.5
    # The standard error of a mean over documents of nearly equal size.
    by_document = np.array([scores_Q[document_Q == d].mean() for d in range(23)])
    assert found.high - found.low == pytest.approx(2 * 1.96 * by_document.std() / 23**0.5, rel=0.25)


def test_differences_are_paired():
    random = np.random.default_rng(3)
    document_Q, chosen_Q = np.repeat(np.arange(31), 5), np.ones(155, bool)
    easy_D = random.random(31)
    base = np.clip(easy_D[document_Q] + 0.02 * random.standard_normal(155), 0, 1)
    resamples_RD = choosing.resample(31, 999)
    low = choosing.interval(base, chosen_Q, document_Q, resamples_RD)
    high = choosing.interval(base + 0.05, chosen_Q, document_Q, resamples_RD)
    # The intervals overlap widely, and yet the difference is the same in every document.
    assert high.low < low.high
    found = choosing.difference([low], [high])
    assert found.mean == pytest.approx(0.05) and found.low == pytest.approx(0.05) and found.p_value == 2 / 1000
    same = choosing.difference([low, high], [high, low])
    assert same.mean == 0 and same.p_value == 1


def test_offsets():
    scores = {"offset -1": np.array([1.0, 1, 0, 0]), "offset 1": np.array([0.0, 0, 1, 1])}
    development_Q = np.array([True, False, False, True])
    chosen_Q = np.array([True, True, True, False])
    assert choosing.best_offset(scores, chosen_Q, development_Q) == ("offset -1", 0.5)
    assert choosing.best_offset({}, chosen_Q, development_Q) is None
    assert choosing.best_offset(scores, chosen_Q, ~chosen_Q) is None

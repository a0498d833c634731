"""The choice of heads, intervals over documents and differences between models, with planted heads."""

import dataclasses

import numpy as np
import pytest

from ag_jax.probing import choosing
from ag_jax.probing.choosing import ALL, Table

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

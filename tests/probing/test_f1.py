"""F1 with a threshold, against counts of true and false positives and negatives, one candidate at a time."""

import dataclasses

import numpy as np
import pytest

from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.probing import f1
from ag_jax.probing.measuring import Measured

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
    assert found["head"] == [1, 2] and 0 < found["threshold"] < 1
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

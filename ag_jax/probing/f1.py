"""F1 of heads that may also answer that no candidate is correct, as in GAP (Webster et al. 2018).

Each candidate of a query, such as each of two names, is or is not the antecedent. A head takes the candidate to which
it attends most (the first of several with equal attention), or none if it attends to that one less than a threshold.
F1 is that of these decisions:

    F1 = 2 * (correct candidates taken) / (candidates taken + correct candidates)

The threshold is the one with the best F1 on development queries.

Shape letter: Q queries.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ag_jax.analysis.heads.choosing import Head
from ag_jax.analysis.heads.measuring import Measured
from ag_jax.data.probes.queries import ALL, Probe

FEMININE, MASCULINE = "feminine", "masculine"  # kinds of query in GAP


@dataclasses.dataclass(frozen=True)
class Decisions:
    """A head's preferred candidate for each query: the attention to it, and whether it is correct.

    mass_Q: attention to the candidate to which it attends most.
    is_right_Q: whether this candidate is correct.
    correct_Q: number of correct candidates.
    """

    mass_Q: np.ndarray
    is_right_Q: np.ndarray
    correct_Q: np.ndarray

    def of(self, chosen_Q: np.ndarray) -> "Decisions":
        """Return the decisions on the chosen queries only."""
        return Decisions(self.mass_Q[chosen_Q], self.is_right_Q[chosen_Q], self.correct_Q[chosen_Q])


def f1(decisions: Decisions, threshold: float) -> float | None:
    """Return F1 if a head takes candidates with attention >= `threshold`; None if none is taken and none is correct."""
    is_taken_Q = decisions.mass_Q >= threshold
    counted = int(is_taken_Q.sum() + decisions.correct_Q.sum())
    return 2 * float((decisions.is_right_Q & is_taken_Q).sum()) / counted if counted else None


def best_threshold(decisions: Decisions) -> float:
    """Return the attention value that as a threshold gives the best F1; of equally good ones, the lowest.

    There must be at least one query.
    """
    # With the k largest masses taken, F1 = 2 * right among these / (k + correct), so that one sort and one cumulative
    # sum give F1 for every threshold.
    order = np.argsort(-decisions.mass_Q, kind="stable")
    mass_Q, right_Q = decisions.mass_Q[order], np.cumsum(decisions.is_right_Q[order])
    f1_Q = 2 * right_Q / (np.arange(1, len(order) + 1) + decisions.correct_Q.sum())
    is_last_Q = np.append(mass_Q[1:] < mass_Q[:-1], True)  # of equal masses: they are taken together
    f1_Q = np.where(is_last_Q, f1_Q, -1.0)
    return float(mass_Q[np.flatnonzero(f1_Q == f1_Q.max())[-1]])


def of_head(probe: Probe, measured: Measured, head: Head, kinds: Sequence[str]) -> dict[str, Any] | None:
    """Return {"head", "threshold", "f1", "ratio"} of a head on test queries; None if no threshold can be chosen.

    The threshold is the best one on development queries; "f1" and "ratio" are as in `of_rule`.

    Returns None without development queries, and for measurements that have no attention to candidates.
    """
    development_Q = np.asarray(probe.development, bool)[measured.queries_Q]
    if measured.mass_QNH is None or not development_Q.any():
        return None
    layer, number = head
    queries = [probe.queries[index] for index in measured.queries_Q]
    candidate_Q = measured.chosen_QNH[:, layer, number].tolist()
    is_right_Q = np.array([candidate in query.right for candidate, query in zip(candidate_Q, queries, strict=True)])
    decisions = Decisions(measured.mass_QNH[:, layer, number], is_right_Q, _correct(probe, measured))
    threshold = best_threshold(decisions.of(development_Q))
    scores = _by_kind(probe, measured, decisions, threshold, kinds)
    return {"head": [layer, number], "threshold": threshold, **scores}


def of_rule(probe: Probe, measured: Measured, name: str, kinds: Sequence[str]) -> dict[str, Any] | None:
    """Return {"f1": {kind: F1}, "ratio": feminine / masculine F1} of a baseline on test queries; None if it has no F1.

    The baseline takes a candidate of every query. Returns None without this baseline, and for measurements that have no
    attention to candidates.
    """
    if measured.mass_QNH is None or name not in probe.baselines:
        return None
    is_right_Q = np.asarray(probe.baselines[name])[measured.queries_Q] > 0
    decisions = Decisions(np.ones(len(is_right_Q)), is_right_Q, _correct(probe, measured))
    return _by_kind(probe, measured, decisions, 0.0, kinds)


def _correct(probe: Probe, measured: Measured) -> np.ndarray:
    return np.array([len(probe.queries[index].right) for index in measured.queries_Q])


def _by_kind(
    probe: Probe, measured: Measured, decisions: Decisions, threshold: float, kinds: Sequence[str]
) -> dict[str, Any]:
    """Return {"f1": {kind: F1}, "ratio": feminine F1 / masculine F1} on test queries at a threshold.

    The ratio is None without both.
    """
    test_Q = ~np.asarray(probe.development, bool)[measured.queries_Q]
    kind_Q = np.array([probe.queries[index].kind for index in measured.queries_Q])
    f1_of_kinds = {kind: f1(decisions.of(test_Q & ((kind_Q == kind) | (kind == ALL))), threshold) for kind in kinds}
    feminine, masculine = f1_of_kinds.get(FEMININE), f1_of_kinds.get(MASCULINE)
    return {"f1": f1_of_kinds, "ratio": feminine / masculine if feminine is not None and masculine else None}

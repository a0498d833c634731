"""Choice of a model's best head on a probe, with confidence intervals over documents, and model differences.

A model has many heads, and the best one on a set of queries is partly the best by luck. So a head is chosen on the
development documents, and its score on the test documents is reported beside the best score on the test documents
themselves, which papers report.

Shape letters: Q queries, N layers, H heads, D documents, R resamples.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ag_jax.data.probes.queries import ALL

FEWEST_DOCUMENTS = 10  # with queries of a kind, for intervals and p-values
SEED = 0  # of the resamples, so that a report repeats its numbers
Head = tuple[int, int]  # layer and head, counted from 0


@dataclasses.dataclass(frozen=True)
class Table:
    """Scores of all heads on a probe's queries, with the kind and the document of each query.

    scores_QNH: score of each head on each query, in [0, 1].
    kind_Q: kind of each query.
    document_Q: number of the document of each query, below `documents`.
    development_Q: whether the query belongs to the development documents.
    documents: number of documents.
    """

    scores_QNH: np.ndarray
    kind_Q: np.ndarray
    document_Q: np.ndarray
    development_Q: np.ndarray
    documents: int

    def of_kind(self, kind: str) -> np.ndarray:
        """Return for each query whether it is of this kind, booleans `Q`; all True for `ALL`."""
        return np.ones(len(self.kind_Q), bool) if kind == ALL else self.kind_Q == kind

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of query: first `ALL`, then the kinds from the most to the least frequent."""
        names, counts = np.unique(self.kind_Q, return_counts=True)
        return (ALL, *(str(names[index]) for index in np.argsort(-counts, kind="stable")))


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean score over queries, with a 95 % confidence interval from resampling their documents.

    low, high: ends of the interval; None with fewer than `FEWEST_DOCUMENTS` documents, of which a bootstrap would give
        too narrow intervals.
    resampled_R: the mean score on each resample of the documents, for differences between models.
    """

    mean: float
    low: float | None
    high: float | None
    resampled_R: np.ndarray


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The best heads of a model on queries of one kind: `head` on development queries, `best_head` on test queries.

    kind: the kind of query.
    queries: number of test queries.
    head: the best head on development queries; None if there are none.
    test: score of `head` on test queries; None without a head.
    best_head: the best head on test queries.
    best: its score on test queries, which is too high, because it was chosen on them.
    mean: score on test queries, averaged over heads.
    guided, free: score on test queries of the best guided, and of the best free head; None without such heads, and both
        None for a model without guidance.
    """

    kind: str
    queries: int
    head: Head | None
    test: Interval | None
    best_head: Head
    best: float
    mean: float
    guided: float | None
    free: float | None


def choose(table: Table, kind: str, is_guided_NH: np.ndarray, resamples_RD: np.ndarray) -> Chosen | None:
    """Return the best heads on queries of a kind; None if no test query has this kind.

    is_guided_NH: whether guidance pulled each head of every layer towards a pattern.
    resamples_RD: see `resample`.
    """
    of_kind_Q = table.of_kind(kind)
    development_Q, test_Q = of_kind_Q & table.development_Q, of_kind_Q & ~table.development_Q
    if not test_Q.any():
        return None
    test_NH = table.scores_QNH[test_Q].mean(0, dtype=np.float64)
    best_head, head, test = _best(test_NH), None, None
    if development_Q.any():
        head = _best(table.scores_QNH[development_Q].mean(0, dtype=np.float64))
        test = interval(table.scores_QNH[:, *head], test_Q, table.document_Q, resamples_RD)
    return Chosen(
        kind=kind,
        queries=int(test_Q.sum()),
        head=head,
        test=test,
        best_head=best_head,
        best=float(test_NH[best_head]),
        mean=float(test_NH.mean()),
        guided=float(test_NH[is_guided_NH].max()) if is_guided_NH.any() else None,
        free=float(test_NH[~is_guided_NH].max()) if is_guided_NH.any() and not is_guided_NH.all() else None,
    )


def _best(scores_NH: np.ndarray) -> Head:
    """Return layer and head of the largest score; of equal ones, the lowest layer and head."""
    layer, head = np.unravel_index(int(scores_NH.argmax()), scores_NH.shape)
    return int(layer), int(head)


def resample(documents: int, resamples: int) -> np.ndarray:
    """Return how often each document is drawn in each resample, `RD`: as many draws as documents, with replacement."""
    random = np.random.default_rng(SEED)
    return random.multinomial(documents, np.full(documents, 1.0 / documents), size=resamples)


def interval(scores_Q: np.ndarray, chosen_Q: np.ndarray, document_Q: np.ndarray, resamples_RD: np.ndarray) -> Interval:
    """Return the mean score on the chosen queries, with the 95 % percentile interval over resampled documents.

    Queries of a document are not independent, so documents are resampled, not queries. Resamples without any of the
    queries are NaN, and not in the interval.

    chosen_Q: which queries count, at least one.
    resamples_RD: see `resample`.
    """
    documents = resamples_RD.shape[1]
    count_D = np.bincount(document_Q[chosen_Q], minlength=documents)
    total_D = np.bincount(document_Q[chosen_Q], weights=scores_Q[chosen_Q], minlength=documents)
    count_R = resamples_RD @ count_D
    with np.errstate(invalid="ignore"):
        resampled_R = np.where(count_R > 0, (resamples_RD @ total_D) / count_R, np.nan)
    mean = float(total_D.sum() / count_D.sum())
    if np.count_nonzero(count_D) < FEWEST_DOCUMENTS:
        return Interval(mean, None, None, resampled_R)
    low, high = np.nanpercentile(resampled_R, [2.5, 97.5])
    return Interval(mean, float(low), float(high), resampled_R)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of a model's score from the first model's score on the same documents, with its p-value.

    mean: the difference, model minus first model.
    low, high: 95 % confidence interval, over resamples of the documents.
    p_value: two-sided p-value of the paired bootstrap: twice the share of resamples in which the difference has the
        less frequent sign or is 0; at least 2 / (resamples + 1).
    """

    mean: float
    low: float
    high: float
    p_value: float


def difference(baseline: Sequence[Interval], other: Sequence[Interval]) -> Difference:
    """Return the mean score of `other` over seeds minus the mean score of `baseline`, by a paired bootstrap.

    baseline, other: for each seed the score; all with the same resamples of the same documents.
    """
    resampled_R = np.mean([score.resampled_R for score in other], 0)
    resampled_R = resampled_R - np.mean([score.resampled_R for score in baseline], 0)
    resampled_R = resampled_R[~np.isnan(resampled_R)]
    low, high = np.percentile(resampled_R, [2.5, 97.5])
    mean = float(np.mean([score.mean for score in other]) - np.mean([score.mean for score in baseline]))
    against = min(int((resampled_R <= 0).sum()), int((resampled_R >= 0).sum()))
    return Difference(mean, float(low), float(high), min(1.0, 2 * (against + 1) / (len(resampled_R) + 1)))


def best_offset(
    scores: Mapping[str, np.ndarray], chosen_Q: np.ndarray, development_Q: np.ndarray
) -> tuple[str, float] | None:
    """Return (name, test score) of the fixed-distance rule that is best on development; None without rules or queries.

    scores: name of each rule to its scores, `Q`.
    chosen_Q: which queries count.
    None without rules, or without development or test queries among the chosen ones.
    """
    development_Q, test_Q = chosen_Q & development_Q, chosen_Q & ~development_Q
    if not scores or not development_Q.any() or not test_Q.any():
        return None
    best = max(scores, key=lambda name: float(scores[name][development_Q].mean()))
    return best, float(scores[best][test_Q].mean())

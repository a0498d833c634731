"""Scores of translations by sacreBLEU: BLEU, chrF and TER with 95 % intervals, and comparisons with a baseline.

Every metric is a function of counts that are summed over the sentences (for BLEU: lengths, n-grams, and n-grams that
the reference has, too). So a bootstrap resample, a set of sentences drawn with replacement, is scored from sums of
counts, and no text is scored twice. All resamples come from one seed and only depend on the number of sentences, so
that systems are compared on the same sentences.

Equations: BLEU of Papineni et al. 2002, chrF of Popović 2015, TER of Snover et al. 2006, all as implemented by
sacreBLEU (Post 2018); bootstrap of Koehn 2004.
Shape letters: S sentences, R resamples, C counts of a sentence.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from ag_jax.evaluation import lines

Metric = Literal["bleu", "bleu_lowercase", "chrf", "ter"]
METRICS: tuple[Metric, ...] = get_args(Metric)
Tokenizer = Literal["13a", "intl", "char", "zh", "none"]
TOKENIZERS: tuple[Tokenizer, ...] = get_args(Tokenizer)

RESAMPLES = 1000  # sacreBLEU's default
SEED = "12345"  # sacreBLEU's default; its environment variable SACREBLEU_SEED replaces it

LABELS: dict[str, str] = {
    "bleu": "BLEU",
    "bleu_lowercase": "BLEU, lowercased",
    "chrf": "chrF2",
    "ter": "TER (lower is better)",
}
SCORE_HEADER = ("Metric", "Score", "95 % interval", "Signature")
DIFFERENCE_HEADER = ("System", "Metric", "Difference", "95 % interval", "p")


@dataclasses.dataclass(frozen=True)
class Score:
    """BLEU, chrF or TER of one system's translations, with a 95 % interval.

    metric: name of the metric, one of `METRICS`.
    value: the score, from 0 to 100; TER may exceed 100, and is better the lower it is.
    mean: mean score of the resamples.
    interval: lower and upper end of the 95 % interval, from the resamples; None for a single sentence.
    signature: sacreBLEU's description of the metric's settings and of its version.
    note: a sentence that says that the text was tokenised; "" if it was not.
    """

    metric: str
    value: float
    mean: float
    interval: tuple[float, float] | None
    signature: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between a system's score and the baseline's, on the same sentences.

    metric: name of the metric, one of `METRICS`.
    difference: score of the system minus that of the baseline.
    interval: lower and upper end of the difference's 95 % interval, from the resamples; None for a single sentence.
    p_value: p of sacreBLEU's paired bootstrap test, at least 1 / (resamples + 1); 1 if the metric counts the same for
        both systems in every sentence; None for a single sentence in which it does not.
    identical: whether the two systems have the same translations.
    signature: sacreBLEU's description of the metric's settings and of its version.
    """

    metric: str
    difference: float
    interval: tuple[float, float] | None
    p_value: float | None
    identical: bool
    signature: str


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[Metric] = METRICS,
    tokenize: Tokenizer = "13a",
) -> dict[str, Score]:
    """Return {metric: score of the translations}, each translation compared with one reference.

    hypotheses: the translations, one line for each sentence.
    references: the right translations, in the same order.
    metrics: which scores to compute, of `METRICS`.
    tokenize: sacreBLEU's tokenizer for BLEU; chrF and TER have none to choose.

    Values, means, intervals and signatures are those of `sacrebleu --confidence`. Raises ValueError for texts that
    cannot be scored, and for a tokenizer that is not one of `TOKENIZERS`.
    """
    lines.check("the hypotheses", hypotheses, references)
    note, resamples_RS = lines.note_on_marks(hypotheses, references), _resamples(len(references))
    result: dict[str, Score] = {}
    for name in metrics:
        counted = _count(name, tokenize, hypotheses, references)
        values_R = counted.resampled(resamples_RS)
        result[name] = Score(
            metric=name,
            value=counted.value(),
            mean=float(values_R.mean()),
            interval=_interval(values_R) if len(references) > 1 else None,
            signature=counted.signature(),
            note=note,
        )
    return result


def signatures(metrics: Sequence[Metric] = METRICS, tokenize: Tokenizer = "13a") -> dict[str, str]:
    """Return {metric: sacreBLEU's signature of the version, seed and settings with which `score` computes it}."""
    result: dict[str, str] = {}
    for name in metrics:
        measure = _measure(name, tokenize)
        measure.num_refs = 1  # sacreBLEU sets it when it reads references
        result[name] = str(measure.get_signature())
    return result


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    baseline: str,
    metrics: Sequence[Metric] = METRICS,
    tokenize: Tokenizer = "13a",
) -> dict[str, dict[str, Difference]]:
    """Return {system: {metric: difference from the baseline}} for every system but the baseline.

    systems: {name: its translations, one line for each sentence}.
    references: the right translations, in the same order.
    baseline: the name of the system that the others are compared with.
    metrics, tokenize: as for `score`.

    The interval is that of the difference itself: each resample has one set of sentences for both systems. p is that of
    sacreBLEU's paired bootstrap, except where all sentences have the same statistics of a metric in both systems: then
    p is 1, because sacreBLEU would return its smallest p. sacreBLEU's p is about half that of a two-sided test, so an
    interval that just includes 0 may have p < .05. Raises ValueError as `score` does.
    """
    for name, hypotheses in systems.items():
        lines.check(f"the hypotheses of {name!r}", hypotheses, references)
    resamples_RS, several = _resamples(len(references)), len(references) > 1
    result: dict[str, dict[str, Difference]] = {name: {} for name in systems if name != baseline}
    for metric in metrics:
        base = _count(metric, tokenize, systems[baseline], references)
        others = {name: _count(metric, tokenize, systems[name], references) for name in result}
        differing = [name for name in result if not np.array_equal(others[name].counts_SC, base.counts_SC)]
        p_values: dict[str, float | None] = dict.fromkeys(result, 1.0)
        if several and differing:
            p_values |= _paired_bootstrap(metric, tokenize, systems, references, baseline, differing)
        elif differing:  # all resamples of a single sentence are equal, which sacreBLEU's test takes for certainty
            p_values |= dict.fromkeys(differing)
        base_R = base.resampled(resamples_RS)
        for name, counted in others.items():
            result[name][metric] = Difference(
                metric=metric,
                difference=counted.value() - base.value(),
                interval=_interval(counted.resampled(resamples_RS) - base_R) if several else None,
                p_value=p_values[name],
                identical=list(systems[name]) == list(systems[baseline]),
                signature=counted.signature(),
            )
    return result


def score_rows(scores: Mapping[str, Score]) -> list[list[str]]:
    """Return the rows of a Markdown table of scores, below `SCORE_HEADER`: metric, score, interval, signature.

    scores: what `score` returns. Scores of tokenised text are marked as such.
    """
    return [
        [
            LABELS[score.metric] + (" (of tokenised text)" if score.note else ""),
            f"{score.value:.2f}",
            "–" if score.interval is None else f"{_range('{:.2f}', score.interval)} (mean {score.mean:.2f})",
            f"`{score.signature}`",
        ]
        for score in scores.values()
    ]


def difference_rows(comparison: Mapping[str, Mapping[str, Difference]]) -> list[list[str]]:
    """Return the rows of a Markdown table of score differences, in the columns of `DIFFERENCE_HEADER`.

    comparison: what `compare` returns.
    """
    return [
        [
            system,
            LABELS[difference.metric],
            f"{difference.difference:+.2f}",
            "–" if difference.interval is None else _range("{:+.2f}", difference.interval),
            _p_value_text(difference),
        ]
        for system, of_system in comparison.items()
        for difference in of_system.values()
    ]


@dataclasses.dataclass(frozen=True)
class _Counted:
    """A sacreBLEU metric with each sentence's counts (such as n-gram matches), whose sums determine the score.

    measure: the metric, a `sacrebleu.metrics.base.Metric` that has seen the references.
    counts_SC: the counts, of which each metric's score is a function of the sum.
    """

    measure: Any
    counts_SC: np.ndarray

    def value(self) -> float:
        """Return the metric's score of all sentences together."""
        return self._of_sum(self.counts_SC.sum(0))

    def resampled(self, resamples_RS: np.ndarray) -> np.ndarray:
        """Return the score of each bootstrap resample, as an array (resamples,)."""
        return np.array([self._of_sum(self.counts_SC[resample_S].sum(0)) for resample_S in resamples_RS])

    def signature(self) -> str:
        """Return sacreBLEU's signature, which names the number of resamples and the seed, too."""
        return str(self.measure.get_signature())

    def _of_sum(self, counts_C: np.ndarray) -> float:
        # A list, because smoothing may write to the counts; floats of Python, because they print as numbers.
        return float(self.measure._compute_score_from_stats(counts_C.tolist()).score)


def _measure(name: Metric, tokenize: Tokenizer) -> Any:
    """Return a new sacreBLEU metric, whose signature has the number of resamples and the seed."""
    if tokenize not in TOKENIZERS:  # sacreBLEU would download a model for some of the others
        raise ValueError(f"expected a tokenizer of {', '.join(TOKENIZERS)}, got {tokenize!r}")
    from sacrebleu import metrics  # here, because it takes a tenth of a second that only scoring needs

    # `force` leaves out a warning about tokenised text, for which a score has its note.
    constructors: dict[str, Callable[[], Any]] = {
        "bleu": lambda: metrics.BLEU(tokenize=tokenize, force=True),
        "bleu_lowercase": lambda: metrics.BLEU(tokenize=tokenize, lowercase=True, force=True),
        "chrf": metrics.CHRF,
        "ter": metrics.TER,
    }
    measure = constructors[name]()
    measure.n_bootstrap, measure.seed = RESAMPLES, str(_seed())
    return measure


def _count(name: Metric, tokenize: Tokenizer, hypotheses: Sequence[str], references: Sequence[str]) -> _Counted:
    measure = _measure(name, tokenize)
    # Float64 holds these counts exactly; sacreBLEU's own resampling has float32.
    return _Counted(measure, np.array(measure._extract_corpus_statistics(hypotheses, [references]), np.float64))


def _seed() -> int:
    """Return the seed of all bootstrap resamples: SACREBLEU_SEED, or else sacreBLEU's default.

    Raises ValueError if SACREBLEU_SEED asks for other resamples at every call.

    sacreBLEU takes the seeds none and 0 for "no seed" in its paired test.
    """
    text = os.environ.get("SACREBLEU_SEED", SEED)
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(
            f"expected SACREBLEU_SEED to be a positive whole number, got {text!r}: set a number, or unset it"
        )
    return int(text)


def _resamples(sentences: int) -> np.ndarray:
    """Return bootstrap resamples as sacreBLEU draws them: an array (resamples, sentences) of sentence indices."""
    return np.random.default_rng(_seed()).choice(sentences, size=(RESAMPLES, sentences), replace=True)


def _interval(values_R: np.ndarray) -> tuple[float, float]:
    """Return (lower, upper) end of the middle 95 % of the values; both are values themselves, as in sacreBLEU."""
    ordered_R, left_out = np.sort(values_R), len(values_R) // 40
    return float(ordered_R[left_out]), float(ordered_R[-left_out - 1])


def _paired_bootstrap(
    metric: Metric,
    tokenize: Tokenizer,
    systems: Mapping[str, Sequence[str]],
    references: Sequence[str],
    baseline: str,
    others: Sequence[str],
) -> dict[str, float]:
    """Return {system: p-value of its difference from the baseline} by sacreBLEU's paired bootstrap test.

    The null hypothesis is that the systems do not differ. p is (k + 1) / (resamples + 1), for k resamples in which the
    absolute difference exceeds its mean over the resamples by more than the difference of all sentences. This counts
    one tail, so p is about half the p of a two-sided test.
    """
    from sacrebleu.significance import PairedTest

    # One metric at a time, because the test files results under sacreBLEU's names, and both kinds of BLEU are "BLEU".
    test = PairedTest(
        [(name, systems[name]) for name in (baseline, *others)],
        {metric: _measure(metric, tokenize)},
        [references],
        test_type="bs",
        n_samples=RESAMPLES,
    )
    _, columns = test()
    (results,) = (column for key, column in columns.items() if key != "System")
    pairs: Any = zip(others, results[1:], strict=True)  # the first result is the baseline's
    return {name: float(result.p_value) for name, result in pairs}


def _p_value_text(difference: Difference) -> str:
    if difference.identical:
        return "identical, p = 1"
    return "–" if difference.p_value is None else f"{difference.p_value:.2g}"


def _range(form: str, interval: tuple[float, float]) -> str:
    return " to ".join(form.format(end) for end in interval)

"""The numbers of a report on probes: best heads of all arms, baselines and differences, as plain values for JSON."""

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.analysis.heads import choosing
from ag_jax.analysis.heads.choosing import Chosen, Interval, Table
from ag_jax.analysis.heads.measuring import ARRAYS, Measured
from ag_jax.data.probes.queries import ALL, Mode, Probe
from ag_jax.evaluation.significance import over_seeds, spread
from ag_jax.probing import f1
from ag_jax.probing.results import ProbeResult

OFFSET = "offset"  # beginning of the names of baselines of a fixed distance
CONFUSIONS = 5  # most frequent wrong answers that are reported


def table_of(probe: Probe, measured: Measured) -> Table:
    """Return the `Table` of all heads' scores on a probe's queries, with the kinds and documents of the queries.

    Documents are numbered in the order of their names, the same for all models that are asked the same probe.
    """
    names = sorted({window.document for window in probe.windows})
    number = {name: index for index, name in enumerate(names)}
    queries = [probe.queries[index] for index in measured.queries_Q]
    documents = np.array([number[probe.windows[query.window].document] for query in queries])
    kinds = np.array([query.kind for query in queries])
    development_Q = np.asarray(probe.development, bool)[measured.queries_Q]
    return Table(measured.scores_QNH, kinds, documents, development_Q, len(names))


def restricted(measured: Measured, queries: np.ndarray) -> Measured:
    """Return a copy of a measurement with only the queries whose indices are in `queries`."""
    is_common_Q = np.isin(measured.queries_Q, queries)
    arrays: dict[str, Any] = {
        name: None if (array := getattr(measured, name)) is None else array[is_common_Q] for name in ARRAYS
    }
    return Measured(**arrays, dropped=measured.dropped)


def is_guided(result: ProbeResult) -> np.ndarray:
    """Return for each head of every layer whether guidance pulled it towards a pattern, `NH`."""
    config = result.probed.model.config
    return result.probed.assignment.is_guided(config.layers, config.heads)


def numbers(
    mode: Mode, arms: Mapping[str, Sequence[ProbeResult]], compared: Sequence[str], resamples: int
) -> dict[str, Any]:
    """Return the section of report.json on one probe in one mode: best heads, baselines, differences, mistakes.

    Kinds, numbers of queries and baselines are those of the first arm. `unanswerable` are kinds without any correct
    answer. Confusion, mistakes and what was dropped are those of an arm's first seed, for all queries that this model
    was asked.

    arms: for each arm the results of its models on the same probe, in the order of the seeds; the baseline first.
    compared: the arms without those of random models, whose seeds are shared.
    resamples: number of times that documents are resampled.
    """
    # Models are compared on the queries that all of them could be asked.
    queries = [result.modes[mode].queries_Q for results in arms.values() for result in results]
    common = functools.reduce(np.intersect1d, queries)
    measured = {arm: [restricted(result.modes[mode], common) for result in results] for arm, results in arms.items()}
    first = next(iter(arms))
    probe = arms[first][0].probe
    tables = {arm: [table_of(probe, one) for one in of_arm] for arm, of_arm in measured.items()}
    resamples_RD = choosing.resample(tables[first][0].documents, resamples)
    kinds = tables[first][0].kinds
    chosen: dict[str, dict[str, list[Chosen | None]]] = {
        arm: {
            kind: [
                choosing.choose(table, kind, is_guided(result), resamples_RD)
                for table, result in zip(tables[arm], results, strict=True)
            ]
            for kind in kinds
        }
        for arm, results in arms.items()
    }
    chance_Q, kind_Q = measured[first][0].chance_Q, tables[first][0].kind_Q
    return {
        "kinds": list(kinds),
        "unanswerable": [kind for kind in kinds[1:] if not chance_Q[kind_Q == kind].any()],
        "queries": {kind: seeds[0].queries if seeds[0] else 0 for kind, seeds in chosen[first].items()},
        "baselines": _baselines(probe, measured[first][0], tables[first][0]),
        "arms": {
            arm: {
                kind: [_chosen_json(one, result) for one, result in zip(seeds, arms[arm], strict=True)]
                for kind, seeds in of_arm.items()
            }
            for arm, of_arm in chosen.items()
        },
        "means": {arm: {kind: _mean(seeds) for kind, seeds in of_arm.items()} for arm, of_arm in chosen.items()},
        "differences": {
            arm: {kind: _difference(chosen[first][kind], chosen[arm][kind]) for kind in kinds} for arm in list(arms)[1:]
        },
        "differences_over_seeds": _over_seeds({arm: chosen[arm] for arm in compared}),
        "confusion": {arm: _confusion(results[0].probe, results[0].modes[mode]) for arm, results in arms.items()},
        "f1": {
            arm: [
                None if best is None or best.head is None else f1.of_head(probe, one, best.head, kinds)
                for best, one in zip(chosen[arm][ALL], seeds, strict=True)
            ]
            for arm, seeds in measured.items()
        },
        "f1_nearest": f1.of_rule(probe, measured[first][0], "nearest", kinds),
        "compared": list(compared),
        "mistakes": {arm: _mistakes(mode, results[0], chosen[arm]["all"][0]) for arm, results in arms.items()},
        "dropped": {
            arm: dict(results[0].probe.dropped) | dict(results[0].modes[mode].dropped) for arm, results in arms.items()
        },
    }


def _chosen_json(chosen: Chosen | None, result: ProbeResult) -> dict[str, Any] | None:
    """Convert a model's best heads to a dict for JSON, with the pattern towards which `head` is guided, or None."""
    if chosen is None:
        return None
    config = result.probed.model.config
    patterns_NH = result.probed.assignment.patterns(config.layers, config.heads)
    content = dataclasses.asdict(chosen) | {"pattern": patterns_NH[chosen.head] if chosen.head else None}
    if chosen.test is not None:
        content["test"] = {name: getattr(chosen.test, name) for name in ("mean", "low", "high")}
    return content


def _mean(seeds: Sequence[Chosen | None]) -> dict[str, Any]:
    """Return {score: its mean and standard deviation over seeds}; None for a score that a seed lacks."""
    means: dict[str, Any] = {}
    for name in ("test", "best", "mean", "guided", "free"):
        values = [_value(chosen, name) for chosen in seeds]
        numbers = [value for value in values if value is not None]
        means[name] = dataclasses.asdict(spread(numbers)) if len(numbers) == len(values) else None
    return means


def _value(chosen: Chosen | None, name: str) -> float | None:
    value = None if chosen is None else getattr(chosen, name)
    return value.mean if isinstance(value, Interval) else value


def _difference(baseline: Sequence[Chosen | None], other: Sequence[Chosen | None]) -> dict[str, float] | None:
    """Return two arms' difference in test scores, by a paired bootstrap; None if there are too few queries or texts.

    The scores are those of the heads chosen on development queries; None without such heads, or with too few documents.
    """
    sides = [
        [chosen.test for chosen in side if chosen is not None and chosen.test is not None] for side in (baseline, other)
    ]
    if any(not side or any(score.low is None for score in side) for side in sides):
        return None
    return dataclasses.asdict(choosing.difference(*sides))


def _over_seeds(chosen: Mapping[str, Mapping[str, Sequence[Chosen | None]]]) -> dict[str, Any]:
    """Return {arm: {kind: paired t-test over seeds}} of test scores, for arms with as many seeds as the first."""
    first = next(iter(chosen))
    seeds = len(next(iter(chosen[first].values())))
    values: dict[str, dict[str, list[Any]]] = {
        arm: {kind: [_value(test, "test") for test in values_of_seeds] for kind, values_of_seeds in kinds.items()}
        for arm, kinds in chosen.items()
        if len(next(iter(kinds.values()))) == seeds
    }
    complete = {
        arm: {
            kind: values_of_seeds
            for kind, values_of_seeds in kinds.items()
            if all(None not in of_arm[kind] for of_arm in values.values())
        }
        for arm, kinds in values.items()
    }
    tests = over_seeds(complete) if seeds > 1 else {}
    return {
        arm: {kind: None if test is None else dataclasses.asdict(test) for kind, test in values_of_seeds.items()}
        for arm, values_of_seeds in tests.items()
    }


def _baselines(probe: Probe, measured: Measured, table: Table) -> dict[str, dict[str, float | None]]:
    """Return {baseline: {kind: score}} of chance and of the probe's rules; None for a kind without test queries."""
    rules = {name: np.asarray(scores)[measured.queries_Q] for name, scores in probe.baselines.items()}
    offsets = {name: scores for name, scores in rules.items() if name.startswith(OFFSET)}
    fixed = {"chance": measured.chance_Q} | {name: scores for name, scores in rules.items() if name not in offsets}
    scores_of_rules: dict[str, dict[str, float | None]] = {name: {} for name in fixed}
    for kind in table.kinds:
        test_Q = table.of_kind(kind) & ~table.development_Q
        for name, scores in fixed.items():
            scores_of_rules[name][kind] = float(scores[test_Q].mean()) if test_Q.any() else None
        best = choosing.best_offset(offsets, table.of_kind(kind), table.development_Q)
        if best is not None:
            scores_of_rules.setdefault("best fixed offset", {})[kind] = best[1]
    return scores_of_rules


def _confusion(probe: Probe, measured: Measured) -> list[float] | None:
    """Return each layer's mean confusion on test queries with a correct candidate; None without such queries.

    The mean is over heads and queries.
    """
    if measured.confusion_QNH is None:
        return None
    has_right_Q = np.array(
        [bool(probe.queries[index].right) and not probe.development[index] for index in measured.queries_Q]
    )
    if not has_right_Q.any():
        return None
    return measured.confusion_QNH[has_right_Q].mean((0, 2), dtype=np.float64).tolist()


def _mistakes(mode: Mode, result: ProbeResult, chosen: Chosen | None) -> list[dict[str, Any]]:
    """Return a head's most frequent wrong answers as dicts of words, with their number of test queries.

    The head is the one chosen on development, or else the best one on test.
    """
    if chosen is None or mode == "positions":
        return []
    measured, probe = result.modes[mode], result.probe
    layer, head = chosen.head or chosen.best_head
    counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
    for row, index in enumerate(measured.queries_Q):
        query, answer = probe.queries[index], int(measured.chosen_QNH[row, layer, head])
        if probe.development[index] or measured.scores_QNH[row, layer, head] or not query.answers or answer < 0:
            continue
        words = probe.windows[query.window].words
        answer_words = query.candidates[answer] if mode == "mentions" else (answer,)
        text = " ".join(words[word] for word in answer_words)
        counts[words[query.at], text, words[query.answers[-1]]] += 1
    return [
        {"from": source, "to": text, "instead_of": right, "queries": count}
        for (source, text, right), count in counts.most_common(CONFUSIONS)
    ]


def parts(probe: Probe, measured: Measured) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (kind, part, scores `QNH`) for the development and the test part of each kind; empty parts are left out."""
    table = table_of(probe, measured)
    for kind in table.kinds:
        for part, chosen_Q in (("development", table.development_Q), ("test", ~table.development_Q)):
            scores_QNH = table.scores_QNH[table.of_kind(kind) & chosen_Q]
            if len(scores_QNH):
                yield kind, part, scores_QNH


def head_scores(table: Table, kinds: Sequence[str]) -> dict[str, np.ndarray]:
    """Return {kind: mean score of every head on the kind's test queries, `NH`}, without kinds that have none."""
    test = {kind: table.of_kind(kind) & ~table.development_Q for kind in kinds}
    return {kind: table.scores_QNH[test_Q].mean(0, dtype=np.float64) for kind, test_Q in test.items() if test_Q.any()}

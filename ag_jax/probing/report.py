"""The report of a comparison of models by probes, and `scores.csv` with every head."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax.analysis.maps import title
from ag_jax.analysis.report import (
    DASH,
    DIFFERENCE_EXPLAINED,
    DIFFERENCE_HEADER,
    Block,
    Figure,
    Section,
    decimals,
    difference_cells,
    interval,
    settings_section,
)
from ag_jax.analysis.tables import Table
from ag_jax.evaluation.significance import Spread, spread
from ag_jax.probing import summary
from ag_jax.probing.ablation import report as ablation_report
from ag_jax.probing.minimal_pairs import report as pair_report
from ag_jax.probing.results import ProbeResult

MODES = {
    "mentions": "a head chooses among the candidates",
    "words": "a head chooses among the other words, for coreference only those before the mention",
    "positions": "a head chooses among all tokens of the text, also the begin and end tokens",
}
MOST_KINDS = 12  # of a table; rarer kinds are in report.json and scores.csv
MOST_COLUMNS = 5  # kinds that are columns; with more, a second table has a row for each kind
OF_CANDIDATES = ("nearest", "same head", "sieves")  # baselines that choose among candidates in every mode
SIMPLE = ("chance", "best fixed offset", "nearest noun")  # rules that need no candidates
ROWS = {
    "test": "head chosen on development",
    "best": "best head on test",
    "guided": "best guided head on test",
    "free": "best free head on test",
    "mean": "mean of all heads",
}


def sections(
    content: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], figures: Mapping[tuple[str, str], str]
) -> list[Section]:
    """Return the sections of the report of a comparison of models by probes.

    content: the content of report.json.
    settings: the flat settings of each arm.
    figures: path of the figure of each probe and mode, relative to the report.
    """
    explained = (
        "A number is the share of test queries that a head answers correctly. A head is chosen on the development "
        "documents; its score on the test documents has a 95 % interval over documents. The best head on the test "
        "documents themselves, which papers report, has too high a score, because it was chosen on them: compare "
        "it with the random model, which has as many heads."
    )
    models = [f"* **{arm}**: {'; '.join(descriptions)}" for arm, descriptions in content["models"].items()]
    results = [_result(probe, mode, of) for probe, modes in content["probes"].items() for mode, of in modes.items()]
    found = [Section("", ["\n".join(results), "\n".join(models), explained if content["probes"] else ""])]
    resamples = next(iter(settings.values())).get("resamples", 0)
    for probe, modes in content["probes"].items():
        for mode, numbers in modes.items():
            blocks: list[Block] = [f"Mode `{mode}`: {MODES[mode]}."]
            if (probe, mode) in figures:
                blocks.append(Figure(f"Scores of all heads: {probe}, {mode}", figures[probe, mode]))
            blocks += [*_tables(numbers, mode), *_f1(numbers)]
            blocks += [*_differences(numbers, content["baseline"], resamples), *_notes(numbers, mode)]
            found.append(Section(f"{probe}, mode {mode}", blocks))
    if "ablation" in content:
        found.append(ablation_report.section(content["ablation"], content["baseline"]))
    if "minimal_pairs" in content:
        found.append(pair_report.section(content["minimal_pairs"]))
    return [*found, settings_section(settings)]


def _result(probe: str, mode: str, numbers: Mapping[str, Any]) -> str:
    """Return an item of a list: each arm's score on all test queries, of the chosen head, and that of a simple rule."""
    scores = [
        f"**{arm}** {_cell('test', numbers['arms'][arm]['all'], means['all']['test'])}"
        f"{_guided(numbers['arms'][arm]['all'], means['all']['free'])}"
        for arm, means in numbers["means"].items()
    ]
    rule = _rule(numbers, mode)
    level = decimals(numbers["baselines"][rule].get("all"))
    return (
        f"* {probe}, mode {mode}, share of queries that the chosen head answers: {'; '.join(scores)}; {rule} {level}."
    )


def _guided(seeds: Sequence[Mapping[str, Any] | None], free: Mapping[str, float] | None) -> str:
    """Return which patterns guide the chosen heads of an arm, with the score of its best free head, in brackets.

    The result is empty if no chosen head is guided.

    free: mean and deviation of the score of the best free head; None without free heads.
    """
    patterns = [title(one["pattern"]) for one in seeds if one is not None and one["pattern"]]
    if not patterns:
        return ""
    of_seeds = f" with {len(patterns)} of {len(seeds)} seeds" if len(seeds) > 1 else ""
    best = f", {ROWS['free']} {decimals(free['mean'])}" if free else ""
    return f" (guided towards {' or '.join(dict.fromkeys(patterns))}{of_seeds}{best})"


def _kinds_of_tables(numbers: Mapping[str, Any]) -> list[str]:
    """Return the kinds of query that tables show: `all`, and the most frequent ones that have correct answers."""
    return [kind for kind in numbers["kinds"] if kind not in numbers["unanswerable"]][: MOST_KINDS + 1]


def _tables(numbers: Mapping[str, Any], mode: str) -> list[Block]:
    """Return the tables of a probe in one mode, and notes on the kinds of query that they leave out."""
    kinds, unanswerable = _kinds_of_tables(numbers), numbers["unanswerable"]
    is_wide = len(kinds) > MOST_COLUMNS + 1
    blocks: list[Block] = [_table_of_scores(numbers, mode, kinds[:1] if is_wide else kinds)]
    if is_wide:
        text = "By kind, the head chosen on the development queries of that kind, and its score on the test queries:"
        blocks += [text, _table_of_kinds(numbers, kinds[1:])]
    wrong = (
        f"Left out of the kinds: {', '.join(unanswerable)}. No answer to these questions is correct, so that every "
        "head scores 0. They count in *all*."
    )
    rarer = len(numbers["kinds"]) - len(unanswerable) - len(kinds)
    blocks += [
        wrong if unanswerable else "",
        f"{rarer} rarer kinds are in report.json and scores.csv." if rarer else "",
    ]
    return blocks


def _table_of_kinds(numbers: Mapping[str, Any], kinds: Sequence[str]) -> Table:
    """Return a table with a row for each kind of query: number of queries, baselines, and each arm's chosen head."""
    header = ["kind", "test queries", *numbers["baselines"], *(f"**{arm}**" for arm in numbers["means"])]
    rows = []
    for kind in kinds:
        cells = [kind, f"{numbers['queries'][kind]:,}"]
        cells += [decimals(values.get(kind)) for values in numbers["baselines"].values()]
        for arm, means in numbers["means"].items():
            cells.append(_cell("test", numbers["arms"][arm][kind], means[kind]["test"]))
        rows.append(cells)
    return Table(header, rows)


def _f1(numbers: Mapping[str, Any]) -> list[Block]:
    """Return the table of F1 of the chosen heads and what it is; [] unless queries may have no correct candidate."""
    rows = []
    for arm, seeds in {"nearest": [numbers["f1_nearest"]], **numbers["f1"]}.items():
        entries = [entry for entry in seeds if entry is not None]
        # A mean is over all seeds, so an arm has no row if F1 of one of them is unknown.
        if entries and len(entries) == len(seeds):
            name = arm if "head" not in entries[0] else f"**{arm}**"
            if len(entries) == 1 and "head" in entries[0]:
                name += f", head {entries[0]['head'][0]}.{entries[0]['head'][1]}"
            values = [[entry.get("threshold") for entry in entries]]
            values += [[entry["f1"][kind] for entry in entries] for kind in _kinds_of_tables(numbers)]
            values.append([entry["ratio"] for entry in entries])
            rows.append([name, *(_over_seeds(entry) for entry in values)])
    if not rows:
        return []
    header = ["F1", "threshold", *_kinds_of_tables(numbers), "feminine / masculine"]
    return [
        "F1 of the head chosen on development. A candidate that gets less attention than a threshold is not taken "
        "(Webster et al. 2018); the threshold is the best one on development:",
        Table(header, rows),
    ]


def _over_seeds(values: Sequence[float | None]) -> str:
    """Format one number, or the mean and standard deviation of several; a dash if one is unknown."""
    numbers = [value for value in values if value is not None]
    return DASH if len(numbers) < len(values) else str(spread(numbers))


def _table_of_scores(numbers: Mapping[str, Any], mode: str, kinds: Sequence[str]) -> Table:
    """Return a table of scores with a column for each kind of query: rows of baselines, then rows of the arms."""
    rows = [["test queries", *(f"{numbers['queries'][kind]:,}" for kind in kinds)]]
    for name, values in numbers["baselines"].items():
        hint = " (is told the candidates)" if name in OF_CANDIDATES and mode != "mentions" else ""
        rows.append([name + hint, *(decimals(values.get(kind)) for kind in kinds)])
    for arm, means in numbers["means"].items():
        for key, label in ROWS.items():
            if any(means[kind][key] is not None for kind in kinds):
                cells = [_cell(key, numbers["arms"][arm][kind], means[kind][key]) for kind in kinds]
                rows.append([f"**{arm}**, {label}", *cells])
    return Table(["", *kinds], rows)


def _cell(key: str, seeds: Sequence[Mapping[str, Any] | None], mean: Mapping[str, float] | None) -> str:
    """Format a score: of one model with its interval and its head, of several models with the standard deviation."""
    if mean is None:
        return DASH
    one, text = seeds[0], decimals(mean["mean"])
    if len(seeds) > 1 or one is None:
        return str(Spread(mean["mean"], mean["deviation"]))
    if key == "test" and one["test"]["low"] is not None:
        text += f" ({one['test']['low']:.3f} to {one['test']['high']:.3f})"
    head = {"test": one["head"], "best": one["best_head"]}.get(key)
    return f"{text}, head {head[0]}.{head[1]}" if head else text


def _differences(numbers: Mapping[str, Any], baseline: str, resamples: int) -> list[Block]:
    """Return tables of score differences from the first arm: over documents and, with several seeds, over seeds.

    resamples: number of resamples of the bootstrap over documents.
    """
    rows = [
        [arm, kind, f"{one['mean']:+.3f}", interval(one["low"], one["high"]), f"{one['p_value']:.2g}"]
        for arm, kinds in numbers["differences"].items()
        for kind, one in kinds.items()
        if one is not None and kind in _kinds_of_tables(numbers)
    ]
    of_heads = f"Differences from {baseline} in the score of the head chosen on development"
    blocks: list[Block] = []
    if rows:
        blocks += [
            f"{of_heads}, by a paired bootstrap over documents, for these models. {resamples:,} resamples give "
            f"no p below {2 / (resamples + 1):.2g}.",
            Table(["arm", "kind", "difference", "95 % interval", "p"], rows),
        ]
    tested = [
        (kind, [arm, kind, *difference_cells(difference)])
        for arm, kinds in numbers["differences_over_seeds"].items()
        for kind, difference in kinds.items()
        if difference is not None
    ]
    by_seed = [row for kind, row in tested if kind in _kinds_of_tables(numbers)]
    if by_seed:
        # The p-values are corrected for the number of all tests, so the reader must know it.
        remark = ""
        if len(tested) > len(by_seed):
            remark = f" There are {len(tested)} of these tests, because kinds that are not shown count, too."
        table = Table(["arm", "kind", *DIFFERENCE_HEADER], by_seed)
        blocks += [f"{of_heads}, paired by seed. {DIFFERENCE_EXPLAINED}{remark}", table]
    return blocks


def _notes(numbers: Mapping[str, Any], mode: str) -> list[str]:
    """Return notes on a probe: a warning if no head beats a baseline, confusion, mistakes, and what was left out."""
    lines = no_signal(numbers, mode)
    for arm, layers in numbers["confusion"].items():
        if layers is not None:
            listing = ", ".join(f"{value:.2f}" for value in layers)
            lines.append(f"Confusion of {arm} by layer, in bits, the mean over heads: {listing}.")
    for arm, mistakes in numbers["mistakes"].items():
        if mistakes:
            listing = "; ".join(
                f"from *{mistake['from']}* to *{mistake['to']}* instead of *{mistake['instead_of']}* "
                f"({mistake['queries']})"
                for mistake in mistakes
            )
            lines.append(f"Most frequent mistakes of the chosen head of {arm}: {listing}.")
    groups: dict[str, list[str]] = {}  # arms by what was left out, which is the same for models with the same tokenizer
    for arm, dropped in numbers["dropped"].items():
        if dropped:
            groups.setdefault("; ".join(f"{reason}: {count:,}" for reason, count in dropped.items()), []).append(arm)
    left_out = [f"Left out, or read otherwise, for {', '.join(arms)}: {reasons}." for reasons, arms in groups.items()]
    return lines + left_out


def no_signal(numbers: Mapping[str, Any], mode: str) -> list[str]:
    """Return a warning if no trained model's chosen head beats the best simple rule; otherwise []."""
    name = _rule(numbers, mode)
    level = numbers["baselines"][name].get("all")
    tests = [numbers["means"][arm]["all"]["test"] for arm in numbers["compared"]]
    scores = [test["mean"] for test in tests if test is not None]
    if level is None or not scores or max(scores) > level:
        return []
    return [
        f"**No chosen head beats the simple rule *{name}* ({level:.3f}), so these scores and their differences do not "
        "by themselves show what the heads know.**"
    ]


def _rule(numbers: Mapping[str, Any], mode: str) -> str:
    """Return the name of the best simple rule on all test queries, among those that a mode allows, or `chance`."""
    names = [*SIMPLE, *(["nearest"] if mode == "mentions" else [])]
    levels = {name: numbers["baselines"].get(name, {}).get("all") for name in names}
    return max(names, key=lambda name: -1.0 if (level := levels[name]) is None else level)


def csv_text(results: Mapping[str, Mapping[str, Sequence[ProbeResult]]]) -> str:
    """Return the content of `scores.csv`: each head's correct and total queries, by probe, mode, kind and part.

    results: for each arm and probe, the results of its models, in the order of the seeds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arm", "model", "probe", "mode", "kind", "part", "layer", "head", "guided", "right", "total"])
    for arm, probes in results.items():
        for probe, models in probes.items():
            for number, result in enumerate(models):
                guided_NH = summary.is_guided(result)
                for mode, measured in result.modes.items():
                    for kind, part, scores_QNH in summary.parts(result.probe, measured):
                        right_NH = scores_QNH.sum(0, dtype="float64")
                        for layer, of_layer in enumerate(right_NH):
                            for head, right in enumerate(of_layer):
                                place = [arm, number, probe, mode, kind, part, layer, head]
                                guided = int(guided_NH[layer, head])
                                writer.writerow([*place, guided, f"{right:.6g}", len(scores_QNH)])
    return text.getvalue()

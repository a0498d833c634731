"""Write the tables of attacks into docs/reproduction_attacks.md and docs/robustness.md, from recorded lines.

    python benchmarks/evidence_tables.py

The first page has the lines of finetuning_evidence.py, the second those of robustness.py.

A table for each task has the arms that were trained, with scores in percent on the development set (and on the test set
where the trials predicted one). The difference from plain training is paired by seed; p is corrected by Holm's method
for all tests of the table. A second table has the differences of other attacks and of masks from ASA. A trial is at
chance if its loss was not finite, or if its score is less than three standard errors above that of a model that has
learnt nothing; of F1, if no entity is found.
"""

import collections
import math
from collections.abc import Iterator, Mapping, Sequence

import evidence
import pages
import record
from evidence import Line
from finetuning_evidence import ARMS, record_of

from ag_jax.data.tasks import catalogue
from ag_jax.evaluation import significance
from ag_jax.evaluation.significance import PairedDifference

PAGE, ROBUSTNESS_PAGE, ROBUSTNESS = "docs/reproduction_attacks.md", "docs/robustness.md", "robustness_sst2"
TITLES = {"sst2": "SST-2 (accuracy)", "cola": "CoLA (Matthews' correlation)", "wnut17": "WNUT-17 (F1 of entities)"}
TEMPERATURES = {"tau_0.1": "0.1", "asa": "0.3", "tau_0.5": "0.5", "tau_0.8": "0.8"}
PLAIN, ASA = "plain", "asa"
COMPARED_WITH_ASA = ("bernoulli", "scheduled", "magnitude", "freelb", "smart")  # in the paper's tables 3 and 4
MOST_FREQUENT = {"sst2": 444 / 872}  # share of the development set's most frequent class

# Fields of the lines of robustness.py: their names in the table, and by what they are multiplied.
FIGURES = {
    "accuracy": ("accuracy", 100),
    "accuracy_under_attack": ("accuracy under attack", 100),
    "success_rate": ("successful attacks", 100),
    "queries": ("queries", 1),
    "words_changed": ("words changed", 100),
}

WHERE = {"validation": "", "test": " (test)"}  # added to the name of an arm
# Scores of an arm by split and seed; NaN for a trial whose loss was not finite.
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]


def scores(lines: Sequence[Line], task: str) -> Scores:
    """Return the scores of a task, {arm: {split: {seed: primary metric}}}."""
    metric = catalogue.find(task).metric
    found: dict[str, dict[str, dict[int, float]]] = collections.defaultdict(lambda: collections.defaultdict(dict))
    for line in lines:
        if line["task"] == task:
            given = line.get("scores", {"validation": {metric: math.nan}})
            for split, of_split in given.items():
                found[line["arm"]][split][line["seed"]] = of_split[metric]
    return found


def at_chance(task: str, score: float, examples: int) -> bool:
    """Return whether a score on so many examples is less than three standard errors above chance, or is missing.

    For F1, chance is 0, and only a model that finds no entity is at chance.
    """
    if catalogue.find(task).metric == "entity_f1":
        return not score > 0
    level = MOST_FREQUENT.get(task, 0.0)
    error = math.sqrt(level * (1 - level) / examples) if level else 1 / math.sqrt(examples)
    return not score >= level + 3 * error


def differences(
    of: Scores, arms: Sequence[str], baseline: str = PLAIN
) -> dict[str, dict[str, PairedDifference | None]]:
    """Return {arm: {split: difference from the baseline}} over the seeds that no compared arm failed.

    Arms without any score, and arms that still lack a seed of the baseline, are left out.
    """
    splits = of[baseline]
    scored = [
        arm
        for arm in arms
        if of[arm]["validation"].keys() >= splits["validation"].keys()
        and any(not math.isnan(one) for one in of[arm]["validation"].values())
    ]
    given: dict[str, dict[str, list[float]]] = {arm: {} for arm in (baseline, *scored)}
    for split in splits:
        seeds = sorted(
            set.intersection(
                *({seed for seed, one in of[arm].get(split, {}).items() if not math.isnan(one)} for arm in given)
            )
        )
        for arm in given:
            given[arm][split] = [100 * of[arm][split][seed] for seed in seeds]
    return significance.over_seeds(given)


def compared(lines: Sequence[Line], task: str, arms: Mapping[str, str], first: str) -> list[str]:
    """Return the lines of a table with plain training and the arms that have trials.

    arms: names of the arms in the table.
    first: name of the first column.
    """
    of = scores(lines, task)
    there = {arm: name for arm, name in arms.items() if arm in of}
    examples = next(line["examples"] for line in lines if line["task"] == task)
    found = differences(of, list(there))
    rows = []
    for arm, name in {PLAIN: PLAIN, **there}.items():
        for split, by_seed in of[arm].items():
            known = [100 * one for one in by_seed.values() if not math.isnan(one)]
            low = sum(at_chance(task, one, examples[split]) for one in by_seed.values())
            spread = significance.spread(known) if known else None
            deviation = "" if spread is None or spread.deviation is None else f" ± {spread.deviation:.1f}"
            shown = [f"{name}{WHERE[split]}", str(len(by_seed)), f"{spread.mean:.1f}{deviation}" if spread else "–"]
            rows.append([*shown, *pages.difference_cells(found.get(arm, {}).get(split), 1), str(low)])
    header = (first, "seeds", "score", *pages.DIFFERENCE, "seeds at chance")
    return pages.table(header, rows)


def against_asa(lines: Sequence[Line], task: str) -> list[str]:
    """Return the lines of a table with the differences of `COMPARED_WITH_ASA` from ASA; none if there are none."""
    of = scores(lines, task)
    if ASA not in of:
        return []
    found = differences(of, [arm for arm in COMPARED_WITH_ASA if arm in of], ASA)
    rows = [
        [f"{arm}{WHERE[split]}", *pages.difference_cells(difference, 1)]
        for arm, by_split in found.items()
        for split, difference in by_split.items()
    ]
    title = "Other attacks, and masks that are not learned, minus `asa`:"
    return [title, "", *pages.table(("arm", *pages.DIFFERENCE), rows)] if rows else []


def masked(lines: Sequence[Line]) -> list[str]:
    """Return the lines of a table with the share of units that each arm masked, by layer, as means over seeds."""
    shares: dict[tuple[str, str], list[list[float]]] = collections.defaultdict(list)
    for line in lines:
        if "masked" in line:
            shares[line["task"], line["arm"]].append([line["masked"]["all"], *line["masked"]["layers"]])
    if not shares:
        return []
    layers = len(next(iter(shares.values()))[0]) - 1
    rows = [
        [TITLES[task].split(" (")[0], arm, *(f"{100 * sum(each) / len(each):.1f} %" for each in zip(*of, strict=True))]
        for (task, arm), of in shares.items()
    ]
    header = ("task", "arm", "all layers", *(f"layer {layer}" for layer in range(layers)))
    title = "Units (pairs of tokens) that were masked in the last fifth of training:"
    return [title, "", *pages.table(header, rows)]


def tables(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of all tables, as Markdown."""
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    for task in tasks:
        of_task = [line for line in lines if line["task"] == task]
        arms = [arm for arm in dict.fromkeys(line["arm"] for line in of_task) if not arm.startswith("tau_")]
        rate = of_task[0]["learning_rate"]
        sizes = of_task[0]["examples"]
        yield from (f"**{TITLES[task]}**, {sizes['train']:,} examples, learning rate {rate:g}:", "")
        yield from compared(lines, task, {arm: arm for arm in arms if arm != PLAIN}, "arm")
        yield from against_asa(of_task, task)
        if any(line["arm"].startswith("tau_") for line in of_task):
            yield from (f"**{TITLES[task]}, temperatures τ of ASA** (0.3 in the table above):", "")
            yield from compared(lines, task, TEMPERATURES, "τ")
    yield from masked(lines)


def robustness(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of the tables of attacked models: the figures of each arm, and differences from plain training.

    lines: in any order; every arm has the same seeds.
    """
    of: dict[str, dict[str, list[float]]] = {PLAIN: {}}
    lines = sorted(lines, key=lambda line: line["seed"])
    for line in lines:
        for field, (name, factor) in FIGURES.items():
            of.setdefault(line["arm"], {}).setdefault(name, []).append(factor * line[field])
    seeds = {arm: [line["seed"] for line in lines if line["arm"] == arm] for arm in of}
    if len(set(map(tuple, seeds.values()))) > 1:
        raise ValueError(f"arms are paired by seed, got different ones: {seeds}; run the missing ones")
    rows = []
    for arm, figures in of.items():
        spreads = [significance.spread(values) for values in figures.values()]
        rows.append([arm, *(f"{one.mean:.1f} ± {one.deviation:.1f}" for one in spreads)])
    yield from pages.table(("arm", *(name for name, _ in FIGURES.values())), rows)
    yield from ("Differences from plain training, paired by seed:", "")
    differences = significance.over_seeds(of)
    rows = [
        [
            arm,
            FIGURES[field][0],
            *pages.difference_cells(by_name[FIGURES[field][0]], 1),
            _over_examples(lines, arm, field),
        ]
        for arm, by_name in differences.items()
        for field in FIGURES
    ]
    yield from pages.table(("arm", "of", *pages.DIFFERENCE, "p over examples"), rows)


def _over_examples(lines: Sequence[Line], arm: str, field: str) -> str:
    """Return the p-value over examples of an arm's difference from plain training; a dash for what is no accuracy."""
    if field not in (right := {"accuracy": "fr", "accuracy_under_attack": "r"}):
        return "–"
    scores = [
        [[letter in right[field] for letter in line["outcomes"]] for line in lines if line["arm"] == one]
        for one in (PLAIN, arm)
    ]
    p_value = significance.paired_t_test_over_examples(*scores)
    return "–" if p_value is None else pages.shown_p(p_value)


def recorded() -> list[Line]:
    """Return the lines of all tasks."""
    return [line for task in ARMS for line in evidence.read(record_of(record.RESULTS, task))]


if __name__ == "__main__":
    pages.write(PAGE, "evidence_tables.py", tables(recorded()))
    pages.write(ROBUSTNESS_PAGE, "evidence_tables.py", robustness(evidence.read(record.RESULTS / ROBUSTNESS)))

"""The tables of a fine-tuning report with scores, and with differences between arms."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from ag_jax.analysis.report import (
    DASH,
    DIFFERENCE_EXPLAINED,
    DIFFERENCE_HEADER,
    Section,
    difference_cells,
    percent,
)
from ag_jax.analysis.tables import Table
from ag_jax.evaluation.significance import SIGNIFICANT
from ag_jax.finetuning import trivial
from ag_jax.finetuning.summary import headline, splits

OVER_EXAMPLES = "p over examples"  # a column


def cell(summary: Mapping[str, Any]) -> str:
    """Format a metric over seeds as `mean ± standard deviation (median)`, or as the value itself for a single seed."""
    if summary["n"] == 1:
        return percent(summary["mean"])
    return f"{percent(summary['mean'])} ± {percent(summary['deviation'])} ({percent(summary['median'])})"


def marks(p_values: Mapping[str, float | None] | None, difference: float) -> str:
    """Return significance marks of a difference from the baseline: `+` over seeds, `*` over examples, "" for neither.

    `+` stands for p < .05 in the test over seeds, `*` for p < .05 in the test over examples.

    p_values: the p-values over seeds and over examples; None for the baseline.
    difference: the difference of means, of either sign; there are no marks if it is 0.
    """
    return "".join(
        mark
        for mark, pairs in (("+", "seeds"), ("*", "examples"))
        if p_values and difference and (p_value := p_values[pairs]) is not None and p_value < SIGNIFICANT
    )


def _metrics(task: Mapping[str, Any], split: str) -> list[str]:
    """Return the names of the metrics of a split, the primary one first."""
    names = next(of_arm["splits"][split] for of_arm in task["arms"].values() if split in of_arm["splits"])
    return sorted(names, key=lambda name: name != task["metric"])


def _last_epochs(numbers: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the part of a sentence that names the tasks whose last epoch is scored instead of the best; "" if none."""
    of_baseline = settings[numbers["baseline"]]  # the arms have the same `scored_epoch`
    tasks = [name for name in numbers["tasks"] if of_baseline.get(f"tasks.{name}.scored_epoch") == "last"]
    return f", but of {', '.join(tasks)} the last epoch, the only one that was evaluated" if tasks else ""


def scores(numbers: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> Section:
    """Return the section with the primary metric of each task, and of a single task with all metrics."""
    seeds, arms = numbers["seeds"], numbers["arms"]
    points = {len(of_arm["sweep"]) for task in numbers["tasks"].values() for of_arm in task["arms"].values()}
    of_sweep = "of every sweep the point with the best median on the development set, " if max(points) > 1 else ""
    epoch = f"of every trial the epoch that was best on the development set{_last_epochs(numbers, settings)}"
    p = f"p < {SIGNIFICANT:g}"
    texts = [
        f"Mean ± standard deviation over {len(seeds)} seeds ({', '.join(map(str, seeds))}), and in brackets the median."
        if len(seeds) > 1
        else f"One seed ({seeds[0]}).",
        f"Scores are in percent, {of_sweep}{epoch}.",
        f"*No model* is {without_model(numbers)}."
        if any(task["trivial"] for task in numbers["tasks"].values())
        else "",
        "*Together* is the ensemble of the seeds' models, whose scores are averaged." if len(seeds) > 1 else "",
        f"`+` {p} over seeds, `*` {p} over examples: paired t-tests against {numbers['baseline']}."
        if len(arms) > 1
        else "",
    ]
    is_one = len(numbers["tasks"]) == 1
    rows = [
        _score_row(numbers, name, split, metric)
        for name, task in numbers["tasks"].items()
        for split in splits(task)
        for metric in _metrics(task, split)[: None if is_one else 1]
    ]
    return Section("Scores", [" ".join(filter(None, texts)), _score_table(numbers, rows)])


def without_model(numbers: Mapping[str, Any]) -> str:
    """Return in words what the trivial predictions of all tasks are."""
    return " or ".join(
        dict.fromkeys(trivial.named(task["kind"]) for task in numbers["tasks"].values() if task["trivial"])
    )


def other_metrics(numbers: Mapping[str, Any]) -> Section:
    """Return the section with the metrics that the table of scores of several tasks does not have."""
    rows = [
        _score_row(numbers, name, split, metric)
        for name, task in numbers["tasks"].items()
        for split in splits(task)
        for metric in _metrics(task, split)[1:]
    ]
    return Section("Other metrics", [_score_table(numbers, rows)] if rows else [])


def _score_row(numbers: Mapping[str, Any], name: str, split: str, metric: str) -> list[str]:
    """Return a row of a table of scores: task, set, metric, the score of each arm, and that without a model.

    The score of the ensemble has a column of its own if there is one arm.
    """
    task = numbers["tasks"][name]
    is_tested = metric == task["metric"] and split == task["arms"][numbers["baseline"]]["headline"]
    base, cells = headline(task["arms"][numbers["baseline"]], task["metric"])["mean"], []
    for of_arm in (task["arms"][arm] for arm in numbers["arms"]):
        summary = of_arm["splits"].get(split, {}).get(metric)
        text = DASH if summary is None else cell(summary)
        if summary is not None and is_tested:
            text += marks(of_arm["p_value"], summary["mean"] - base)
        together = percent(of_arm["ensemble"].get(split, {}).get(metric))
        if len(numbers["arms"]) == 1:
            cells += [text, together]
        else:
            cells.append(text if together == DASH else f"{text}; together {together}")
    no_model = task["trivial"].get(split, {}).get("metrics", {}).get(metric)
    return [name, split, metric, *cells, percent(no_model)]


def _score_table(numbers: Mapping[str, Any], rows: Sequence[list[str]]) -> Table:
    """Return the table of `_score_row`s without the columns that say nothing.

    A single arm's column is named by its metric, if all rows have the same.
    """
    arms, metrics = numbers["arms"], {row[2] for row in rows}
    is_same = len(arms) == 1 and len(metrics) == 1
    columns = arms if len(arms) > 1 else [*(metrics if is_same else ["Score"]), "Together"]
    header = ["Task", "Set", "Metric", *columns, "No model"]
    hidden = ({"Task"} if len(numbers["tasks"]) == 1 else set()) | ({"Metric"} if is_same else set())
    return without(Table(header, rows), hidden)


def without(table: Table, hidden: Set[str] = frozenset()) -> Table:
    """Return a table without the columns `hidden`, and without those that have a dash in all rows."""
    columns = [
        place
        for place, name in enumerate(table.header)
        if name not in hidden and any(row[place] != DASH for row in table.rows)
    ]
    return Table([table.header[place] for place in columns], [[row[place] for place in columns] for row in table.rows])


def differences(numbers: Mapping[str, Any]) -> Section:
    """Return the section with the differences of arms from the baseline on each task, and their tests."""
    rows = []
    for name, task in numbers["tasks"].items():
        base = headline(task["arms"][numbers["baseline"]], task["metric"])["mean"]
        for arm, of_arm in numbers["differences"].items():
            p_value = task["arms"][arm]["p_value"]["examples"]
            difference = f"{100 * (headline(task['arms'][arm], task['metric'])['mean'] - base):+.1f}"
            if of_arm[name] is None:
                cells = [difference, *[DASH] * (len(DIFFERENCE_HEADER) - 1)]
            else:
                cells = difference_cells(of_arm[name], scale=100, digits=1)
            rows.append([name, arm, *cells, DASH if p_value is None else f"{p_value:.2g}"])
    hidden = {"Task"} if len(numbers["tasks"]) == 1 else set()
    table = without(Table(["Task", "Arm", *DIFFERENCE_HEADER, OVER_EXAMPLES], rows), hidden)
    texts = [
        f"Against {numbers['baseline']}, differences of means.",
        "A test over seeds needs two or more, and differences that are not all the same.",
        DIFFERENCE_EXPLAINED if DIFFERENCE_HEADER[-1] in table.header else "",
        "Over examples the score of each is its mean over seeds: right or not, minus the squared error of a number, F1 "
        "of an answer or of the labels of an example, and of a tagged sentence, whose entities' F1 is no mean over "
        "sentences, the part of its words that are right."
        if OVER_EXAMPLES in table.header
        else "",
    ]
    return Section("Differences", [" ".join(filter(None, texts)), table])

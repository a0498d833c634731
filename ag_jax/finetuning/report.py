"""The Markdown report of `ag-jax finetune`: tables of scores, significance tests, sweeps, example counts and times.

`numbers` is the content of report.json. Metrics are fractions there, and percentages in the tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax.analysis.markdown import table
from ag_jax.evaluation.significance import SIGNIFICANT
from ag_jax.pretraining.report import (
    DIFFERENCE_EXPLAINED,
    DIFFERENCE_HEADER,
    difference_cells,
    flag_warnings,
    settings_table,
)

ReportFigures = dict[str, Any]


def markdown(numbers: ReportFigures, settings: Mapping[str, Mapping[str, Any]], sections: Sequence[str] = ()) -> str:
    """Return the report of `ag-jax finetune` as Markdown: tables of scores, sweeps and settings, with `sections`.

    numbers: the content of report.json.
    settings: the flat settings of each arm.
    sections: further lines, inserted below the tables of scores.
    """
    arms = numbers["arms"]
    lines = [
        f"# {numbers['title']}",
        "",
        f"`{numbers['command']}`",
        "",
        *flag_warnings(numbers.get("overridden", ())),
    ]
    lines += _scores(numbers, arms, settings) + _significance(numbers, arms) + _all_metrics(numbers, arms)
    lines += list(sections) + _sweeps(numbers, arms) + _counts(numbers, arms) + _notes(numbers)
    if len(arms) > 1:
        lines += ["## What differs between the arms", "", *settings_table(settings)]
    return "\n".join(lines)


def percent(value: float) -> str:
    """Format a fraction as a percentage with one decimal, without the sign %."""
    return f"{100 * value:.1f}"


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


def headline(of_arm: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """Return the summary over seeds of an arm's metric on a task, on the split by which arms are compared."""
    return of_arm["splits"][of_arm["headline"]][metric]


def _last_epochs(numbers: ReportFigures, settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the part of a sentence that names the tasks whose last epoch is scored instead of the best; "" if none."""
    of_baseline = settings[numbers["baseline"]]  # the arms have the same `scored_epoch`
    tasks = [name for name in numbers["tasks"] if of_baseline.get(f"tasks.{name}.scored_epoch") == "last"]
    return f", but of {', '.join(tasks)} the last epoch, the only one that was evaluated" if tasks else ""


def _scores(numbers: ReportFigures, arms: list[str], settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    seeds, several_seeds = numbers["seeds"], len(numbers["seeds"]) > 1
    over = f"over {len(seeds)} seeds ({', '.join(map(str, seeds))})"
    lines = ["## Scores", ""]
    lines += [
        f"Mean ± standard deviation {over}, and in brackets the median." if several_seeds else f"One seed ({seeds[0]})."
    ]
    points = {len(of_arm["sweep"]) for task in numbers["tasks"].values() for of_arm in task["arms"].values()}
    of_sweep = "of every sweep the point with the best median on the development set, " if max(points) > 1 else ""
    epoch = f"of every trial the epoch that was best on the development set{_last_epochs(numbers, settings)}"
    lines += [f"Shown is {of_sweep}{epoch}."]
    if len(arms) > 1:
        p = f"p < {SIGNIFICANT:g}"
        lines += [f"`+` {p} over seeds, `*` {p} over examples: paired t-tests against {numbers['baseline']}."]
    rows = []
    for name, task in numbers["tasks"].items():
        scores = {arm: headline(task["arms"][arm], task["metric"]) for arm in arms}
        base = scores[numbers["baseline"]]["mean"]
        cells = [
            cell(score) + marks(task["arms"][arm]["p_value"], score["mean"] - base) for arm, score in scores.items()
        ]
        rows.append([name, task["metric"], next(iter(task["arms"].values()))["headline"], *cells])
        rows += _further_rows(name, task, arms)
    return [*lines, "", *table(["Task", "Metric", "Set", *arms], rows)]


def _further_rows(name: str, task: Mapping[str, Any], arms: list[str]) -> list[list[str]]:
    """Return further rows of the table of scores: a task's labelled test sets, with the scores of all arms."""
    metric, of_arms = task["metric"], task["arms"]
    names = dict.fromkeys(split for arm in arms for split in of_arms[arm]["splits"] if split.startswith("test"))
    summaries = {split: [of_arms[arm]["splits"].get(split, {}).get(metric) for arm in arms] for split in names}
    return [
        [name, metric, split, *("–" if summary is None else cell(summary) for summary in of_split)]
        for split, of_split in summaries.items()
    ]


def _significance(numbers: ReportFigures, arms: list[str]) -> list[str]:
    if len(arms) == 1:
        return []
    rows = []
    for name, task in numbers["tasks"].items():
        base = headline(task["arms"][numbers["baseline"]], task["metric"])["mean"]
        for arm, of_arm in numbers["differences"].items():
            p_value = task["arms"][arm]["p_value"]["examples"]
            difference = f"{100 * (headline(task['arms'][arm], task['metric'])['mean'] - base):+.1f}"
            if of_arm[name] is None:
                cells = [difference, *["–"] * (len(DIFFERENCE_HEADER) - 1)]
            else:
                cells = difference_cells(of_arm[name], scale=100, digits=1)
            rows.append([name, arm, *cells, "–" if p_value is None else f"{p_value:.2g}"])
    return [
        "## Differences",
        "",
        f"Against {numbers['baseline']}, differences of means. A test over seeds needs two or more, and differences "
        f"that are not all the same. {DIFFERENCE_EXPLAINED} Over examples the score of each is its mean over seeds: "
        "right or not, minus the squared error of a number, F1 of an answer, and of a tagged sentence, whose entities' "
        "F1 is no mean over sentences, the part of its words that are right.",
        "",
        *table(["Task", "Arm", *DIFFERENCE_HEADER, "p over examples"], rows),
    ]


def _all_metrics(numbers: ReportFigures, arms: list[str]) -> list[str]:
    rows = []
    for name, task in numbers["tasks"].items():
        for split in dict.fromkeys(split for of_arm in task["arms"].values() for split in of_arm["splits"]):
            metrics = next(of_arm["splits"][split] for of_arm in task["arms"].values() if split in of_arm["splits"])
            for metric in metrics:
                row = [name, split, metric]
                for arm in arms:
                    of_arm = task["arms"][arm]
                    together = of_arm["ensemble"].get(split, {}).get(metric)
                    summary = of_arm["splits"].get(split, {}).get(metric)
                    text = "–" if summary is None else cell(summary)
                    row.append(text if together is None else f"{text}; together {percent(together)}")
                rows.append(row)
    several_seeds = len(numbers["seeds"]) > 1
    explanation = (
        ["*Together* is the ensemble of the seeds' models, whose scores are averaged.", ""] if several_seeds else []
    )
    return ["## All sets and metrics", "", *explanation, *table(["Task", "Set", "Metric", *arms], rows)]


def _sweeps(numbers: ReportFigures, arms: list[str]) -> list[str]:
    rows = []
    points = [
        point for task in numbers["tasks"].values() for of_arm in task["arms"].values() for point in of_arm["sweep"]
    ]
    swept_names = list(dict.fromkeys(name for point in points for name in point.get("swept", {})))
    for name, task in numbers["tasks"].items():
        for arm in arms:
            for point in task["arms"][arm]["sweep"]:
                mark = "**" if point["chosen"] else ""
                epochs = ", ".join(map(str, point["best_epochs"]))
                rate, median = (
                    f"{mark}{values}{mark}" for values in (f"{point['learning_rate']:g}", percent(point["median"]))
                )
                swept = point.get("swept", {})
                values = [f"{swept[swept_name]:g}" if swept_name in swept else "–" for swept_name in swept_names]
                point_cells = [rate, str(point["batch_size"]), *values]
                rows.append([name, arm, *point_cells, median, cell(point), str(point["n"]), epochs])
    # A column for each setting that some task sweeps; the others have a dash there.
    columns = [swept_name.replace("_", " ").capitalize() for swept_name in swept_names]
    header = ["Task", "Arm", "Learning rate", "Batch", *columns]
    header += ["Median", "Mean ± deviation (median)", "Seeds", "Best epochs"]
    return ["## Sweeps", "", "On the development set; what was chosen is bold.", "", *table(header, rows)]


def _counts(numbers: ReportFigures, arms: list[str]) -> list[str]:
    rows = []
    for name, task in numbers["tasks"].items():
        for arm in arms:
            counts = task["arms"][arm]["counts"]
            keys = ("train", "validation", "truncated", "cut_words", "lost", "skipped", "trials")
            cells = [f"{counts[key]:,}" for key in keys]
            rows.append([name, arm, *cells, f"{task['arms'][arm]['seconds']:,.0f}"])
    header = [
        "Task",
        "Arm",
        "Training examples",
        "Development examples",
        "Cut to fit",
        "Tagged words cut off",
        "Answers in no window",
    ]
    header += ["Malformed, left out", "Trials", "Seconds"]
    explanation = "What was cut off, lost or left out is of all sets; seconds are those of all trials together."
    return ["## Examples and times", "", explanation, "", *table(header, rows)]


def _notes(numbers: ReportFigures) -> list[str]:
    notes = [f"- {name}: {note}" for name, task in numbers["tasks"].items() for note in task["notes"]]
    return ["## Notes", "", *notes, ""] if notes else []

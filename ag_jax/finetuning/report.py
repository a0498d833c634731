"""The report of fine-tuning: its numbers, and sections on scores, significance tests, sweeps, examples and times.

Metrics are fractions in the numbers, the content of report.json, and percentages in the tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax.analysis.report import (
    DASH,
    DIFFERENCE_EXPLAINED,
    DIFFERENCE_HEADER,
    Section,
    difference_cells,
    differences_json,
    percent,
    settings_section,
)
from ag_jax.analysis.tables import Table
from ag_jax.evaluation.significance import SIGNIFICANT, over_seeds
from ag_jax.finetuning import results
from ag_jax.finetuning.results import Chosen

COUNTS = {
    "train": "Training examples",
    "validation": "Development examples",
    "truncated": "Cut to fit",
    "cut_words": "Tagged words cut off",
    "lost": "Answers in no window",
    "skipped": "Malformed, left out",
    "trials": "Trials",
}


def numbers(
    seeds: Sequence[int], chosen: Mapping[str, Mapping[str, Chosen]], notes: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the numbers of each task and arm, and the differences of arms from the first one, as JSON values.

    chosen: the results of each arm, by task; the baseline first.
    notes: the notes on each task.
    """
    baseline, of_baseline = next(iter(chosen.items()))
    tasks: dict[str, dict[str, Any]] = {
        name: {
            "metric": of_task.task.metric,
            "kind": of_task.task.kind,
            "arms": {
                arm: results.of_arm(of_arm[name], None if arm == baseline else of_task)
                for arm, of_arm in chosen.items()
            },
            "notes": list(notes[name]),
        }
        for name, of_task in of_baseline.items()
    }
    scores = {
        arm: {name: headline(task["arms"][arm], task["metric"])["values"] for name, task in tasks.items()}
        for arm in chosen
    }
    return {
        "seeds": list(seeds),
        "arms": list(chosen),
        "baseline": baseline,
        "tasks": tasks,
        "differences": differences_json(over_seeds(scores)),
    }


def sections(
    numbers: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], of_attacks: Sequence[Section] = ()
) -> list[Section]:
    """Return the sections of the report of `ag-jax finetune`.

    numbers: the content of report.json.
    settings: the flat settings of each arm.
    of_attacks: the sections on attacks (`attacked.sections`).
    """
    arms = numbers["arms"]
    notes = [f"- {name}: {note}" for name, task in numbers["tasks"].items() for note in task["notes"]]
    several = len(arms) > 1
    return [
        _scores(numbers, arms, settings),
        *([_significance(numbers, arms)] if several else []),
        _all_metrics(numbers, arms),
        *of_attacks,
        _sweeps(numbers, arms),
        _counts(numbers, arms),
        Section("Notes", ["\n".join(notes)]),
        *([settings_section(settings)] if several else []),
    ]


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


def _last_epochs(numbers: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the part of a sentence that names the tasks whose last epoch is scored instead of the best; "" if none."""
    of_baseline = settings[numbers["baseline"]]  # the arms have the same `scored_epoch`
    tasks = [name for name in numbers["tasks"] if of_baseline.get(f"tasks.{name}.scored_epoch") == "last"]
    return f", but of {', '.join(tasks)} the last epoch, the only one that was evaluated" if tasks else ""


def _scores(numbers: Mapping[str, Any], arms: list[str], settings: Mapping[str, Mapping[str, Any]]) -> Section:
    seeds = numbers["seeds"]
    over = (
        f"Mean ± standard deviation over {len(seeds)} seeds ({', '.join(map(str, seeds))}), and in brackets the median."
    )
    points = {len(of_arm["sweep"]) for task in numbers["tasks"].values() for of_arm in task["arms"].values()}
    of_sweep = "of every sweep the point with the best median on the development set, " if max(points) > 1 else ""
    epoch = f"of every trial the epoch that was best on the development set{_last_epochs(numbers, settings)}"
    p, rows = f"p < {SIGNIFICANT:g}", []
    marked = f"`+` {p} over seeds, `*` {p} over examples: paired t-tests against {numbers['baseline']}."
    for name, task in numbers["tasks"].items():
        scores = {arm: headline(task["arms"][arm], task["metric"]) for arm in arms}
        base = scores[numbers["baseline"]]["mean"]
        cells = [
            cell(score) + marks(task["arms"][arm]["p_value"], score["mean"] - base) for arm, score in scores.items()
        ]
        rows.append([name, task["metric"], next(iter(task["arms"].values()))["headline"], *cells])
        rows += _further_rows(name, task, arms)
    return Section(
        "Scores",
        [
            over if len(seeds) > 1 else f"One seed ({seeds[0]}).",
            f"Shown is {of_sweep}{epoch}.",
            marked if len(arms) > 1 else "",
            Table(["Task", "Metric", "Set", *arms], rows),
        ],
    )


def _further_rows(name: str, task: Mapping[str, Any], arms: list[str]) -> list[list[str]]:
    """Return further rows of the table of scores: a task's labelled test sets, with the scores of all arms."""
    metric, of_arms = task["metric"], task["arms"]
    names = dict.fromkeys(split for arm in arms for split in of_arms[arm]["splits"] if split.startswith("test"))
    summaries = {split: [of_arms[arm]["splits"].get(split, {}).get(metric) for arm in arms] for split in names}
    return [
        [name, metric, split, *(DASH if summary is None else cell(summary) for summary in of_split)]
        for split, of_split in summaries.items()
    ]


def _significance(numbers: Mapping[str, Any], arms: list[str]) -> Section:
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
    explained = (
        f"Against {numbers['baseline']}, differences of means. A test over seeds needs two or more, and differences "
        f"that are not all the same. {DIFFERENCE_EXPLAINED} Over examples the score of each is its mean over seeds: "
        "right or not, minus the squared error of a number, F1 of an answer, and of a tagged sentence, whose entities' "
        "F1 is no mean over sentences, the part of its words that are right."
    )
    return Section("Differences", [explained, Table(["Task", "Arm", *DIFFERENCE_HEADER, "p over examples"], rows)])


def _all_metrics(numbers: Mapping[str, Any], arms: list[str]) -> Section:
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
                    text = DASH if summary is None else cell(summary)
                    row.append(text if together is None else f"{text}; together {percent(together)}")
                rows.append(row)
    explained = "*Together* is the ensemble of the seeds' models, whose scores are averaged."
    table = Table(["Task", "Set", "Metric", *arms], rows)
    return Section("All sets and metrics", [explained if len(numbers["seeds"]) > 1 else "", table])


def _sweeps(numbers: Mapping[str, Any], arms: list[str]) -> Section:
    rows = []
    points = [
        point for task in numbers["tasks"].values() for of_arm in task["arms"].values() for point in of_arm["sweep"]
    ]
    swept_names = list(dict.fromkeys(name for point in points for name in point.get("swept", {})))
    for name, task in numbers["tasks"].items():
        for arm in arms:
            for point in task["arms"][arm]["sweep"]:
                mark, swept = "**" if point["chosen"] else "", point.get("swept", {})
                rate, median = f"{mark}{point['learning_rate']:g}{mark}", f"{mark}{percent(point['median'])}{mark}"
                values = [f"{swept[swept_name]:g}" if swept_name in swept else DASH for swept_name in swept_names]
                epochs = ", ".join(map(str, point["best_epochs"]))
                cells = [rate, str(point["batch_size"]), *values, median, cell(point), str(point["n"]), epochs]
                rows.append([name, arm, *cells])
    # A column for each setting that some task sweeps; the others have a dash there.
    columns = [swept_name.replace("_", " ").capitalize() for swept_name in swept_names]
    header = ["Task", "Arm", "Learning rate", "Batch", *columns]
    header += ["Median", "Mean ± deviation (median)", "Seeds", "Best epochs"]
    return Section("Sweeps", ["On the development set; what was chosen is bold.", Table(header, rows)])


def _counts(numbers: Mapping[str, Any], arms: list[str]) -> Section:
    rows = []
    for name, task in numbers["tasks"].items():
        for arm in arms:
            of_arm = task["arms"][arm]
            counts = [f"{of_arm['counts'][key]:,}" for key in COUNTS]
            rows.append([name, arm, *counts, f"{of_arm['seconds']:,.0f}"])
    explained = "What was cut off, lost or left out is of all sets; seconds are those of all trials together."
    table = Table(["Task", "Arm", *COUNTS.values(), "Seconds"], rows)
    return Section("Examples and times", [explained, table])

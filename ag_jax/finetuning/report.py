"""The report of fine-tuning: its numbers, the result in sentences, and sections on scores, tests, errors and sweeps.

Metrics are fractions in the numbers, the content of report.json, and percentages in the sentences and tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis.figures import canvas, learning
from ag_jax.analysis.report import (
    DASH,
    Block,
    Section,
    differences_json,
    percent,
    settings_section,
)
from ag_jax.analysis.tables import Table, verbatim
from ag_jax.evaluation.significance import over_seeds
from ag_jax.finetuning import error_analysis, results, score_tables, trivial
from ag_jax.finetuning.results import Chosen
from ag_jax.finetuning.summary import headline, sentences
from ag_jax.settings import schema

COUNTS = {
    "train": "Training examples",
    "validation": "Development examples",
    "truncated": "Cut to fit",
    "cut_words": "Tagged words cut off",
    "lost": "Answers in no window",
    "skipped": "Malformed, left out",
    "trials": "Trials",
}
# Of the counts, those of only some kinds of tasks, by the beginnings of the kinds.
ONLY_OF = {"cut_words": "tagging", "lost": "span"}
MOST_SETTINGS = 3  # by which an arm is described; all are in a table


def numbers(
    seeds: Sequence[int],
    chosen: Mapping[str, Mapping[str, Chosen]],
    notes: Mapping[str, Sequence[str]],
    workdir: epath.Path,
) -> dict[str, Any]:
    """Return the numbers of each task and arm, and the differences of arms from the first one, as JSON values.

    chosen: the results of each arm, by task; the baseline first.
    notes: the notes on each task.
    workdir: the directory of the report.
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
            "examples": {split: len(predicted.examples) for split, predicted in of_task.predicted.items()},
            "trivial": _trivial(of_task),
            "errors": _errors([of_arm[name] for of_arm in chosen.values()], workdir),
            "notes": list(notes[name]),
        }
        for name, of_task in of_baseline.items()
    }
    scores = {
        arm: {name: headline(task["arms"][arm], task["metric"])["values"] for name, task in tasks.items()}
        for arm in chosen
    }
    found = {
        "seeds": list(seeds),
        "arms": list(chosen),
        "baseline": baseline,
        "tasks": tasks,
        "differences": differences_json(over_seeds(scores)),
    }
    return {"summary": [sentences(found, name) for name in tasks], **found}


def _trivial(chosen: Chosen) -> dict[str, Any]:
    """Return the scores that need no model, by labelled split (`trivial.baseline`)."""
    found = {
        split: trivial.baseline(predicted.task, predicted.examples)
        for split, predicted in chosen.predicted.items()
        if predicted.is_labelled()
    }
    return {split: of_split for split, of_split in found.items() if of_split is not None}


def top(arms: Sequence[Chosen]) -> results.Top:
    """Return the best trial of all arms, of equal ones the first."""
    return max((of_arm.top for of_arm in arms), key=lambda of: of.score)


def _errors(arms: Sequence[Chosen], workdir: epath.Path) -> dict[str, Any]:
    """Return the error analysis of the best trial of all arms; with folds, of all folds' models of its seed."""
    best = top(arms)
    predicted = best.predicted
    return {
        "trial": best.directory.relative_to(workdir).as_posix(),
        "split": arms[0].headline,
        "score": predicted.values()[predicted.task.metric][0],
        "examples": len(predicted.examples),
        **error_analysis.analysis(predicted.task, predicted.examples, predicted.rows[0]),
    }


def sections(
    numbers: Mapping[str, Any],
    settings: Mapping[str, Mapping[str, Any]],
    use: Section,
    figures: epath.Path,
    of_attacks: Sequence[Section] = (),
) -> list[Section]:
    """Return the sections of the report of `ag-jax finetune`.

    numbers: the content of report.json.
    settings: the flat settings of each arm.
    use: the section on how to use the model.
    figures: the directory in which the learning curves are drawn, in that of the report.
    of_attacks: the sections on attacks (`attacked.sections`).
    """
    tasks = numbers["tasks"]
    several = len(numbers["arms"]) > 1
    return [
        Section("", [*map(verbatim, numbers["summary"]), _settings_of_arms(settings)]),
        _notes(tasks),
        use,
        score_tables.scores(numbers, settings),
        *([score_tables.differences(numbers)] if several else []),
        _curves(numbers, figures),
        *([score_tables.other_metrics(numbers)] if len(tasks) > 1 else []),
        *(
            error_analysis.section(name, task["kind"], task["metric"], task["errors"], len(tasks) > 1)
            for name, task in tasks.items()
        ),
        *of_attacks,
        _sweeps(numbers),
        _counts(numbers),
        *([settings_section(settings)] if several else []),
    ]


def _settings_of_arms(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a list with the settings by which each arm differs from the first, if few do; "" if there is one arm."""
    baseline, *others = settings
    lines = []
    for arm in others:
        differing = [
            f"`{key}={schema.shown(value)}`"
            for key, value in settings[arm].items()
            if value != settings[baseline].get(key)
        ]
        more = f" and {len(differing) - MOST_SETTINGS} more settings" if len(differing) > MOST_SETTINGS else ""
        lines.append(f"- {arm}: {baseline} with {', '.join(differing[:MOST_SETTINGS])}{more}")
    return "\n".join(lines)


def _of_arms(numbers: Mapping[str, Any], header: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """Return a table whose rows begin with task and arm, without what does not vary; a single row as a list."""
    hidden = {name for name, key in (("Task", "tasks"), ("Arm", "arms")) if len(numbers[key]) == 1}
    table = score_tables.without(Table(["Task", "Arm", *header], rows), hidden)
    if len(table.rows) > 1:
        return table
    return "\n".join(f"- {name}: {text}" for row in table.rows for name, text in zip(table.header, row, strict=True))


def _curves(numbers: Mapping[str, Any], directory: epath.Path) -> Section:
    """Draw the learning curves of the tasks that were evaluated in several epochs; return their section."""
    tasks, panels, several = numbers["tasks"], [], False
    for name, task in tasks.items():
        several |= any(len(of_arm["curves"]) > 1 for of_arm in task["arms"].values())
        curves = [curve for of_arm in task["arms"].values() for curve in of_arm["curves"]]
        if max(len(curve["epochs"]) for curve in curves) > 1:
            title = "development" if len(tasks) == 1 else f"{name}:"
            without_model = task["trivial"].get(task["arms"][numbers["baseline"]]["headline"], {"metrics": {}})
            # A line at 0, as of all correlations, would only press the curves together.
            constant = 100 * without_model["metrics"].get(task["metric"], 0) or None
            drawn = _drawn(numbers, name, task["metric"], 100)
            panels.append(learning.Panel(f"{title} {task['metric']}", drawn, constant))
    if len(panels) == len(tasks) == 1:
        panels.append(learning.Panel("training loss", _drawn(numbers, name, "train_loss")))
    if not panels:
        return Section("Learning curves", [])
    figure = learning.draw(panels, score_tables.without_model(numbers))
    block = canvas.save_for_report(figure, "Learning curves", directory / "learning_curves.png")
    means = "; a thin line is a trial, a thick one the mean" if several else ""
    text = f"At the end of each epoch{means}."
    return Section("Learning curves", [text, block])


def _drawn(numbers: Mapping[str, Any], name: str, key: str, scale: float = 1) -> dict[str, list[learning.Curve]]:
    """Return the learning curves of a task for the figure, by arm; a single arm is the model."""
    return {
        arm if len(numbers["arms"]) > 1 else "model": [
            [(epoch, scale * value) for epoch, value in zip(curve["epochs"], curve[key], strict=True)]
            for curve in of_arm["curves"]
        ]
        for arm, of_arm in numbers["tasks"][name]["arms"].items()
    }


def _sweeps(numbers: Mapping[str, Any]) -> Section:
    """Return the section with all points of the sweeps that have several."""
    swept = [
        (name, arm, point)
        for name, task in numbers["tasks"].items()
        for arm in numbers["arms"]
        for point in task["arms"][arm]["sweep"]
        if len(task["arms"][arm]["sweep"]) > 1
    ]
    if not swept:
        return Section("Sweeps", [])
    rows = []
    swept_names = list(dict.fromkeys(name for *_, point in swept for name in point.get("swept", {})))
    for name, arm, point in swept:
        mark, values = "**" if point["chosen"] else "", point.get("swept", {})
        rate, median = f"{mark}{point['learning_rate']:g}{mark}", f"{mark}{percent(point['median'])}{mark}"
        # A column for each setting that some task sweeps; the others have a dash there.
        cells = [f"{values[key]:g}" if key in values else DASH for key in swept_names]
        score = f"{percent(point['mean'])} ± {percent(point['deviation'])}" if point["n"] > 1 else DASH
        epochs = ", ".join(map(str, point["best_epochs"]))
        rows.append([name, arm, rate, str(point["batch_size"]), *cells, median, score, str(point["n"]), epochs])
    columns = [name.replace("_", " ").capitalize() for name in swept_names]
    header = ["Learning rate", "Batch", *columns, "Median", "Mean ± deviation", "Seeds", "Best epochs"]
    explained = "On the development set; what was chosen is bold."
    return Section("Sweeps", [explained, _of_arms(numbers, header, rows)])


def _notes(tasks: Mapping[str, Mapping[str, Any]]) -> Section:
    lines = [
        f"- {verbatim(note)}" if len(tasks) == 1 else f"- {name}: {verbatim(note)}"
        for name, task in tasks.items()
        for note in task["notes"]
    ]
    return Section("Notes", ["\n".join(lines)])


def _counts(numbers: Mapping[str, Any]) -> Section:
    rows = []
    for name, task in numbers["tasks"].items():
        for arm in numbers["arms"]:
            of_arm = task["arms"][arm]
            counts = [
                DASH
                if not task["kind"].startswith(ONLY_OF.get(key, "")) or (key == "skipped" and not of_arm["counts"][key])
                else f"{of_arm['counts'][key]:,}"
                for key in COUNTS
            ]
            chosen = next(point for point in of_arm["sweep"] if point["chosen"])
            epochs = ", ".join(map(str, chosen["best_epochs"]))
            settings = [f"{chosen['learning_rate']:g}", str(chosen["batch_size"]), epochs]
            rows.append([name, arm, *counts, *settings, f"{of_arm['seconds']:,.0f}"])
    explained = "What was cut off, lost or left out is of all sets; seconds are those of all trials together."
    header = [*COUNTS.values(), "Learning rate", "Batch", "Best epochs", "Seconds"]
    return Section("Examples and times", [explained, _of_arms(numbers, header, rows)])

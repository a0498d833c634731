"""The report of a search: its numbers for `search.json`, and what it shows of them."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ag_jax.analysis.figures.search import HeatMap
from ag_jax.analysis.report import DASH, Block, Figure, Section, decimals
from ag_jax.analysis.tables import Table
from ag_jax.evaluation.significance import MCNEMAR_NEEDS, mcnemar
from ag_jax.objectives.masked_lm import MLM
from ag_jax.objectives.replaced_tokens import RTD
from ag_jax.pretraining.search import choose
from ag_jax.pretraining.search.choose import Result
from ag_jax.pretraining.search.points import Study
from ag_jax.pretraining.search.states import LOSSES, States
from ag_jax.settings import schema
from ag_jax.training.criterion import Criterion

NOT_MEASURED = "not measured"  # in the place of a number, if nothing was counted for a metric


class Threshold(NamedTuple):
    """The loss below which a run has left its early plateau, and the first steps at which its train losses had fallen.

    loss: the loss below which a run has left the plateau.
    step: first logged step at which the train loss was below the plateau of training by the same margin; None if there
        is none.
    guidance_step: first logged step at which most of the fall of the guidance loss was done (`settled_step`); None
        without guidance.
    """

    loss: float
    step: int | None
    guidance_step: int | None = None


Thresholds = Mapping[tuple[int, int], Threshold]  # by number of the point and seed


def numbers(study: Study, results: Sequence[Result], states: States, thresholds: Thresholds) -> dict[str, Any]:
    """Return the numbers of a search's report, for `search.json`.

    thresholds: the end of the plateau, of every finished run.
    """
    metric, left_plateau = study.search.metric, _left_plateau(results, states, thresholds)
    of_arms: dict[str, Any] = {}
    for arm, of_arm in choose.by_arm(results).items():
        winner = choose.best(of_arm, metric)  # None if no point is done and has the metric
        of_arms[arm] = {
            "best": None if winner is None else winner.point.name,
            "points": {
                result.point.name: _point(study, result, states, left_plateau, thresholds)
                for result in choose.ranked(of_arm, metric)
            },
            "settings": _settings(of_arm, metric),
            "robustness": _robustness(of_arm, metric, left_plateau),
        }
    return {
        "title": study.title,
        "metric": metric,
        **({"overridden": list(study.overridden)} if study.overridden else {}),
        **({"incomparable": list(study.incomparable)} if study.incomparable else {}),
        "arms": of_arms,
        "paired": _paired(results, left_plateau),
    }


def _left_plateau(results: Sequence[Result], states: States, thresholds: Thresholds) -> dict[tuple[str, str], bool]:
    """Return {(arm, point): whether it left the loss plateau with all seeds} of the points that are done or diverged.

    The mean over the seeds does not count, because a low loss of one seed would hide that another has not learned. Nor
    has a run that diverged, so its point did not leave the plateau. Points that were stopped, or failed for another
    reason, are left out.
    """
    left_plateau = {}
    for number, result in enumerate(results):
        if result.diverged:
            left_plateau[result.point.arm, result.point.name] = False
        elif result.status == "done":
            left_plateau[result.point.arm, result.point.name] = all(
                (measured := states[number, seed].measured) is not None
                and (loss := measured["validation_loss"]) is not None
                and loss < thresholds[number, seed].loss
                for seed in result.point.configs
            )
    return left_plateau


def _point(
    study: Study, result: Result, states: States, left_plateau: Mapping[tuple[str, str], bool], thresholds: Thresholds
) -> dict[str, Any]:
    number = next(index for index, point in enumerate(study.points) if point is result.point)
    of_seeds = {
        str(seed): measured
        | {
            "left_plateau_at_step": thresholds[number, seed].step,
            "guidance_settled_at_step": thresholds[number, seed].guidance_step,
        }
        for seed in result.point.configs
        if (measured := states[number, seed].measured) is not None
    }
    return {
        "settings": dict(result.point.settings),
        "status": result.status,
        **({"stopped_at_step": result.stopped_at} if result.stopped_at is not None else {}),
        **result.measured,
        "seeds": of_seeds,
        **({"failures": {str(seed): reason for seed, reason in result.failures.items()}} if result.failures else {}),
        "left_plateau": left_plateau.get((result.point.arm, result.point.name)),
    }


def _values(results: Sequence[Result], metric: str) -> list[float]:
    """Return the values of a metric for the points of a search that are done and measured it."""
    return [value for result in results if result.status == "done" and (value := result.measured[metric]) is not None]


def _settings(of_arm: Sequence[Result], metric: str) -> dict[str, list[dict[str, Any]]]:
    """Return {setting: one dict for each of its values, with the best and median metric over an arm's points}.

    Only points that are done and measured the metric count.
    """
    by = Criterion.of_objective(metric)
    rows: dict[str, list[dict[str, Any]]] = {}
    for setting, values in choose.values_of(of_arm):
        rows[setting] = []
        for value in values:
            of_value = _values([result for result in of_arm if result.point.settings[setting] == value], metric)
            best, median = (min(of_value, key=by.cost), statistics.median(of_value)) if of_value else (None, None)
            rows[setting].append({"value": value, "points": len(of_value), "best": best, "median": median})
    return rows


def _robustness(of_arm: Sequence[Result], metric: str, left_plateau: Mapping[tuple[str, str], bool]) -> dict[str, Any]:
    """Return how many points of an arm left the loss plateau, failed and diverged, and the spread of the metric.

    `points` and `left_plateau` count points that are done or diverged, and `failed` those that diverged, too. Median
    and range are over the points that are done and measured the metric.
    """
    outcomes = [
        left_plateau[result.point.arm, result.point.name]
        for result in of_arm
        if (result.point.arm, result.point.name) in left_plateau
    ]
    values = _values(of_arm, metric)
    return {
        "points": len(outcomes),
        "left_plateau": sum(outcomes),
        "failed": sum(result.status == "failed" for result in of_arm),
        "diverged": sum(result.diverged for result in of_arm),
        "median": statistics.median(values) if values else None,
        "lowest": min(values, default=None),
        "highest": max(values, default=None),
    }


def _paired(results: Sequence[Result], left_plateau: Mapping[tuple[str, str], bool]) -> list[dict[str, Any]]:
    """Return, for each two arms with equal grids, how many points left the plateau in one arm only, and McNemar's p.

    Only points that are done or diverged in both arms count.
    """
    # By settings, because names have only the last parts of the settings' names.
    names = {
        arm: {tuple(result.point.settings.items()): result.point.name for result in of_arm}
        for arm, of_arm in choose.by_arm(results).items()
    }
    rows = []
    for one, other in itertools.combinations(names, 2):
        if names[one].keys() != names[other].keys():
            continue
        of_points = [((one, name), (other, names[other][settings])) for settings, name in names[one].items()]
        pairs = [
            (left_plateau[first], left_plateau[second])
            for first, second in of_points
            if first in left_plateau and second in left_plateau
        ]
        counts = [sum(pair == outcome for pair in pairs) for outcome in ((True, False), (False, True))]
        rows.append(
            {"arms": [one, other], "points": len(pairs), "left_plateau_alone": counts, "p_value": mcnemar(*counts)}
        )
    return rows


def heat_maps(study: Study, results: Sequence[Result]) -> list[HeatMap]:
    """Return a heat map for each arm: the best value of the metric by the two settings that have the most values.

    Arms of which fewer than two settings have several values are left out.
    """
    metric = study.search.metric
    by = Criterion.of_objective(metric)
    maps: list[HeatMap] = []
    for arm, of_arm in choose.by_arm(results).items():
        # Two axes are what a picture can show: over all other settings, a cell has the best value.
        varying = sorted(choose.values_of(of_arm), key=lambda item: -len(item[1]))[:2]
        if len(varying) < 2:
            continue
        (rows, row_values), (columns, column_values) = varying
        best = [
            [
                min(
                    _values(
                        [
                            result
                            for result in of_arm
                            if (result.point.settings[rows], result.point.settings[columns]) == (row, column)
                        ],
                        metric,
                    ),
                    key=by.cost,
                    default=None,
                )
                for column in column_values
            ]
            for row in row_values
        ]
        labels = [[schema.shown(value) for value in values] for values in (row_values, column_values)]
        maps.append(HeatMap(arm, metric, rows, columns, labels[0], labels[1], best, by.is_lower_better))
    return maps


def sections(
    study: Study, results: Sequence[Result], content: Mapping[str, Any], images: Mapping[str, str]
) -> list[Section]:
    """Return the sections of the report of a search.

    content: its numbers, as `numbers` returns them.
    images: path relative to the report of the heat map of each arm that has one.
    """
    metric = study.search.metric
    lines = [f"* **{arm}**: {_best_point(of_arm, metric)}" for arm, of_arm in content["arms"].items()]
    found = [Section("", ["\n".join(lines), _choice(study)])]
    for arm, of_arm in choose.by_arm(results).items():
        numbers_of_arm = content["arms"][arm]
        blocks: list[Block] = (
            [Figure(f"{metric} of {arm} by two settings, the best over all others; dark is good", images[arm])]
            if arm in images
            else []
        )
        blocks += [*_ranking(of_arm, numbers_of_arm, metric), *_settings_blocks(numbers_of_arm["settings"], metric)]
        found.append(Section(arm, blocks))
    return [*found, Section("Robustness", robustness(content))]


def _best_point(of_arm: Mapping[str, Any], metric: str) -> str:
    """Return a sentence on the best point of an arm and on how many of its points left the plateau."""
    count, robust = len(of_arm["points"]), of_arm["robustness"]
    if of_arm["best"] is None:
        finished = sum(one["status"] == "done" for one in of_arm["points"].values())
        reason = f"{finished} are done, but did not measure `{metric}`" if finished else "all failed"
        return f"there is no best point: of {count} points, {reason}."
    value = of_arm["points"][of_arm["best"]][metric]
    left = f"; {robust['left_plateau']} of {robust['points']} points left the plateau" if robust["points"] else ""
    return f"the best of {count} points is **{of_arm['best']}** with a {_in_words(metric)} of {value:.3f}{left}."


def _in_words(metric: str) -> str:
    return metric.replace("_", " ") if metric in LOSSES else f"`{metric}`"


def _choice(study: Study) -> str:
    """Return sentences on how the best points were chosen."""
    metric, seeds = study.search.metric, study.search.seeds
    is_lower_better = Criterion.of_objective(metric).is_lower_better
    texts = [f"The best point has the {'lowest' if is_lower_better else 'highest'} {_in_words(metric)}."]
    if metric not in ("train_loss", "average_train_loss"):
        too = "low" if is_lower_better else "high"
        texts.append(f"Its value at the best point is a little too {too}, because the point was chosen by it.")
    if len(seeds) > 1:
        texts.append(f"A point is judged by the mean over the seeds {', '.join(map(str, seeds))}.")
    else:
        texts.append(f"Each point has one seed ({seeds[0]}), so small differences between points may be chance.")
    return " ".join(texts)


def _ranking(of_arm: Sequence[Result], numbers_of_arm: Mapping[str, Any], metric: str) -> list[Block]:
    settings, other = list(of_arm[0].point.settings), [metric] if metric not in LOSSES else []
    measures = [*(f"`{name}`" for name in other), "Validation", "Train", "Average train"]
    header = ["", *(f"`{setting}`" for setting in settings), *measures, "Plateau"]
    # The guidance loss of an arm without guidance never settles, so its column would be empty.
    guided = any(_settled(of_point) for of_point in numbers_of_arm["points"].values())
    header += ["Guidance loss fallen at step"] if guided else []
    rows = []
    words = {True: "left", False: "not left", None: DASH}
    for place, result in enumerate(choose.ranked(of_arm, metric), 1):
        values = [schema.shown(result.point.settings[setting]) for setting in settings]
        measured = [
            decimals(result.measured[name], NOT_MEASURED)
            if result.measured
            else "diverged"
            if result.diverged
            else result.status
            for name in (*other, "validation_loss", "train_loss", "average_train_loss")
        ]
        of_point = numbers_of_arm["points"][result.point.name]
        plateau = words[of_point["left_plateau"]]
        steps = [seed["left_plateau_at_step"] for seed in of_point["seeds"].values()]
        # The validation loss decides; the logged train losses, whose steps are told, may not show it for every seed.
        if of_point["left_plateau"] and None not in steps:
            plateau += f" at step {', '.join(map(str, steps))}"
        if result.stopped_at is not None:
            plateau = f"stopped at step {result.stopped_at}"
        settled = [", ".join(map(str, _settled(of_point))) or DASH] if guided else []
        rows.append([str(place), *values, *measured, plateau, *settled])
    failures = [
        f"* {result.point.name}, seed {seed}, failed: {reason.splitlines()[0] if reason else ''}"
        for result in of_arm
        for seed, reason in result.failures.items()
    ]
    return [
        Table(header, rows),
        "The guidance loss has fallen once 95 % of its fall is done." if guided else "",
        "\n".join(failures),
    ]


def _settled(of_point: Mapping[str, Any]) -> list[int]:
    """Return the step at which the guidance loss settled for each finished seed of a point; [] without guidance."""
    steps = [seed["guidance_settled_at_step"] for seed in of_point["seeds"].values()]
    return [step for step in steps if step is not None]


def _settings_blocks(settings: Mapping[str, Sequence[Mapping[str, Any]]], metric: str) -> list[Block]:
    if all(of["points"] <= 1 for values in settings.values() for of in values):
        return []  # the ranking again
    explained = f"`{metric}` by setting: the best and the median over the other settings, of the points that are done."
    rows = [
        [f"`{setting}`", schema.shown(of["value"]), str(of["points"]), decimals(of["best"]), decimals(of["median"])]
        for setting, values in settings.items()
        for of in values
    ]
    return [explained, Table(["Setting", "Value", "Points", "Best", "Median"], rows)]


def robustness(content: Mapping[str, Any]) -> list[Block]:
    """Return a table of how many points of each arm learned, and sentences about it and the tests between arms.

    content: the numbers of a search, as `numbers` returns them.
    """
    explained = (
        "A point has left the plateau if its validation loss is below that of guessing by frequency, without context, "
        f"by more than {MLM.margin:g} nats ({RTD.margin:g} in replaced-token detection), with each seed. A point of "
        "which a run diverged counts as one that did not leave it, because it did not learn. Points that failed for "
        "another reason, such as too little memory, and points that were stopped at a rung are left out, so that a "
        "search with rungs says little about robustness. Median and range are over the points that were trained to the "
        "end, whose losses are finite."
    )
    rows = []
    for arm, of_arm in content["arms"].items():
        one = of_arm["robustness"]
        # `failed` counts points that diverged, too, which have a column of their own.
        share = f"{one['left_plateau'] / one['points']:.0%}" if one["points"] else DASH
        low, high = decimals(one["lowest"]), decimals(one["highest"])
        otherwise = one["failed"] - one["diverged"]
        counts = [f"{one['left_plateau']} of {one['points']}", share, str(one["diverged"]), str(otherwise)]
        rows.append([arm, *counts, decimals(one["median"]), f"{low} to {high}"])
    median = f"Median `{content['metric']}`"
    header = ["Arm", "Left the plateau", "Share", "Diverged", "Failed otherwise", median, "Range"]
    blocks: list[Block] = [explained, Table(header, rows)]
    for pair in content["paired"]:
        (one, other), (only_one, only_other) = pair["arms"], pair["left_plateau_alone"]
        blocks.append(
            f"{one} and {other} have the same points, {pair['points']} of them counted in both: {only_one} left the "
            f"plateau in {one} alone, {only_other} in {other} alone (p = {pair['p_value']:.2g}, exact McNemar test; "
            f"p < .05 takes at least {MCNEMAR_NEEDS} points that leave it in one arm alone). The test assumes that "
            "points are independent; points that differ only in a setting without effect are not."
        )
    return blocks

"""The report of a comparison of pre-training runs: its numbers, and their tables in Markdown."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax.analysis.attacks import masked_share, masked_table
from ag_jax.analysis.markdown import table
from ag_jax.evaluation.significance import PairedDifference, over_seeds, spread
from ag_jax.objectives.base import PrimaryMetric
from ag_jax.objectives.masked_lm import MLM
from ag_jax.pretraining.alpha import GUIDANCE_LOSS
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import schema

MEASURES = {
    "train_loss": "Train",
    "validation_loss": "Validation",
    "average_train_loss": "Average train",
}
DIFFERENCE_HEADER = ("Difference", "95 % interval", "p over seeds", "p, Holm", "Shows")
DIFFERENCE_EXPLAINED = (
    "*p, Holm* is corrected for all tests over seeds of this table. *Shows* is how large the true difference has to be "
    "for the test to give p < .05 in four of five repetitions, with as many seeds that differ as much."
)


@dataclasses.dataclass(frozen=True)
class ArmResults:
    """Results of the runs of one arm of a comparison, one run for each seed, in the order of the seeds.

    name: name of the arm.
    summaries: the summary of each run, as `run.train` returns it.
    metrics: the rows of each run's metrics.jsonl.
    settings: the flat config without title and seed.
    """

    name: str
    summaries: Sequence[dict[str, Any]]
    metrics: Sequence[list[dict[str, Any]]]
    settings: Mapping[str, Any]


def first_step_below(rows: list[dict[str, Any]], loss: float, metric: str = MLM.metric) -> int | None:
    """Return the first logged step of a run with a train loss below `loss`; None if there is none.

    rows: the rows of metrics.jsonl.
    metric: the name of the loss.
    """
    below = (row for row in rows if row["split"] == "train" and row[metric] is not None and row[metric] < loss)
    return next((row["step"] for row in below), None)


def settled_step(rows: list[dict[str, Any]]) -> int | None:
    """Return the first logged step at which 95 % of the guidance loss's fall is done; None if that loss is not logged.

    The fall is from the first logged value to the lowest. The last value would be no measure, because the guidance loss
    may rise again as `guidance.schedule` lowers its coefficient. Deshpande & Narasimhan 2020, appendix A.3, report that
    the guidance loss converges within 0.2 % of pre-training.

    rows: the rows of metrics.jsonl.
    """
    train = (row for row in rows if row["split"] == "train")
    values = [(row["step"], row[GUIDANCE_LOSS]) for row in train if row.get(GUIDANCE_LOSS) is not None]
    if not values:
        return None
    first, lowest = values[0][1], min(value for _, value in values)
    return next(step for step, value in values if value <= lowest + 0.05 * (first - lowest))


def numbers(
    arms: Sequence[ArmResults], seeds: Sequence[int], primary: PrimaryMetric, plateau_loss: float
) -> dict[str, Any]:
    """Return every number of a comparison's report as JSON values, with a test of each arm against the first one.

    The tests are paired by seed.

    primary: the loss by which runs are summarised and compared.
    plateau_loss: the loss of the best guess without context.
    """
    # Below the plateau by a margin, because the logged losses of a run that stalls scatter around the plateau.
    baseline, threshold = arms[0], plateau_loss - primary.margin
    of_arms = {arm.name: {key: [summary[key] for summary in arm.summaries] for key in MEASURES} for arm in arms}
    differences = over_seeds(of_arms)
    result: dict[str, Any] = {
        "seeds": list(seeds),
        "headline": primary.metric,
        "plateau_loss": plateau_loss,
        "baseline": baseline.name,
        "arms": {},
        "differences": differences_json(differences),
    }
    for arm in arms:
        values = of_arms[arm.name]
        result["arms"][arm.name] = {
            "values": values,
            "mean": {key: spread(of_seeds).mean for key, of_seeds in values.items()},
            "deviation": {key: spread(of_seeds).deviation for key, of_seeds in values.items()},
            "p_value": {
                key: difference.p_value if (difference := differences.get(arm.name, {}).get(key)) else None
                for key in values
            },
            "left_plateau_at_step": [first_step_below(rows, threshold, primary.metric) for rows in arm.metrics],
            "tokens_per_second": [_speed(rows) for rows in arm.metrics],
        }
        if any({"time_limit", "patience"} & summary.keys() for summary in arm.summaries):
            result["arms"][arm.name]["ended_at_step"] = [summary["steps"] for summary in arm.summaries]
        if None not in (settled := [settled_step(rows) for rows in arm.metrics]):
            result["arms"][arm.name]["guidance_settled_at_step"] = settled
        if (share := masked_share(arm.metrics)) is not None:
            result["arms"][arm.name]["masked"] = share.numbers()
    return result


def differences_json(differences: Mapping[str, Mapping[str, PairedDifference | None]]) -> dict[str, Any]:
    """Return the differences of arms from the baseline as JSON values, {arm: {metric: difference or None}}."""
    return {
        arm: {key: difference and dataclasses.asdict(difference) for key, difference in of_arm.items()}
        for arm, of_arm in differences.items()
    }


def difference_cells(difference: Mapping[str, Any], scale: float = 1.0, digits: int = 3) -> list[str]:
    """Return the table cells, one for each column of `DIFFERENCE_HEADER`, that show a difference of two arms.

    difference: a `PairedDifference` as JSON.
    scale: what the difference is multiplied by, such as 100 to show fractions as percentages.
    """
    mean, low, high, smallest = (
        f"{scale * value:+.{digits}f}"
        for value in (difference["mean"], *difference["interval"], difference["smallest"])
    )
    return [mean, f"{low} to {high}", f"{difference['p_value']:.2g}", f"{difference['p_corrected']:.2g}", smallest[1:]]


def differences_section(
    content: Mapping[str, Mapping[str, Mapping[str, Any] | None]], labels: Mapping[str, str], baseline: str
) -> list[str]:
    """Return report lines with the differences of arms from the baseline, paired by seed; [] without differences.

    content: the result of `differences_json`.
    labels: how the metrics are named in the table.
    """
    rows = [
        [arm, labels[key], *difference_cells(difference)]
        for arm, of_arm in content.items()
        for key, difference in of_arm.items()
        if difference is not None
    ]
    if not rows:
        return []
    explained = f"Differences from {baseline}, paired by seed. {DIFFERENCE_EXPLAINED}"
    return [explained, "", *table(["Arm", "", *DIFFERENCE_HEADER], rows)]


def _speed(rows: list[dict[str, Any]]) -> float | None:
    """Return a run's median training speed in tokens per second over the logged intervals; None if none was timed.

    The first interval, which is often slower, and intervals that consist of compilation do not count.
    """
    rates = [row["tokens_per_second"] for row in rows if row["split"] == "train"][1:]
    speeds = sorted(speed for speed in rates if speed is not None)
    return speeds[len(speeds) // 2] if speeds else None


def markdown(
    title: str,
    primary: PrimaryMetric,
    arms: Sequence[ArmResults],
    results: dict[str, Any],
    figures: Sequence[tuple[str, str]],
    command: str,
    warnings: Sequence[str] = (),
    more: Sequence[str] = (),
) -> str:
    """Return the report of a comparison of runs as Markdown; `results` are its numbers, computed from `arms`.

    results: the numbers of the report, as `numbers` returns them.
    figures: (caption, path relative to the report) of each figure.
    warnings: sentences that stand above the numbers, such as those that `arms.overridden` returns.
    more: lines of further sections, after the losses.
    """
    lines = [f"# {title}", "", f"`{command}`", "", *flag_warnings(warnings)]
    lines += _loss_table(primary, arms, results)
    lines += _reading(primary, arms, results)
    lines += more
    shares = {(arm.name,): share for arm in arms if (share := masked_share(arm.metrics)) is not None}
    lines += masked_table(["Arm"], shares) if shares else []
    defaults = schema.flat(schema.to_dict(ExperimentConfig()))
    lines += [
        "## What differs between the arms",
        "",
        *settings_table({arm.name: arm.settings for arm in arms}, defaults),
    ]
    for caption, path in figures:
        link = f"[{path}]({path})" if path.endswith(".html") else f"![{caption}]({path})"
        lines += [f"## {caption}", "", link, ""]
    return "\n".join(lines)


def _loss_table(primary: PrimaryMetric, arms: Sequence[ArmResults], results: dict[str, Any]) -> list[str]:
    seeds = results["seeds"]
    lines = [
        f"## {primary.label[0].upper()}{primary.label[1:]}",
        "",
        f"Mean over {len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({', '.join(map(str, seeds))})"
        + (" ± standard deviation;" if len(seeds) > 1 else ";")
        + f" p: paired t-test against {results['baseline']}"
        + ("." if len(seeds) > 1 else ", which needs two seeds or more: `--config.comparison.seeds=0,1,2`."),
        "",
    ]
    rows = []
    for key, label in MEASURES.items():
        cells = []
        for arm in arms:
            of_arm = results["arms"][arm.name]
            # None for the baseline, with a single seed, and if the differences of all seeds are equal.
            p_value = of_arm["p_value"][key]
            cell = str(spread(of_arm["values"][key]))
            cells.append(cell + (f" (p = {p_value:.2g})" if p_value is not None else ""))
        rows.append([label, *cells])
    # One entry for each seed instead of a mean, because a run may never leave the plateau.
    steps = [results["arms"][arm.name]["left_plateau_at_step"] for arm in arms]
    cells_of_arms = [", ".join("never" if step is None else str(step) for step in of_arm) for of_arm in steps]
    rows.append(["Left the plateau at step", *cells_of_arms])
    rows += _ended_row(arms, results) + _settled_row(arms, results)
    speeds = [results["arms"][arm.name]["tokens_per_second"] for arm in arms]
    cells_of_arms = [", ".join("–" if speed is None else f"{speed:,.0f}" for speed in of_arm) for of_arm in speeds]
    rows.append(["Tokens a second", *cells_of_arms])
    lines += table([f"Loss ({primary.unit})", *(arm.name for arm in arms)], rows)
    return lines + differences_section(results["differences"], MEASURES, results["baseline"])


def _ended_row(arms: Sequence[ArmResults], results: dict[str, Any]) -> list[list[str]]:
    """Return a list with the loss table's row of steps at which time limits or patience ended runs; [] if none did."""
    ended = [results["arms"][arm.name].get("ended_at_step") for arm in arms]
    if not any(ended):
        return []
    cells = [", ".join(map(str, steps)) if steps else "–" for steps in ended]
    limits = [
        name for name in ("time_limit", "patience") for arm in arms for summary in arm.summaries if name in summary
    ]
    return [[f"Ended by {' or '.join(f'`training.{name}`' for name in dict.fromkeys(limits))} at step", *cells]]


def _settled_row(arms: Sequence[ArmResults], results: dict[str, Any]) -> list[list[str]]:
    """Return a list with the loss table's row of steps at which the guidance loss settled; [] without guidance."""
    steps = [results["arms"][arm.name].get("guidance_settled_at_step") for arm in arms]
    if not any(steps):
        return []
    ends = [[rows[-1]["step"] for rows in arm.metrics] for arm in arms]
    cells = [
        ", ".join(f"{step} ({step / end:.1%})" for step, end in zip(of_arm, last, strict=True)) if of_arm else "–"
        for of_arm, last in zip(steps, ends, strict=True)
    ]
    return [["Guidance loss settled at step", *cells]]


def _reading(primary: PrimaryMetric, arms: Sequence[ArmResults], results: dict[str, Any]) -> list[str]:
    best = min(arms, key=lambda arm: results["arms"][arm.name]["mean"]["validation_loss"])
    settled = (
        [
            "The guidance loss has *settled* at the first logged step at which 95 % of its fall, from the first logged "
            "value to the lowest, is done."
        ]
        if any("guidance_settled_at_step" in of_arm for of_arm in results["arms"].values())
        else []
    )
    return [
        "*Train* is the mean over the last twentieth of training, *validation* is on held-out text after the last "
        "step, *average train* is the mean over all of training, which is lower the sooner a model learns.",
        f"Guessing by frequency, without context, gives {results['plateau_loss']:.3f}; a run has left the plateau "
        f"when its train loss is {primary.margin:g} below that.",
        *settled,
        f"The lowest validation loss is that of **{best.name}**.",
        "",
    ]


def flag_warnings(sentences: Sequence[str]) -> list[str]:
    """Return report lines that show warnings in bold, such as that a flag overrides settings of the arms."""
    return [*(f"**{sentence}.**" for sentence in sentences), ""] if sentences else []


def settings_table(arms: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any] | None = None) -> list[str]:
    """Return the lines of a Markdown table of the settings in which arms differ, and a blank line.

    arms: the flat settings of each arm, by name, without those that have no effect there.
    defaults: flat settings; one that only some arms have is left out if it is at its default there.
    """
    names = dict.fromkeys(key for settings in arms.values() for key in settings)
    absent = "–"
    values = {key: {repr(settings.get(key, absent)) for settings in arms.values()} for key in names}
    at_default = {key: {repr(absent), repr((defaults or {}).get(key, absent))} for key in names}
    keys = [key for key in names if len(values[key]) > 1 and values[key] != at_default[key]]
    if not keys:
        return ["Nothing.", ""]
    rows = [[f"`{key}`", *(schema.shown(arm.get(key, absent)) for arm in arms.values())] for key in keys]
    return table(["Setting", *arms], rows)

"""The result of fine-tuning in sentences: scores, differences of arms, and the scores that need no model."""

import math
from collections.abc import Mapping
from typing import Any

from ag_jax.analysis.report import interval, percent
from ag_jax.evaluation.significance import SIGNIFICANT
from ag_jax.finetuning import results, trivial

FEW = 3  # arms beside the baseline that are described one by one


def sentences(numbers: Mapping[str, Any], name: str) -> str:
    """Return the result on a task in a sentence or two: the scores, the differences of arms, and the trivial score."""
    task, arms, seeds = numbers["tasks"][name], numbers["arms"], len(numbers["seeds"])
    metric, base = task["metric"], numbers["baseline"]
    several = len(arms) > 1
    shown = [base] if len(arms) > FEW + 1 else arms
    parts = []
    for split in splits(task):
        summaries = {arm: task["arms"][arm]["splits"].get(split, {}).get(metric) for arm in shown}
        if None not in summaries.values() and split != results.OF_FOLDS:
            values = ", ".join(
                f"{arm} {_short(summary)}" if several else _short(summary) for arm, summary in summaries.items()
            )
            what = {"validation": "development", results.POOLED: "cross-validated"}.get(split, split.replace("_", " "))
            parts.append(f"{values} on {task['examples'][split]:,} {what} examples")
    of_seeds = f" (mean ± standard deviation of {seeds} seeds)" if seeds > 1 else ""
    found = [f"{name}: {metric} {'; '.join(parts)}{of_seeds}."]
    if metric == "accuracy" and seeds == 1:
        split, rate = task["arms"][base]["headline"], headline(task["arms"][base], metric)["mean"]
        error = math.sqrt(rate * (1 - rate) / task["examples"][split])
        found.append(f"Other examples would change it by {percent(error)} (one standard error).")
    found += _differences(numbers, name) if several else []
    scores = task["trivial"]
    compared = {split: of["metrics"][metric] for split, of in scores.items() if metric in of["metrics"]}
    if compared:
        best = max(headline(task["arms"][arm], metric)["mean"] for arm in arms)
        gap = next(iter(compared.values())) - best
        poor = "" if gap < 0 else ", which is better" if gap else ", which is as good"
        what = trivial.named(task["kind"], {scores[split]["prediction"] for split in compared})
        found.append(f"{what[0].upper()}{what[1:]} gives {' and '.join(map(percent, compared.values()))}{poor}.")
    return " ".join(found)


def _short(summary: Mapping[str, Any]) -> str:
    mean = percent(summary["mean"])
    return mean if summary["n"] == 1 else f"{mean} ± {percent(summary['deviation'])}"


def _differences(numbers: Mapping[str, Any], name: str) -> list[str]:
    """Return sentences on which arms can be told apart from the baseline on a task."""
    task, base, seeds = numbers["tasks"][name], numbers["baseline"], len(numbers["seeds"])
    mean = headline(task["arms"][base], task["metric"])["mean"]
    apart: list[str] = []
    others: list[str] = []
    for arm, of_arm in numbers["differences"].items():
        found = of_arm[name]
        difference = 100 * (headline(task["arms"][arm], task["metric"])["mean"] - mean)
        text = f"{arm} {difference:+.1f}"
        if found is not None:
            low, high = (100 * end for end in found["interval"])
            # The interval is not corrected for the number of tests, by which arms are told apart.
            is_lost = found["p_value"] < SIGNIFICANT <= found["p_corrected"]
            holm = f", but p = {found['p_corrected']:.2g} after Holm's correction" if is_lost else ""
            text += f" (95 % interval {interval(low, high, 1)}{holm})"
        is_apart = found is not None and found["p_corrected"] < SIGNIFICANT
        (apart if is_apart else others).append(text)
    sentences = [f"Differs from {base}: {'; '.join(apart)}."] if apart else []
    if len(others) > FEW:
        others = [f"{len(others)} {'further ' if apart else ''}arms"]
    if others:
        said = f"Cannot be told apart from {base} with {seeds} seeds"
        if seeds == 1:
            said = f"Differences from {base} with one seed, which may be chance"
        sentences.append(f"{said}: {'; '.join(others)}.")
    return sentences


def headline(of_arm: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """Return the summary over seeds of an arm's metric on a task, on the split by which arms are compared."""
    return of_arm["splits"][of_arm["headline"]][metric]


def splits(task: Mapping[str, Any]) -> list[str]:
    """Return the names of a task's labelled splits, that by which arms are compared first."""
    return list(dict.fromkeys(split for of_arm in task["arms"].values() for split in of_arm["splits"]))

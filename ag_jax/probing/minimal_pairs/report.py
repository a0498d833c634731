"""Accuracies on minimal pairs: numbers for report.json, and the section of a report that shows them.

A pair is right if the good sentence has the higher score; equal scores are wrong. The accuracy of a term, a field or
all pairs is the mean over paradigms, as BLiMP's is.

Shape letter: P pairs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.analysis.report import DASH, Block, Figure, Section, percent
from ag_jax.analysis.tables import Table
from ag_jax.data.probes.minimal_pairs import Pair
from ag_jax.probing.minimal_pairs.results import Judged
from ag_jax.probing.minimal_pairs.scoring import SCORES

FEWEST = 10  # pairs, for an interval
Models = Mapping[str, Sequence[Mapping[str, Any]]]  # by name, the numbers of their checkpoints
FIGURE = "figures/minimal_pairs.png"
ALL = "all"
# Overall accuracies of Warstadt et al. 2020, table 3, on all 67,000 pairs, by the likelihood of whole sentences.
PUBLISHED = {"n-gram": 0.612, "LSTM": 0.698, "Transformer-XL": 0.696, "GPT-2": 0.830}


def numbers(
    pairs: Sequence[Pair],
    judged: Mapping[str, Sequence[Sequence[Judged]]],
    published: Mapping[str, Mapping[str, float]] = {},
) -> dict[str, Any]:
    """Return the section of report.json on minimal pairs: accuracies of models, and their differences between arms.

    Accuracies are shares, of all pairs and of each paradigm. The last checkpoints of each arm are compared with those
    of the first arm.

    judged: {arm: for each model, the scores of its checkpoints in the order of their steps}.
    published: {model: {paradigm: accuracy}} of models that others have scored.
    """
    return {
        "pairs": len(pairs),
        "paradigms": len({pair.paradigm for pair in pairs}),
        "models": {
            arm: [[_of_model(pairs, checkpoint) for checkpoint in checkpoints] for checkpoints in of_arm]
            for arm, of_arm in judged.items()
        },
        "differences": _differences(pairs, judged),
        "published": {
            name: {
                kind: {group: _mean(accuracies, paradigms) for group, paradigms in groups.items()}
                for kind, groups in groups_of(pairs).items()
            }
            for name, accuracies in published.items()
        },
    }


def _mean(accuracies: Mapping[str, float], paradigms: Sequence[str]) -> float | None:
    """Return the mean accuracy over the given paradigms; None if the accuracy of one is missing."""
    if any(name not in accuracies for name in paradigms):
        return None
    return float(np.mean([accuracies[name] for name in paradigms]))


def groups_of(pairs: Sequence[Pair]) -> dict[str, dict[str, list[str]]]:
    """Return {"all", "field", "term" or "paradigm": {name of a group: its paradigms}}, without empty names."""
    groups: dict[str, dict[str, list[str]]] = {ALL: {ALL: []}, "field": {}, "term": {}, "paradigm": {}}
    for pair in pairs:
        for kind, name in ((ALL, ALL), ("field", pair.field), ("term", pair.term), ("paradigm", pair.paradigm)):
            if name and pair.paradigm not in groups[kind].setdefault(name, []):
                groups[kind][name].append(pair.paradigm)
    return groups


def accuracy(
    right_P: np.ndarray, paradigm_P: np.ndarray, paradigms: Sequence[str]
) -> tuple[float, float | None] | None:
    """Return (accuracy averaged over paradigms, half of its 95 % interval or None); None if no pair was scored.

    The interval is the normal one for independent pairs.

    The half interval is None for fewer than `FEWEST` pairs, for a paradigm with a single pair, and if the pairs of each
    paradigm are all alike, because their variance is not known then.

    right_P: 1 where a pair is right, or any number that is averaged in its place; NaN where a pair was left out.
    """
    of_paradigms = [right_P[(paradigm_P == name) & ~np.isnan(right_P)] for name in paradigms]
    of_paradigms = [values for values in of_paradigms if len(values)]
    if not of_paradigms:
        return None
    counts = [len(values) for values in of_paradigms]
    variance = sum(values.var() / len(values) for values in of_paradigms)
    is_known = sum(counts) >= FEWEST and min(counts) > 1 and variance > 0
    half = 1.96 * math.sqrt(variance) / len(counts) if is_known else None
    return float(np.mean([values.mean() for values in of_paradigms])), half


def right(scores_P2: np.ndarray) -> np.ndarray:
    """Return 1 for each pair whose good sentence has the higher score, 0 for the others, NaN for pairs left out."""
    is_right_P = (scores_P2[:, 0] > scores_P2[:, 1]).astype(np.float64)
    return np.where(np.isnan(scores_P2).any(1), np.nan, is_right_P)


def _of_model(pairs: Sequence[Pair], judged: Judged) -> dict[str, Any]:
    paradigm_P = np.array([pair.paradigm for pair in pairs])
    content: dict[str, Any] = {
        "description": judged.description,
        "step": judged.step,
        "tokens": judged.tokens,
        "default": judged.default,
        "words without a token": judged.unknown,
        "pairs too long": judged.too_long,
    }
    for score in SCORES:
        right_P = right(judged.scores[score])
        content[score] = {
            kind: {
                name: None if value is None else {"accuracy": value[0], "half_interval": value[1]}
                for name, value in (
                    (name, accuracy(right_P, paradigm_P, paradigms)) for name, paradigms in groups.items()
                )
            }
            for kind, groups in groups_of(pairs).items()
        }
        content[score]["ties"] = int((judged.scores[score][:, 0] == judged.scores[score][:, 1]).sum())
    return content


def _differences(
    pairs: Sequence[Pair], judged: Mapping[str, Sequence[Sequence[Judged]]]
) -> dict[str, list[dict[str, float | None] | None]]:
    """Return {arm: difference of each model's accuracy from the first arm's, None if no pair was scored by both}.

    A difference is a dict with `difference` and `half_interval` (of 95 %).

    The accuracies are those of last checkpoints, on the same pairs, by the score of the first arm's model. That is the
    model with the same number, or the only one.
    """
    paradigm_P = np.array([pair.paradigm for pair in pairs])
    names = sorted(set(paradigm_P.tolist()))
    (_, baseline), *others = judged.items()
    differences: dict[str, list[dict[str, float | None] | None]] = {}
    for arm, models in others:
        differences[arm] = []
        for number, checkpoints in enumerate(models):
            base = baseline[number if len(baseline) > 1 and number < len(baseline) else 0][-1]
            change_P = right(checkpoints[-1].scores[base.default]) - right(base.scores[base.default])
            value = accuracy(change_P, paradigm_P, names)
            differences[arm].append(None if value is None else {"difference": value[0], "half_interval": value[1]})
    return differences


def section(content: Mapping[str, Any]) -> Section:
    """Return the report's section on minimal pairs, from the result of `numbers`."""

    def name(arm: str, number: int) -> str:
        return f"{arm}, model {number}" if len(content["models"][arm]) > 1 else arm

    models = {
        name(arm, number): checkpoints
        for arm, of_arm in content["models"].items()
        for number, checkpoints in enumerate(of_arm)
    }
    explained = (
        f"{content['pairs']:,} pairs of {content['paradigms']:,} paradigms. A number is the share of pairs, in "
        "percent, of which a model gives the grammatical sentence the higher pseudo-log-likelihood. Equal scores are "
        "wrong, and guessing is right in half of the pairs. `token` masks one token at a time (Salazar et al. 2020), "
        "`word_l2r` the later tokens of its word, too (Kauf & Ivanova 2023). Numbers of several paradigms are means "
        "over paradigms, with 95 % intervals over pairs, as if these were independent."
    )
    groups = next(iter(models.values()))[-1]["token"]
    columns = [ALL, *groups["field"]]
    rows = []
    for model, checkpoints in models.items():
        last = checkpoints[-1]
        # First the score by which the model is judged.
        for score in sorted(SCORES, key=lambda score: score != last["default"]):
            cells = [_cell(last[score][ALL][ALL]), *(_cell(last[score]["field"][field]) for field in columns[1:])]
            rows.append([model, score, *cells, str(last[score]["ties"])])
    listing = ", ".join(f"{system} {percent(value)}" for system, value in PUBLISHED.items())
    first, notes = next(iter(content["models"])), []
    for arm, of_arm in content["differences"].items():
        for number, difference in enumerate(of_arm):
            if difference is not None:
                notes.append(
                    f"* {name(arm, number)}: {100 * difference['difference']:+.1f}{_half(difference)} points from "
                    f"{name(first, number) if number < len(content['models'][first]) else name(first, 0)}, on the same "
                    "pairs, by the score of that model."
                )
    for model, checkpoints in models.items():
        for key in ("words without a token", "pairs too long"):
            if checkpoints[-1][key]:
                notes.append(f"* {model}: {key}: {checkpoints[-1][key]:,}.")
    several = any(len(checkpoints) > 1 for checkpoints in models.values())
    return Section(
        "Minimal pairs",
        [
            explained,
            Table(["model", "score", *columns, "ties"], rows),
            "For comparison, on all 67,000 pairs of BLiMP, by the likelihood of whole sentences (Warstadt et al. "
            f"2020): {listing}.",
            "\n".join(notes),
            *(_milestones(models) if several else []),
            _terms(models, groups, content["published"]),
        ],
    )


def _milestones(models: Models) -> list[Block]:
    rows = []
    for model, checkpoints in models.items():
        for checkpoint in checkpoints:
            tokens = DASH if checkpoint["tokens"] is None else f"{checkpoint['tokens']:,}"
            accuracies = checkpoint[checkpoint["default"]]
            rows.append([model, f"{checkpoint['step']:,}", tokens, _cell(accuracies[ALL][ALL])])
    table = Table(["model", "step", "tokens seen", ALL], rows)
    return ["At the checkpoints of the runs:", table, Figure("Accuracy on minimal pairs over the steps", FIGURE)]


def _terms(models: Models, groups: Mapping[str, Any], published: Mapping[str, Any]) -> Table:
    """Return the table of accuracies by linguistic term (BLiMP), or by paradigm if terms are unknown.

    Its columns are the last checkpoint of each model, and the published models, whose accuracies are of all pairs.
    """
    kind = "term" if groups["term"] else "paradigm"
    rows = [
        [
            group,
            *(_cell(checkpoints[-1][checkpoints[-1]["default"]][kind][group]) for checkpoints in models.values()),
            *(percent(published_model[kind][group]) for published_model in published.values()),
        ]
        for group in sorted(groups[kind])
    ]
    return Table([kind, *models, *published], rows)


def _cell(summary: Mapping[str, Any] | None) -> str:
    return DASH if summary is None else f"{percent(summary['accuracy'])}{_half(summary)}"


def _half(summary: Mapping[str, float | None]) -> str:
    half = summary["half_interval"]
    return "" if half is None else f" ± {percent(half)}"


def points(content: Mapping[str, Any]) -> dict[str, list[list[tuple[int, float, float]]]]:
    """Return {arm: for each model, (step, accuracy on all pairs, half of its interval) of each checkpoint}.

    An interval that is not known is 0.
    """

    def of_model(checkpoints: Sequence[Mapping[str, Any]]) -> list[tuple[int, float, float]]:
        values = [(checkpoint["step"], checkpoint[checkpoint["default"]][ALL][ALL]) for checkpoint in checkpoints]
        return [(step, value["accuracy"], value["half_interval"] or 0.0) for step, value in values if value is not None]

    return {arm: [of_model(checkpoints) for checkpoints in of_arm] for arm, of_arm in content["models"].items()}

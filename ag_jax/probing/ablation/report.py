"""The section of a report on head ablation, and `ablation.csv` with every head."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax.analysis.maps import title
from ag_jax.analysis.report import DASH, Block, Figure, Section, decimals, interval
from ag_jax.analysis.tables import Table
from ag_jax.probing.ablation.summary import MOST, Summary

CSV = "ablation.csv"
FIGURE = "figures/ablation.png"


def section(numbers: Mapping[str, Any], baseline: str) -> Section:
    """Return the report's section on head ablation.

    numbers: the content of report.json on head ablation.
    baseline: the arm with which others are compared.
    """
    return Section(
        "Head ablation",
        [
            "The output of one head at a time is zeroed (Michel et al. 2019, section 3.2). A change is the loss "
            "without the head minus the loss with all heads, on the same texts with the same masked words or labels; "
            "above zero, the model needs the head. 95 % intervals are over texts, as if these were independent, and "
            "not corrected for the number of heads. Models with random weights have no trained loss and are left out.",
            *_models(numbers),
            *_largest(numbers),
            *_heads_of_probes(numbers),
            *_differences(numbers, baseline),
            Figure("Change of the loss without each head", FIGURE),
            f"`{CSV}` has all heads. `ag-jax inspect --workdir=DIR --without=LAYER.HEAD` shows attention without a "
            "head.",
        ],
    )


def _name(arm: str, number: int, numbers: Mapping[str, Any]) -> str:
    """Return the name of a model in tables: its arm and, if the arm has several models, its number from 0."""
    return arm if len(numbers["models"][arm]) == 1 else f"{arm}, model {number}"


def _models(numbers: Mapping[str, Any]) -> list[Block]:
    rows, sources = [], []
    for arm, models in numbers["models"].items():
        for number, model in enumerate(models):
            name, unclear = _name(arm, number, numbers), model["without_clear_rise"]
            loss = f"{model['loss']:.3f} {model['unit']}".strip()
            changes = [_value(model[part]) for part in ("mean", "guided", "free")]
            rows.append([name, loss, *changes, DASH if unclear is None else f"{unclear} of {model['heads']}"])
            notes = "".join(f"; {note}" for note in model["notes"])
            sources += [f"* **{name}**: {model['label']}, {model['source']}{notes}"]
    header = ["model", "loss with all heads", "mean change", "guided heads", "free heads", "heads without a clear rise"]
    return [
        Table(header, rows),
        "The interval of a head without a clear rise is not entirely above zero: these texts do not show that the "
        "model needs the head. More texts can show smaller rises, and the removal of several such heads at a time can "
        "raise the loss. Losses were measured on:",
        "\n".join(sources),
    ]


def _largest(numbers: Mapping[str, Any]) -> list[Block]:
    rows = []
    for arm, models in numbers["models"].items():
        for number, model in enumerate(models):
            for head in model["largest"]:
                rows.append([_name(arm, number, numbers), _head(head), _pattern(head), _change(head), _interval(head)])
    header = ["model", "head", "guided by", "change", "95 % interval"]
    if not rows:
        return ["No removal of a head raises the loss."]
    return [f"Heads whose removal raises the loss most, at most {MOST} of each model:", Table(header, rows)]


def _heads_of_probes(numbers: Mapping[str, Any]) -> list[Block]:
    rows = [
        [
            entry["probe"],
            entry["mode"],
            _name(entry["arm"], entry["model"], numbers),
            _head(entry),
            decimals(entry["score"]),
            _change(entry),
            _interval(entry),
            _effect(entry),
            f"{entry['rank']} of {numbers['models'][entry['arm']][entry['model']]['heads']}",
        ]
        for entry in numbers["heads_of_probes"]
    ]
    if not rows:
        return []
    header = ["probe", "mode", "model", "head", "score", "change without it", "95 % interval", "the loss", "rank"]
    return [
        "A probe shows what a head attends to; ablation shows whether the loss depends on it. For each probe, the "
        "head chosen on development, its score on test queries, and what its removal does to the loss (rank 1 is the "
        "largest rise):",
        Table(header, rows),
    ]


def _effect(change: Mapping[str, Any]) -> str:
    """Return in words whether the loss changes without a head, judged by the interval."""
    if change["low"] is None:
        return DASH
    if change["low"] > 0:
        return "rises"
    return "falls" if change["high"] < 0 else "has no clear change"


def _differences(numbers: Mapping[str, Any], baseline: str) -> list[Block]:
    rows = [
        [arm, *(text for key in ("loss", "change") for text in (_change(of[key], "mean"), _interval(of[key])))]
        for arm, of in numbers["differences"].items()
    ]
    blocks: list[Block] = []
    if rows:
        header = ["arm", "loss with all heads", "95 % interval", "mean change without a head", "95 % interval"]
        explained = f"Differences from {baseline}, on the same texts with the same masked words or labels:"
        blocks += [explained, Table(header, rows)]
    for arm, reason in numbers["not_compared"].items():
        blocks.append(f"**The losses of {arm} and {baseline} are not compared: {reason}.**")
    return blocks


def _head(entry: Mapping[str, Any]) -> str:
    return ".".join(map(str, entry["head"]))


def _pattern(head: Mapping[str, Any]) -> str:
    return DASH if head["pattern"] is None else title(head["pattern"])


def _change(entry: Mapping[str, Any], name: str = "change") -> str:
    return f"{entry[name]:+.4f}"


def _interval(entry: Mapping[str, Any]) -> str:
    return interval(entry["low"], entry["high"], digits=4)


def _value(mean: Mapping[str, Any] | None) -> str:
    if mean is None:
        return DASH
    return _change(mean, "mean") + ("" if mean["low"] is None else f" ({_interval(mean)})")


def csv_text(summaries: Mapping[str, Sequence[Summary]]) -> str:
    """Return the content of `ablation.csv`: the loss without each head, and its change, for each arm and model.

    summaries: for each arm those of its models, in the order of the seeds.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arm", "model", "layer", "head", "pattern", "loss", "change", "low", "high"])
    for arm, of_arm in summaries.items():
        for number, summary in enumerate(of_arm):
            base = summary.ablated.ablation.base_loss
            for head in summary.heads():
                values = [base + head["change"], head["change"], head["low"], head["high"]]
                cells = ["" if value is None else f"{value:.8g}" for value in values]
                writer.writerow([arm, number, *head["head"], head["pattern"] or "", *cells])
    return text.getvalue()

"""Reports of experiments: a title, sections of paragraphs, tables and figures, and the numbers behind them.

Beside the parts of a report, this module has what the reports of several commands have in common: differences between
arms (variants) over seeds, the settings in which arms differ, and the formats of numbers.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.analysis.tables import Table
from ag_jax.distributed import storage
from ag_jax.evaluation.significance import PairedDifference, spread
from ag_jax.settings import schema

DASH = "–"  # in the place of a value that is not known
DIFFERENCE_HEADER = ("Difference", "95 % interval", "p over seeds", "p, Holm", "Detectable")
DIFFERENCE_EXPLAINED = (
    "*p, Holm* is corrected for all tests over seeds of this table. *Detectable* is how large the true difference has "
    "to be for the test to give p < .05 in four of five repetitions, with as many seeds that differ as much."
)
Differences = Mapping[str, Mapping[str, Mapping[str, Any] | None]]  # the result of `differences_json`


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of a report.

    caption: what it shows, in a few words.
    path: where it is, relative to the report.
    """

    caption: str
    path: str

    def markdown(self) -> str:
        """Return the figure in Markdown."""
        return f"![{self.caption}]({self.path})"


Block = str | Table | Figure  # a text is a paragraph or a list in Markdown


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report.

    title: its heading; empty for what stands above all headings.
    blocks: its paragraphs, tables and figures. Empty texts are left out, and a section that has nothing else.
    """

    title: str
    blocks: Sequence[Block]

    def markdown(self) -> str:
        """Return the section in Markdown, with blank lines between its blocks."""
        texts = (block if isinstance(block, str) else block.markdown() for block in self.blocks)
        return "\n\n".join(filter(None, [self.title and f"## {self.title}", *texts]))


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of an experiment, which is written as Markdown, and its numbers, which are written as JSON.

    title: its heading.
    command: the command that makes this report again, which stands at its end.
    content: its numbers as JSON values. Command and title are stored with them, unless they have another `title`.
    sections: what the report shows of the numbers; the first one has no title and says the result.
    warnings: sentences, without their full stops, that stand above all sections.
    """

    title: str
    command: str
    content: Mapping[str, Any]
    sections: Sequence[Section]
    warnings: Sequence[str] = ()

    def markdown(self, numbers: str = "report.json") -> str:
        """Return the report in Markdown, with paths below the working directory relative to it.

        numbers: name of the file of its numbers, which the last line names.
        """
        first = [f"# {self.title}", *(f"**{warning}.**" for warning in self.warnings)]
        last = f"---\n\nMade by `{self.command}`; all numbers are in [{numbers}]({numbers})."
        text = "\n\n".join([*first, *(one.markdown() for one in self.sections if any(one.blocks)), last]) + "\n"
        return text if (here := os.getcwd()) == os.sep else text.replace(f"{here}{os.sep}", "")

    def write(self, workdir: epath.Path, numbers: str = "report.json") -> epath.Path:
        """Write the numbers as JSON and then `report.md`; return the path of `report.md`.

        numbers: name of the JSON file.
        """
        content = {"title": self.title, "command": self.command, **self.content}
        storage.write_whole(workdir / numbers, json.dumps(content, indent=2) + "\n")
        storage.write_whole(workdir / "report.md", self.markdown(numbers))
        return workdir / "report.md"


def decimals(value: float | None, missing: str = DASH) -> str:
    """Return a number with three decimals; for None, the text `missing`."""
    return missing if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """Return a fraction as a percentage with one decimal, without the sign %; a dash for None."""
    return DASH if value is None else f"{100 * value:.1f}"


def interval(low: float | None, high: float | None, digits: int = 3) -> str:
    """Return the interval of a difference as text, both ends with a sign; a dash if they are None."""
    return DASH if low is None else f"{low:+.{digits}f} to {high:+.{digits}f}"


def rows_of_metrics(
    labels: Mapping[str, str], values: Mapping[str, Mapping[str, Sequence[float]]], differences: Differences
) -> list[list[str]]:
    """Return rows of a table with a column for each arm: `mean ± standard deviation (p = ...)` of each metric.

    labels: {metric: its name in the first column}.
    values: {arm: {metric: the values of the seeds}}.
    differences: p of a cell, by arm and metric (the result of `differences_json`); where there is none, no p is shown.
    """

    def cell(arm: str, metric: str) -> str:
        difference = differences.get(arm, {}).get(metric)
        return f"{spread(values[arm][metric])}" + (f" (p = {difference['p_value']:.2g})" if difference else "")

    return [[label, *(cell(arm, metric) for arm in values)] for metric, label in labels.items()]


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
        scale * value for value in (difference["mean"], *difference["interval"], difference["smallest"])
    )
    p_values = (f"{difference[name]:.2g}" for name in ("p_value", "p_corrected"))
    return [f"{mean:+.{digits}f}", interval(low, high, digits), *p_values, f"{smallest:.{digits}f}"]


def differences_blocks(differences: Differences, labels: Mapping[str, str], baseline: str) -> list[Block]:
    """Return a table of the differences of arms from the baseline, below a sentence about it; [] without differences.

    labels: how the metrics are named in the table.
    """
    rows = [
        [arm, labels[key], *difference_cells(difference)]
        for arm, of_arm in differences.items()
        for key, difference in of_arm.items()
        if difference is not None
    ]
    explained = f"Differences from {baseline}, paired by seed. {DIFFERENCE_EXPLAINED}"
    return [explained, Table(["Arm", "", *DIFFERENCE_HEADER], rows)] if rows else []


def table_of_layers(header: Sequence[str], rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Table:
    """Return a table with a column for all layers and one for each layer, with dashes where a model has fewer.

    header: names of the first columns.
    rows: (cells of the first columns, those of all layers and of each layer).
    """
    layers = max(len(cells) for _, cells in rows) - 1
    columns = [*header, "All layers", *(f"Layer {layer}" for layer in range(layers))]
    return Table(columns, [[*first, *cells, *[DASH] * (layers + 1 - len(cells))] for first, cells in rows])


def settings_section(arms: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any] = {}) -> Section:
    """Return the section with the settings in which arms differ; without blocks if there is only one arm.

    arms: the flat settings of each arm, by name, without those that have no effect there.
    defaults: flat settings; one that only some arms have is left out if it is at its default there.
    """
    names = dict.fromkeys(key for settings in arms.values() for key in settings)
    values = {key: {repr(settings.get(key, DASH)) for settings in arms.values()} for key in names}
    at_default = {key: {repr(DASH), repr(defaults.get(key, DASH))} for key in names}
    keys = [key for key in names if len(values[key]) > 1 and values[key] != at_default[key]]
    rows = [[f"`{key}`", *(schema.shown(arm.get(key, DASH)) for arm in arms.values())] for key in keys]
    blocks: list[Block] = [Table(["Setting", *arms], rows)] if rows else ["The arms have the same settings."]
    return Section("What differs between the arms", blocks if len(arms) > 1 else [])

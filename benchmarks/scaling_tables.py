"""Write the tables of docs/scaling.md from the lines of scaling.py.

    python benchmarks/scaling_tables.py

The efficiency of a slice is its tokens a second and chip, as a share of those of the smallest slice on which the step
of the same model fits. Messages are the forecast's time for messages between chips and between slices, as a share of
the step. Dollars are for v5e at 1.20 dollars a chip-hour.
"""

import pathlib
from collections.abc import Iterator, Sequence

import cells
import pages
import scaling
from cells import Line

from ag_jax.analysis import markdown

PAGE = "docs/scaling.md"
RECORD = pathlib.Path(scaling.RESULTS)
DOLLARS = 1.20  # a chip-hour
TITLES = {
    ("roberta_12", "strong"): "RoBERTa with 12 layers and guidance, 256 sequences of 512 tokens a step",
    ("roberta_12", "weak"): "RoBERTa with 12 layers and guidance, 32 sequences of 512 tokens a step and chip",
    ("roberta_large", "strong"): "RoBERTa-large, 8,192 sequences of 512 tokens a step",
}
HEADER = (
    "chips",
    "slice",
    "sequences a chip",
    "step",
    "tokens/s",
    "efficiency",
    "messages",
    "MFU",
    "hours",
    "chip-hours",
    "dollars",
)


def rows(lines: Sequence[Line]) -> Iterator[list[str]]:
    """Yield the rows of a table for the lines of one model, in the order of their chips."""
    ordered = sorted(lines, key=lambda line: (line["chips"], line["slices"]))
    smallest = next((line["tokens_per_second"] / line["chips"] for line in ordered if line["fits"]), 0.0)
    for line in ordered:
        name = f"{line['slices']} x " * (line["slices"] > 1) + f"{line['generation']}:{line['shape']}"
        each = line["batch_size"] / line["chips"]
        if not line["fits"]:
            yield [f"{line['chips']:,}", name, f"{each:g}", "does not fit", *["–"] * (len(HEADER) - 4)]
            continue
        parts = line["forecast"]
        messages = (parts["messages"] + parts["network"]) / line["seconds"]
        yield [
            f"{line['chips']:,}",
            name,
            f"{each:g}",
            f"{1e3 * line['seconds']:,.0f} ms",
            f"{line['tokens_per_second']:,.0f}",
            f"{line['tokens_per_second'] / line['chips'] / smallest:.0%}",
            f"{messages:.0%}",
            f"{line['mfu']:.0%}",
            f"{line['run_seconds'] / 3600:,.1f}",
            f"{line['chip_hours']:,.0f}",
            f"{DOLLARS * line['chip_hours']:,.0f}",
        ]


def tables(lines: Sequence[Line]) -> Iterator[str]:
    """Yield the lines of all tables, as Markdown."""
    for (model, kind), title in TITLES.items():
        found = [line for line in lines if (line["model"], line["scaling"]) == (model, kind)]
        if found:
            yield from (f"**{title}**, {found[0]['steps']:,} steps:", "", *markdown.table(HEADER, rows(found)))


if __name__ == "__main__":
    pages.write(PAGE, "scaling_tables.py", tables(cells.read(RECORD)))

"""Figures of a search: the best loss by two settings, as a heat map for each arm."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from etils import epath
from matplotlib.figure import Figure

from ag_jax.analysis.figures.canvas import LARGE, MEDIUM, SMALL, WEIGHTS, caption, label, save


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """The best loss of an arm's points by the values of two settings.

    arm: name of the arm.
    metric: name of the loss.
    rows, columns: names of the settings.
    row_values, column_values: their values, as text.
    losses: a row for each value of the first setting; None where no point is done.
    """

    arm: str
    metric: str
    rows: str
    columns: str
    row_values: Sequence[str]
    column_values: Sequence[str]
    losses: Sequence[Sequence[float | None]]


def heat_maps(maps: Sequence[HeatMap], directory: epath.Path) -> list[tuple[str, str]]:
    """Write a PNG for each heat map that has a loss; return (arm, path relative to the parent of `directory`)."""
    drawn = []
    for one in maps:
        if any(loss is not None for row in one.losses for loss in row):
            path = save(draw_heat_map(one, directory.parent.name), directory / f"search_{one.arm}.png")
            drawn.append((one.arm, f"{directory.name}/{path.name}"))
    return drawn


def draw_heat_map(one: HeatMap, run: str = "") -> Figure:
    """Draw a heat map with the loss in each cell; low losses are dark, and cells without a loss are empty.

    run: name of the search, for the caption.
    """
    losses = np.array([[np.nan if loss is None else loss for loss in row] for row in one.losses], np.float64)
    figure = Figure((1.6 + 0.9 * losses.shape[1], 1.1 + 0.45 * losses.shape[0]), layout="constrained")
    axes = figure.subplots()
    low, high = np.nanmin(losses), np.nanmax(losses)
    axes.imshow(losses, cmap=f"{WEIGHTS}_r", vmin=low, vmax=max(high, low + 1e-6), aspect="auto")
    for (row, column), loss in np.ndenumerate(losses):
        if np.isfinite(loss):
            dark = loss - low <= 0.4 * (high - low)
            axes.text(column, row, f"{loss:.3f}", ha="center", va="center", fontsize=SMALL, color="w" if dark else "k")
    axes.set_xticks(range(losses.shape[1]), [label(value) for value in one.column_values], fontsize=SMALL)
    axes.set_yticks(range(losses.shape[0]), [label(value) for value in one.row_values], fontsize=SMALL)
    axes.set_xlabel(one.columns, fontsize=MEDIUM)
    axes.set_ylabel(one.rows, fontsize=MEDIUM)
    axes.set_title(label(f"{one.arm}: lowest {one.metric}", 60), fontsize=LARGE, loc="left", parse_math=False)
    caption(figure, run)
    return figure

"""Heat maps of a hyperparameter search, one for each arm: the best value of a metric by two settings."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from etils import epath
from matplotlib.figure import Figure

from ag_jax.analysis.figures.canvas import LARGE, MEDIUM, SMALL, WEIGHTS, caption, label, save


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """The best value of a metric among a search's points of one arm (config variant), by the values of two settings.

    arm: name of the arm.
    metric: name of the metric.
    rows, columns: names of the settings.
    row_values, column_values: their values, as text.
    cells: a row for each value of the first setting; None where no point is done.
    is_lower_better: whether low numbers are the best.
    """

    arm: str
    metric: str
    rows: str
    columns: str
    row_values: Sequence[str]
    column_values: Sequence[str]
    cells: Sequence[Sequence[float | None]]
    is_lower_better: bool = True


def heat_maps(maps: Sequence[HeatMap], directory: epath.Path) -> list[tuple[str, str]]:
    """Write a PNG of each heat map that is not empty; return [(name of arm, path relative to `directory`'s parent)]."""
    figures = []
    for heat_map in maps:
        if any(cell is not None for row in heat_map.cells for cell in row):
            path = save(draw_heat_map(heat_map, directory.parent.name), directory / f"search_{heat_map.arm}.png")
            figures.append((heat_map.arm, f"{directory.name}/{path.name}"))
    return figures


def draw_heat_map(heat_map: HeatMap, run: str = "") -> Figure:
    """Draw a search's heat map with its number in each cell, the better the darker; cells without one are empty.

    run: name of the search, for the caption.
    """
    cells = np.array([[np.nan if cell is None else cell for cell in row] for row in heat_map.cells], np.float64)
    figure = Figure((1.6 + 0.9 * cells.shape[1], 1.1 + 0.45 * cells.shape[0]), layout="constrained")
    axes = figure.subplots()
    low, high = np.nanmin(cells), np.nanmax(cells)
    best, colours = ("lowest", f"{WEIGHTS}_r") if heat_map.is_lower_better else ("highest", WEIGHTS)
    axes.imshow(cells, cmap=colours, vmin=low, vmax=max(high, low + 1e-6), aspect="auto")
    for (row, column), cell in np.ndenumerate(cells):
        if np.isfinite(cell):
            dark = (cell - low if heat_map.is_lower_better else high - cell) <= 0.4 * (high - low)
            axes.text(column, row, f"{cell:.3f}", ha="center", va="center", fontsize=SMALL, color="w" if dark else "k")
    axes.set_xticks(range(cells.shape[1]), [label(value) for value in heat_map.column_values], fontsize=SMALL)
    axes.set_yticks(range(cells.shape[0]), [label(value) for value in heat_map.row_values], fontsize=SMALL)
    axes.set_xlabel(heat_map.columns, fontsize=MEDIUM)
    axes.set_ylabel(heat_map.rows, fontsize=MEDIUM)
    axes.set_title(label(f"{heat_map.arm}: {best} {heat_map.metric}", 60), fontsize=LARGE, loc="left", parse_math=False)
    caption(figure, run)
    return figure

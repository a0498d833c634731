"""Heat maps of a hyperparameter search, one for each arm: the best value of a metric by two settings."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from etils import epath
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ag_jax.analysis.figures.canvas import MEDIUM, PALETTE, SMALL, WEIGHTS, label, save

WORST = 0.12  # place of the worst cell on the colour map, whose beginning is white


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
            path = save(draw_heat_map(heat_map), directory / f"search_{heat_map.arm}.png")
            figures.append((heat_map.arm, f"{directory.name}/{path.name}"))
    return figures


def draw_heat_map(heat_map: HeatMap) -> Figure:
    """Draw a search's heat map with its number in each cell, the better the darker, and a frame around the best cell.

    The worst cell has a light colour, and cells without a number are white with a cross.
    """
    cells = np.array([[np.nan if cell is None else cell for cell in row] for row in heat_map.cells], np.float64)
    figure = Figure((1.6 + 0.9 * cells.shape[1], 1.1 + 0.45 * cells.shape[0]), layout="constrained")
    axes = figure.subplots()
    low, high = np.nanmin(cells), np.nanmax(cells)
    best = low if heat_map.is_lower_better else high
    goodness = 1 - abs(cells - best) / max(high - low, 1e-6)
    axes.imshow(WORST + (1 - WORST) * goodness, cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto")
    for (row, column), cell in np.ndenumerate(cells):
        if np.isfinite(cell):
            ink = "w" if goodness[row, column] > 0.5 else "k"
            axes.text(column, row, f"{cell:.3f}", ha="center", va="center", fontsize=SMALL, color=ink)
        else:
            axes.plot(column, row, "x", color="0.6", markersize=6)
    row, column = np.argwhere(cells == best)[0]
    frame = Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=PALETTE[1], linewidth=2.5)
    axes.add_patch(frame).set_clip_on(False)  # or the edge of the axes would hide half of the line
    axes.set_xticks(range(cells.shape[1]), [label(value) for value in heat_map.column_values], fontsize=SMALL)
    axes.set_yticks(range(cells.shape[0]), [label(value) for value in heat_map.row_values], fontsize=SMALL)
    axes.set_xlabel(heat_map.columns, fontsize=MEDIUM)
    axes.set_ylabel(heat_map.rows, fontsize=MEDIUM)
    which = "lowest" if heat_map.is_lower_better else "highest"
    axes.set_title(
        label(f"{heat_map.arm}: {heat_map.metric}, the {which} framed", 60),
        fontsize=MEDIUM,
        loc="left",
        parse_math=False,
    )
    return figure

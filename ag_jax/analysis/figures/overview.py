"""Figures of all heads of a model: their attention maps, and their attention mass on each pattern.

Shape letters: N layers, H heads, L length, Q query position, K key position.
"""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import PercentFormatter

from ag_jax.analysis.figures import canvas
from ag_jax.analysis.figures.canvas import MEDIUM, SMALL, WEIGHTS, WIDTH, label
from ag_jax.analysis.maps import (
    KINDS,
    AttentionMaps,
    measured,
    pattern_names,
    strongest_pattern,
    title,
)
from ag_jax.attention.assignment import Assignment
from ag_jax.attention.patterns import PATTERNS, PatternTokens
from ag_jax.viewer import encode

NARROWEST_TILE = 0.55  # minimum height and width of a map in the overview, in inches
MOST_NUMBERS = 12  # maximum number of heads for which there is room to write each mass


def pattern_colours(maps: AttentionMaps, *assignments: Assignment) -> dict[str, str]:
    """Return {pattern: colour} of all built-in patterns, whose colours never change, and of others that guide heads."""
    others = [name for assignment in assignments for name in pattern_names(maps, assignment)]
    return canvas.colours([*PATTERNS, *others])


def _outline(axes: Axes, column: float, row: float, width: float, height: float, colour: str) -> None:
    axes.add_patch(Rectangle((column, row), width, height, fill=False, edgecolor=colour, linewidth=1.8, clip_on=False))


def draw_overview(maps: AttentionMaps, assignment: Assignment) -> Figure:
    """Draw all attention maps in a grid of layers by heads, with guided heads framed in their pattern's colour.

    For a long sentence, a pixel shows the largest weight in the square of tokens for which it stands.
    """
    layers, heads, queries, keys = maps.weights_NHQK.shape
    size = canvas.map_size(queries, keys, max(0.55, min(1.5, WIDTH / max(heads, layers))), NARROWEST_TILE)
    blocks = canvas.block_sizes(queries, keys, size, 2)
    tiles_NHQK = encode.largest(maps.weights_NHQK, *blocks)
    high, wide = tiles_NHQK.shape[-2:]
    # The gaps between maps, in cells, are equally wide on paper.
    cell = canvas.Size(size.width / wide, size.height / high)
    gap = max(2 * cell.width, 2 * cell.height, min(size) / 8)
    down, right = round(gap / cell.height), round(gap / cell.width)
    # All maps are tiles of one image, with white gaps between them.
    mosaic = np.full((layers * (high + down) - down, heads * (wide + right) - right), np.nan, np.float32)
    tops, lefts = [layer * (high + down) for layer in range(layers)], [head * (wide + right) for head in range(heads)]
    for layer, top in enumerate(tops):
        for head, left in enumerate(lefts):
            mosaic[top : top + high, left : left + wide] = tiles_NHQK[layer, head]

    figure = Figure((heads * size.width + 1.6, layers * size.height + 1.8))
    figure.set_layout_engine("constrained", h_pad=0.1)  # inches between the caption and the numbers of heads
    axes = figure.add_subplot()
    image = axes.imshow(mosaic, cmap=WEIGHTS, norm=canvas.weight_scale(), aspect=cell.height / cell.width)
    owners, colours = assignment.of_layer(heads), pattern_colours(maps, assignment)
    for top, of_layer in zip(tops, assignment.patterns(layers, heads), strict=True):
        for left, owner in zip(lefts, of_layer, strict=True):
            frame = colours[owner] if owner else "0.75"
            corner = left - 0.5 - right / 4, top - 0.5 - down / 4
            _outline(axes, *corner, wide + right / 2, high + down / 2, frame)
    rim_x, rim_y = 0.5 + right / 2, 0.5 + down / 2
    axes.set(xlim=(-rim_x, mosaic.shape[1] - 1 + rim_x), ylim=(mosaic.shape[0] - 1 + rim_y, -rim_y))
    axes.set_frame_on(False)
    free = maps.unguided(assignment)
    names = [f"{head}\n{label(title(owner)) if owner else free}".rstrip() for head, owner in enumerate(owners)]
    steep = 90 if size.width < 0.75 else 0
    axes.set_xticks([left + (wide - 1) / 2 for left in lefts], names, fontsize=SMALL, rotation=steep)
    axes.set_yticks([top + (high - 1) / 2 for top in tops], [str(layer) for layer in range(layers)], fontsize=SMALL)
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    for tick, owner in zip(axes.get_xticklabels(), owners, strict=True):
        tick.set_color(colours[owner] if owner else "0.35")
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("head", fontsize=MEDIUM)
    axes.set_ylabel("layer", fontsize=MEDIUM)
    canvas.weight_bar(figure, image, [axes], blocks)
    canvas.caption(figure, *maps.caption)
    kind = KINDS[maps.kind]
    figure.supxlabel(f"in each map, row: {kind.row}, column: {kind.column}", fontsize=SMALL, color="0.35")
    return figure


def draw_mass(maps: AttentionMaps, assignment: Assignment, special: PatternTokens) -> Figure:
    """Draw every head's attention mass on each pattern, in a panel for each pattern; guided heads are framed.

    The title of a panel has the mass of a head that attends uniformly. A last panel shows for every head the pattern
    that explains it best (`strongest_pattern`), white if the mass is not above that of uniform attention.
    """
    by_name, colours = measured(maps, special, assignment), pattern_colours(maps, assignment)
    layers, heads = maps.weights_NHQK.shape[:2]
    owners = assignment.of_layer(heads)
    cells = len(by_name) + 2  # with the strongest pattern and a legend
    columns = min((4, 3), key=lambda columns: -cells % columns)  # as few empty cells as possible
    rows = math.ceil(cells / columns)
    height = max(1.6, min(3.4, 2.3 * layers / heads))
    figure = Figure((columns * 2.2 + 0.8, rows * (height + 0.6) + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.set_axis_off()
    for panel, (name, pattern) in zip(axes.flat, by_name.items(), strict=False):
        image = _draw_mass(panel, name, pattern.mass_NH, pattern.chance_N, colours[name])
        members = [head for head, owner in enumerate(owners) if owner == name]
        for run in assignment.runs(layers) if members else ():
            _outline(panel, members[0] - 0.5, run.start - 0.5, len(members), len(run), colours[name])
    strongest, legend = axes.flat[len(by_name) : cells]
    chance = {name: pattern.chance_N for name, pattern in by_name.items()}
    _draw_strongest(strongest, legend, *strongest_pattern(maps, special, assignment), chance, colours)
    for number in range(len(by_name) + 1):
        panel = axes.flat[number]
        panel.set_ylabel("layer" if number % columns == 0 else "", fontsize=MEDIUM)
        panel.set_xlabel("head" if number + columns >= cells - 1 else "", fontsize=MEDIUM)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.015, format=PercentFormatter(1.0, decimals=0))
    bar.set_label("share of attention on the pattern's target, linear scale", fontsize=MEDIUM)
    bar.ax.tick_params(labelsize=SMALL)
    canvas.caption(figure, *maps.caption)
    return figure


def _draw_mass(axes: Axes, name: str, mass_NH: np.ndarray, chance_N: np.ndarray, colour: str) -> AxesImage:
    """Draw the attention mass of every layer and head on one pattern as a heat map, with numbers where they fit."""
    image = axes.imshow(mass_NH, cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto")
    axes.set_axis_on()
    canvas.layer_head_ticks(axes, mass_NH.shape, 8)
    # Layers with a window have another level of chance than those without.
    levels = " to ".join(dict.fromkeys(f"{100 * chance:.0f}" for chance in (chance_N.min(), chance_N.max())))
    by_chance = "" if np.isnan(chance_N).any() else f" (chance {levels} %)"
    axes.set_title(f"{label(title(name))}{by_chance}", fontsize=MEDIUM, color=colour)
    if np.isnan(mass_NH).all():
        axes.text(0.5, 0.5, "points at nothing\nin this text", ha="center", va="center", transform=axes.transAxes)
    elif mass_NH.shape[1] <= MOST_NUMBERS:
        for (layer, head), mass in np.ndenumerate(mass_NH):
            ink = "white" if mass > 0.5 else "black"
            axes.text(head, layer, f"{100 * mass:.0f}", ha="center", va="center", fontsize=SMALL - 1, color=ink)
    return image


def _draw_strongest(
    axes: Axes,
    legend: Axes,
    best_NH: np.ndarray,
    mass_NH: np.ndarray,
    chance: Mapping[str, np.ndarray],
    colours: Mapping[str, str],
) -> None:
    """Draw each head in the colour of its strongest pattern, paler the nearer its mass on the pattern is to chance."""
    full = np.array([[to_rgb(colours[name]) for name in names] for names in best_NH])
    chance_NH = np.array([[chance[name][layer] for name in names] for layer, names in enumerate(best_NH)])
    above_NH = np.divide(mass_NH - chance_NH, 1 - chance_NH, out=np.zeros_like(mass_NH), where=chance_NH < 1)
    axes.imshow(1 - np.clip(above_NH, 0, 1)[:, :, None] * (1 - full), aspect="auto")
    axes.set_axis_on()
    canvas.layer_head_ticks(axes, mass_NH.shape, 8)
    axes.set_title("strongest pattern", fontsize=MEDIUM)
    names = [name for name in colours if (best_NH == name).any()]
    handles = [Patch(color=colours[name], label=label(title(name))) for name in names]
    # Beside the strongest patterns, or below them at the beginning of a row.
    heading = "strongest pattern:\nwhite at chance,\nfull colour at 100 %"
    legend.legend(
        handles=handles, title=heading, title_fontsize=SMALL, fontsize=MEDIUM, loc="center left", frameon=False
    )

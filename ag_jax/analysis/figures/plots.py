"""Figures of attention maps of one model or of several arms, and of the patterns' target matrices.

Every `draw_...` returns a matplotlib `Figure` to show or change; the other functions write PNGs and return their paths.
Layers and heads are counted from 0 in arguments, as in the arrays, and from 1 in the figures.

Shape letters: N layers, H heads, L length, Q query position, K key position.
"""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath
from matplotlib.figure import Figure

from ag_jax.analysis import stripes
from ag_jax.analysis.figures import canvas
from ag_jax.analysis.figures.canvas import LARGE, MEDIUM, WIDTH, label, save
from ag_jax.analysis.figures.curves import draw_losses, draw_masses, loss_curves, mass_curves
from ag_jax.analysis.figures.overview import draw_mass, draw_overview, pattern_colours
from ag_jax.analysis.maps import (
    KINDS,
    MOST_NAMED,
    Assignment,
    AttentionMaps,
    Heads,
    attention_mass,
    head_patterns,
    strongest_pattern,
    targets,
    title,
)
from ag_jax.attention.patterns import PatternTokens

MOST_INCHES = 4.1  # longest side of a map that grows to label all of its tokens

__all__ = [
    "attack_figure",
    "draw_attack",
    "draw_heads",
    "draw_losses",
    "draw_maps",
    "draw_mass",
    "draw_masses",
    "draw_means",
    "draw_overview",
    "draw_patterns",
    "file_suffix",
    "loss_curves",
    "map_figure",
    "mass_curves",
    "mean_figure",
    "pattern_figure",
    "save",
    "save_inspection",
]


def save_inspection(
    maps: AttentionMaps, assignment: Assignment, special: PatternTokens, directory: str | os.PathLike, step: int | None
) -> list[epath.Path]:
    """Write the figures `draw_overview`, `draw_heads` and `draw_mass` of a model as PNGs and return their paths.

    The file names also have the kind of attention, if that is not the encoder's, and the heads whose outputs were
    zeroed, if there are any: attention_cross_overview_step100.png, attention_overview_step100_without3.2+4.1.png.

    step: training step of the model, for the file names; None leaves it out.
    """
    folder = epath.Path(directory)
    figures = {
        "overview": draw_overview(maps, assignment),
        "heads": draw_heads(maps, assignment, special),
        "mass": draw_mass(maps, assignment, special),
    }
    kind = "" if maps.kind == "encoder" else f"{maps.kind}_"
    suffix = file_suffix(step, maps.without)
    return [save(figure, folder / f"attention_{kind}{name}{suffix}.png") for name, figure in figures.items()]


def file_suffix(step: int | None, without: Heads) -> str:
    """Return the end of a figure's file name: the model's step, and the heads whose outputs were zeroed.

    Of many heads, whose names would be too long for a file, it has the number and a hash.
    """
    heads = "+".join(f"{layer + 1}.{head + 1}" for layer, head in without)
    if len(without) > MOST_NAMED:
        heads = f"_{len(without)}_heads_{hashlib.sha256(heads.encode()).hexdigest()[:8]}"
    return ("" if step is None else f"_step{step}") + (f"_without{heads}" if without else "")


def pattern_figure(
    tokens: Sequence[str], target_by_name: Mapping[str, np.ndarray], path: str | os.PathLike
) -> epath.Path:
    """Write the figure of the patterns' target matrices (`draw_patterns`) as a PNG; return the path."""
    return save(draw_patterns(tokens, target_by_name), path)


def map_figure(
    columns: Mapping[str, Sequence[tuple[str, AttentionMaps]]],
    layer: int | Sequence[int],
    head: int | Sequence[int],
    path: str | os.PathLike,
) -> epath.Path:
    """Write the figure of attention maps of several arms during training (`draw_maps`) as a PNG; return the path."""
    return save(draw_maps(columns, layer, head), path)


def mean_figure(maps_by_arm: Mapping[str, AttentionMaps], path: str | os.PathLike) -> epath.Path:
    """Write the figure of the last layer's mean attention in several arms (`draw_means`) as a PNG; return the path."""
    return save(draw_means(maps_by_arm), path)


def attack_figure(
    plain: AttentionMaps, attacked: AttentionMaps, assignment: Assignment, path: str | os.PathLike
) -> epath.Path:
    """Write the figure of attention maps without and with an attack (`draw_attack`) as a PNG; return the path."""
    return save(draw_attack(plain, attacked, assignment), path)


def draw_attack(plain: AttentionMaps, attacked: AttentionMaps, assignment: Assignment) -> Figure:
    """Draw a sentence's attention maps without and with an adversary's attack (Wu et al. 2022, figure 1).

    The maps are of the first unguided head (head 0 if all are guided) in the first, the middle and the last layer.
    """
    layers, heads = plain.weights_NHQK.shape[:2]
    chosen = sorted({0, layers // 2, layers - 1})
    guided = sum(count for _, count in assignment)
    return draw_maps({"plain": [("", plain)], "attacked": [("", attacked)]}, chosen, [guided % heads] * len(chosen))


def draw_heads(
    maps: AttentionMaps, assignment: Assignment, special: PatternTokens, layers: Sequence[int] | None = None
) -> Figure:
    """Draw, for each pattern that guides heads, the first such head beside the pattern's target; below, two free heads.

    The free heads are the first two. Each head has a row, and each layer a column. The title of a guided head's map has
    the head's mass on the target; the title of a free head's map has the head's `strongest_pattern` and the mass on it,
    unless the attention is hard-coded.

    layers: layers to draw; None draws the first, the middle and the last.
    """
    count, heads = maps.weights_NHQK.shape[:2]
    layers = sorted({0, count // 2, count - 1}) if layers is None else list(layers)
    owners = head_patterns(assignment, heads)
    free = [head for head, owner in enumerate(owners) if owner is None]
    shown = [owners.index(name) for name, _ in assignment] + free[:2]
    masses = attention_mass(maps, special, assignment)
    best_NH, best_mass_NH = strongest_pattern(maps, special, assignment)
    wanted = targets(maps, special, [name for name, _ in assignment])

    columns = len(layers) + bool(assignment)  # the targets come last; a run without guidance has none
    size = _map_size(maps, max(1.5, min(3.4, WIDTH / columns, 2 * WIDTH / len(shown))))
    figure = Figure((columns * size.width + 2.6, len(shown) * (size.height + 0.25) + 2.1), layout="compressed")
    axes = figure.subplots(len(shown), columns, squeeze=False)
    colours = pattern_colours(maps, assignment)
    for row, head in enumerate(shown):
        owner = owners[head]
        for column, layer in enumerate(layers):
            name = owner or best_NH[layer, head]
            mass = masses[owner][layer, head] if owner else best_mass_NH[layer, head]
            image = canvas.draw_map(axes[row, column], maps.weights_NHQK[layer, head], size)
            found = f": {'–' if np.isnan(mass) else f'{mass:.2f}'} on {label(title(name))}"
            # Hard-coded weights follow no pattern, however much of them happens to lie on one.
            shown_mass = "" if maps.is_fixed and not owner else found
            axes[row, column].set_title(f"layer {layer + 1}{shown_mass}", fontsize=MEDIUM)
        if owner:
            canvas.draw_map(axes[row, -1], wanted[owner], size)
            axes[row, -1].set_title(f"target {label(title(owner))}", fontsize=MEDIUM)
            for panel in axes[row]:
                canvas.frame(panel, colours[owner])
        elif assignment:
            axes[row, -1].set_axis_off()
        axes[row, 0].set_ylabel(f"head {head + 1}" + ("" if owner else f" ({maps.unguided})"), fontsize=LARGE)
        for column, panel in enumerate(axes[row]):
            beside = maps.row_tokens if column == 0 else ()
            canvas.token_ticks(panel, size, rows=beside, columns=maps.tokens if row == len(shown) - 1 else ())
    canvas.weight_bar(figure, image, axes, _blocks(maps, size))
    canvas.caption(figure, maps.title, KINDS[maps.kind].caption)
    return figure


def _map_size(maps: AttentionMaps, longest: float) -> canvas.Size:
    """Return the size of a map of which the longer side has `longest` inches, or more if all tokens then have labels,
    up to `MOST_INCHES`.
    """
    queries, keys = len(maps.row_tokens), len(maps.tokens)
    needed = canvas.room_for_labels(max(queries, keys))
    return canvas.map_size(queries, keys, max(longest, needed) if needed <= MOST_INCHES else longest)


def _blocks(maps: AttentionMaps, size: canvas.Size) -> canvas.Blocks:
    return canvas.block_sizes(len(maps.row_tokens), len(maps.tokens), size)


def draw_patterns(tokens: Sequence[str], target_by_name: Mapping[str, np.ndarray]) -> Figure:
    """Draw the target matrix of each pattern for a sentence (Deshpande & Narasimhan 2020, figures 2 and 4).

    Raises ValueError if there are no patterns.
    """
    if not target_by_name:
        raise ValueError("there is no pattern to draw: give at least one target matrix")
    inches = max(1.9, min(3.4, len(tokens) * 0.105))  # room for every token, if that is possible
    columns = min(int(WIDTH / inches), len(target_by_name))
    rows = math.ceil(len(target_by_name) / columns)
    figure = Figure((columns * inches + 1.8, rows * (inches + 0.25) + 1.0), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    size = canvas.Size(inches, inches)
    for at, (panel, (name, target_QK)) in enumerate(zip(axes, target_by_name.items(), strict=False)):
        image = canvas.draw_map(panel, target_QK, size)
        panel.set_title(label(title(name)), fontsize=LARGE)
        bottom = at + columns >= len(target_by_name)
        beside = tokens if at % columns == 0 else ()
        canvas.token_ticks(panel, size, rows=beside, columns=tokens if bottom else ())
    for panel in axes[len(target_by_name) :]:
        panel.set_axis_off()
    canvas.weight_bar(figure, image, axes, canvas.block_sizes(len(tokens), len(tokens), size))
    return figure


def draw_maps(
    columns: Mapping[str, Sequence[tuple[str, AttentionMaps]]], layer: int | Sequence[int], head: int | Sequence[int]
) -> Figure:
    """Draw attention maps of chosen heads: arms side by side, and training proceeding from top to bottom.

    With equally long sequences of layers and heads, the first of these heads is drawn side by side for all arms, then
    the second, and so on (Deshpande & Narasimhan 2020, figure 1). Raises ValueError if no arm has any of the heads.

    columns: {arm: (label, maps) from the start to the end of training}.
    layer: layer of the head, or of each head.
    head: number of the head in its layer, or of each head.
    """
    chosen = list(zip(np.atleast_1d(layer).tolist(), np.atleast_1d(head).tolist(), strict=True))
    rows = max((len(series) for series in columns.values()), default=0)
    if not rows:
        raise ValueError("there is no attention map to draw: give at least one arm with one map")
    wide = len(chosen) * len(columns)
    inches = max(1.6, min(3.4, WIDTH / wide))
    figure = Figure((wide * inches + 1.8, rows * (inches + 0.15) + 1.4), layout="compressed")
    axes = figure.subplots(rows, wide, squeeze=False)
    for panel in axes.ravel():  # panels stay empty where an arm has fewer maps, or lacks a head
        panel.set_axis_off()
    drawn = None
    for at, (place, arm) in enumerate((place, arm) for place in chosen for arm in columns):
        for row, (name, maps) in enumerate(columns[arm]):
            if not all(0 <= index < size for index, size in zip(place, maps.weights_NHQK.shape, strict=False)):
                continue
            panel = axes[row, at]
            panel.set_axis_on()
            size = canvas.map_size(len(maps.row_tokens), len(maps.tokens), inches)
            drawn = canvas.draw_map(panel, maps.weights_NHQK[place], size)
            if at == 0:
                panel.set_ylabel(label(name, 30), fontsize=MEDIUM, parse_math=False)
            if row == 0:
                where = f"layer {place[0] + 1}, head {place[1] + 1}"
                panel.set_title(f"{label(arm, 24)}\n{where}", fontsize=MEDIUM, parse_math=False)
            beside, is_last = maps.row_tokens if at == 0 else (), row == len(columns[arm]) - 1
            canvas.token_ticks(panel, size, rows=beside, columns=maps.tokens if is_last else ())
    if drawn is None:
        shapes = sorted({maps.weights_NHQK.shape[:2] for series in columns.values() for _, maps in series})
        sizes = " or ".join(f"{layers} layers of {heads} heads" for layers, heads in shapes)
        raise ValueError(f"no arm has the heads {chosen} (layer, head, counted from 0): the models have {sizes}")
    longest = max((maps for series in columns.values() for _, maps in series), key=lambda maps: len(maps.tokens))
    longest_size = canvas.map_size(len(longest.row_tokens), len(longest.tokens), inches)
    canvas.weight_bar(figure, drawn, axes, _blocks(longest, longest_size))
    return figure


def draw_means(maps_by_arm: Mapping[str, AttentionMaps]) -> Figure:
    """Draw the attention of the last layer, as the mean over its heads, with the arms side by side.

    The maps are of the same kind, and of the same text. For encoders, titles have the shares of attention on the
    diagonal and on stripes (`analysis.stripes`), as in figure 3 of He et al. 2021 (DeBERTa). Raises ValueError if there
    is no arm.
    """
    if not maps_by_arm:
        raise ValueError("there is no attention map to draw: give at least one arm")
    first = next(iter(maps_by_arm.values()))
    size = _map_size(first, 3.4)
    columns = min(max(3, int(WIDTH / size.width)), len(maps_by_arm))
    rows = math.ceil(len(maps_by_arm) / columns)
    # Room for labels of the rows and the colour bar, and for labels of the columns, where a row may be incomplete.
    wide, high = columns * size.width + 2.6, rows * (size.height + 0.4) + 2.1 + (rows > 1)
    figure = Figure((wide, high), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for at, (panel, (arm, maps)) in enumerate(zip(axes, maps_by_arm.items(), strict=False)):
        image = canvas.draw_map(panel, maps.weights_NHQK[-1].mean(0), size)
        named = f"{label(arm, 24)}: layer {len(maps.weights_NHQK)}"
        panel.set_title(named + _shares(maps), fontsize=MEDIUM, parse_math=False)
        bottom = at + columns >= len(maps_by_arm)
        beside = maps.row_tokens if at % columns == 0 else ()
        canvas.token_ticks(panel, size, rows=beside, columns=maps.tokens if bottom else ())
    for panel in axes[len(maps_by_arm) :]:
        panel.set_axis_off()
    canvas.weight_bar(figure, image, axes, _blocks(first, size))
    kind = KINDS[first.kind]
    canvas.caption(figure, f"{kind.title}, mean over the heads of the last layer", kind.caption)
    return figure


def _shares(maps: AttentionMaps) -> str:
    """Return a second line for the title of a map of the last layer; empty for maps of a decoder."""
    if maps.kind != "encoder":
        return ""
    found = stripes.shares_of_maps(maps)
    return f"\n{found.diagonal[-1]:.2f} on the diagonal, {found.stripes[-1]:.2f} on stripes"

"""Figures of attention maps of one model or of a comparison's arms, and of the patterns' target matrices.

Every `draw_...` returns a matplotlib `Figure` to show or change; the other functions write PNGs and return their paths.

Shape letters: N layers, H heads, L length, Q query position, K key position.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ag_jax.analysis import stripes
from ag_jax.analysis.figures import canvas
from ag_jax.analysis.figures.canvas import LARGE, MEDIUM, WIDTH, label, save
from ag_jax.analysis.figures.curves import draw_losses, draw_masses, loss_curves, mass_curves
from ag_jax.analysis.figures.overview import draw_mass, draw_overview, pattern_colours
from ag_jax.analysis.maps import (
    KINDS,
    MOST_NAMED,
    AttentionMaps,
    Heads,
    Measured,
    measured,
    strongest_pattern,
    title,
)
from ag_jax.attention.assignment import Assignment
from ag_jax.attention.patterns import PatternTokens

MOST_INCHES = 4.1  # longest side of a map that grows to label all of its tokens

__all__ = [
    "attack_figure",
    "draw_attack",
    "draw_chosen",
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
    maps: AttentionMaps,
    assignment: Assignment,
    special: PatternTokens,
    directory: str | os.PathLike,
    step: int | None,
    layers: Sequence[int] | None = None,
    heads: Heads = (),
) -> list[epath.Path]:
    """Write figures of a model's attention as PNGs (all maps, single heads, mass on patterns); return their paths.

    The file names also have the kind of attention, if that is not the encoder's, and the heads whose outputs were
    zeroed, if there are any: attention_cross_overview_step100.png, attention_overview_step100_without3.2+4.1.png.

    step: training step of the model, for the file names; None leaves it out.
    layers: layers of `draw_heads`, None for its own choice.
    heads: heads that `draw_chosen` draws in place of `draw_heads`; none for `draw_heads`.
    """
    folder = epath.Path(directory)
    figures = {"overview": draw_overview(maps, assignment)}
    if heads:
        figures[f"heads{_short(heads)}"] = draw_chosen(maps, assignment, special, heads)
    else:
        names = "" if layers is None else "_layers" + "+".join(str(layer) for layer in layers)
        figures[f"heads{names}"] = draw_heads(maps, assignment, special, layers)
    figures["mass"] = draw_mass(maps, assignment, special)
    kind = "" if maps.kind == "encoder" else f"{maps.kind}_"
    suffix = file_suffix(step, maps.without)
    return [save(figure, folder / f"attention_{kind}{name}{suffix}.png") for name, figure in figures.items()]


def file_suffix(step: int | None, without: Heads) -> str:
    """Return the end of a figure's file name, such as `_step100_without3.2`: the step, and the zeroed heads."""
    return ("" if step is None else f"_step{step}") + (f"_without{_short(without)}" if without else "")


def _short(heads: Heads) -> str:
    """Return heads as a part of a file name, such as `3.2+4.1`, or their number and a hash if they are many."""
    names = "+".join(f"{layer}.{head}" for layer, head in heads)
    if len(heads) > MOST_NAMED:
        return f"_{len(heads)}_heads_{hashlib.sha256(names.encode()).hexdigest()[:8]}"
    return names


def pattern_figure(
    tokens: Sequence[str],
    target_by_name: Mapping[str, np.ndarray],
    path: str | os.PathLike,
    text: str = "",
) -> epath.Path:
    """Write the figure of the patterns' target matrices (`draw_patterns`) as a PNG; return the path."""
    return save(draw_patterns(tokens, target_by_name, text), path)


def map_figure(
    columns: Mapping[str, Sequence[tuple[str, AttentionMaps]]],
    layer: int | Sequence[int],
    head: int | Sequence[int],
    path: str | os.PathLike,
    run: str = "",
) -> epath.Path:
    """Write the figure of a comparison's attention maps during training (`draw_maps`) as a PNG; return the path."""
    return save(draw_maps(columns, layer, head, run), path)


def mean_figure(maps_by_arm: Mapping[str, AttentionMaps], path: str | os.PathLike, run: str = "") -> epath.Path:
    """Write the figure of a comparison's last-layer mean attention (`draw_means`) as a PNG; return the path."""
    return save(draw_means(maps_by_arm, run), path)


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
    numbers = sorted({0, layers // 2, layers - 1})
    guided = sum(count for _, count in assignment.counts)
    columns = {"plain": [("", plain)], "attacked": [("", attacked)]}
    return draw_maps(columns, numbers, [guided % heads] * len(numbers), plain.model)


def draw_heads(
    maps: AttentionMaps, assignment: Assignment, special: PatternTokens, layers: Sequence[int] | None = None
) -> Figure:
    """Draw attention maps of one head for each guiding pattern, beside the pattern's target, and of two free heads.

    The free heads are the first two. Each head has a row, and each layer a column; the maps of guided heads are framed.
    The title of a guided head's map has the head's mass on the target; the title of a free head's map has the head's
    `strongest_pattern` and the mass on it, unless the attention is hard-coded. Beside a mass is that of a head that
    attends uniformly.

    layers: layers to draw; None draws the first, the middle and the last.
    """
    count, heads = maps.weights_NHQK.shape[:2]
    layers = sorted({0, count // 2, count - 1}) if layers is None else list(layers)
    owners, names = assignment.of_layer(heads), assignment.names
    free = [head for head, owner in enumerate(owners) if owner is None]
    rows = [owners.index(name) for name in names] + free[:2]
    masses = _Masses.of(maps, special, assignment)

    columns = len(layers) + bool(names)  # the targets come last; a run without guidance has none
    size = _map_size(maps, max(1.5, min(3.4, WIDTH / columns, 2 * WIDTH / len(rows))), 1.5 * WIDTH / columns)
    figure = Figure((columns * size.width + 2.6, len(rows) * (size.height + 0.4) + 2.3), layout="compressed")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    colours = pattern_colours(maps, assignment)
    for row, head in enumerate(rows):
        owner = owners[head]
        for column, layer in enumerate(layers):
            image = canvas.draw_map(axes[row, column], maps.weights_NHQK[layer, head], size)
            _set_title(axes[row, column], size, f"layer {layer}", masses.of_head(layer, head))
            if guide := masses.owners_NH[layer, head]:
                canvas.frame(axes[row, column], colours[guide])
        if owner:
            canvas.draw_map(axes[row, -1], masses.by_name[owner].target_QK, size)
            _set_title(axes[row, -1], size, f"target {label(title(owner))}")
            canvas.frame(axes[row, -1], colours[owner])
        axes[row, 0].set_ylabel(f"head {head}" + ("" if owner else f" ({maps.unguided})"), fontsize=LARGE)
        for column, panel in enumerate(axes[row]):
            lowest = len(rows) - 1 if column < len(layers) else len(names) - 1
            row_tokens = maps.row_tokens if column == 0 else ()
            canvas.token_ticks(panel, size, rows=row_tokens, columns=maps.tokens if row == lowest else ())
    # Free heads have no target: the bar takes the first of these places.
    spare = list(axes[len(names) :, -1]) if names else []
    canvas.fill(figure, image, axes, spare, _blocks(maps, size))
    canvas.caption(figure, *maps.caption)
    return figure


def draw_chosen(maps: AttentionMaps, assignment: Assignment, special: PatternTokens, heads: Heads) -> Figure:
    """Draw the maps of these heads, titled with the mass on the pattern that guides the head, else on its strongest.

    The titles are as in `draw_heads`.
    """
    masses, colours = _Masses.of(maps, special, assignment), pattern_colours(maps, assignment)
    size = _map_size(maps, 3.4 if len(heads) <= 3 else 2.6)
    columns, rows = canvas.grid(len(heads), max(1, int(WIDTH / size.width)))
    figure = Figure((columns * size.width + 2.6, rows * (size.height + 1.3) + 1.5), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, (panel, (layer, head)) in enumerate(zip(axes.flat, heads, strict=False)):
        image = canvas.draw_map(panel, maps.weights_NHQK[layer, head], size)
        owner = masses.owners_NH[layer, head]
        kind = "" if owner else f" ({maps.unguided})"
        _set_title(panel, size, f"layer {layer}, head {head}{kind}", masses.of_head(layer, head))
        if owner:
            canvas.frame(panel, colours[owner])
        _grid_ticks(axes, number, len(heads), size, maps.row_tokens, maps.tokens)
    canvas.fill(figure, image, axes, axes.flat[len(heads) :], _blocks(maps, size))
    canvas.caption(figure, *maps.caption)
    return figure


@dataclasses.dataclass(frozen=True, eq=False)
class _Masses:
    """Attention masses of all heads on the patterns, for the titles of their maps.

    owners_NH: the pattern that guides each head of every layer, None for free heads.
    by_name: patterns with their masses.
    best_NH, mass_NH: the strongest pattern of each head, and the mass on it.
    """

    maps: AttentionMaps
    owners_NH: np.ndarray
    by_name: Mapping[str, Measured]
    best_NH: np.ndarray
    mass_NH: np.ndarray

    @classmethod
    def of(cls, maps: AttentionMaps, special: PatternTokens, assignment: Assignment) -> "_Masses":
        owners_NH = assignment.patterns(*maps.weights_NHQK.shape[:2])
        return cls(maps, owners_NH, measured(maps, special, assignment), *strongest_pattern(maps, special, assignment))

    def of_head(self, layer: int, head: int) -> tuple[str, ...]:
        """Return the parts of a head's title: its attention mass on a pattern (`0.82 on [Next]`) and that by chance.

        The pattern is the one that guides the head, or else the head's strongest one.
        """
        owner = self.owners_NH[layer, head]
        if self.maps.is_fixed and not owner:
            return ()  # hard-coded weights follow no pattern, however much of them happens to lie on one
        name = owner or self.best_NH[layer, head]
        mass, chance = self.by_name[name].mass_NH[layer, head], self.by_name[name].chance_N[layer]
        if np.isnan(mass):
            return (f"– on {label(title(name))}",)
        return f"{mass:.2f} on {label(title(name))}", f"(chance {chance:.2f})"


def _grid_ticks(
    axes: np.ndarray, number: int, maps: int, size: canvas.Size, rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Label one attention map of a grid with tokens: on the left in the first column, below in the last row.

    If the last row is incomplete, all maps have labels below: labels under only some maps of a row would look like a
    mistake.

    axes: all panels, of which the first `maps` show a map.
    number: of the map, row by row.
    """
    width = axes.shape[1]
    is_lowest = number + width >= maps or maps < axes.size
    row_tokens = rows if number % width == 0 else ()
    canvas.token_ticks(axes.flat[number], size, rows=row_tokens, columns=columns if is_lowest else ())


def _set_title(axes: Axes, size: canvas.Size, *lines: str | tuple[str, ...]) -> None:
    """Write a title of several lines above an attention map, broken where a line is wider than the map."""
    broken = [canvas.wrapped(line, 0.97 * size.width, MEDIUM) for line in lines if line]
    axes.set_title("\n".join(broken), fontsize=MEDIUM, parse_math=False)


def _map_size(maps: AttentionMaps, longest: float, most: float = MOST_INCHES) -> canvas.Size:
    """Return the size in which to draw an attention map: `longest` inches, or more if all tokens then have labels.

    It grows up to `MOST_INCHES` and `most`.
    """
    queries, keys = len(maps.row_tokens), len(maps.tokens)
    needed = canvas.room_for_labels(max(queries, keys))
    return canvas.map_size(queries, keys, max(longest, needed) if needed <= min(MOST_INCHES, most) else longest)


def _blocks(maps: AttentionMaps, size: canvas.Size) -> canvas.Blocks:
    return canvas.block_sizes(len(maps.row_tokens), len(maps.tokens), size)


def draw_patterns(tokens: Sequence[str], target_by_name: Mapping[str, np.ndarray], text: str = "") -> Figure:
    """Draw the target matrix of each pattern for a sentence (Deshpande & Narasimhan 2020, figures 2 and 4).

    text: the sentence, for people; empty shows its tokens.
    """
    inches = max(1.9, min(3.4, len(tokens) * 0.105))  # room for every token, if that is possible
    columns, rows = canvas.grid(len(target_by_name), int(WIDTH / inches))
    figure = Figure((columns * inches + 1.8, rows * (inches + 0.9) + 1.0), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    size = canvas.Size(inches, inches)
    for number, (panel, (name, target_QK)) in enumerate(zip(axes.flat, target_by_name.items(), strict=False)):
        image = canvas.draw_map(panel, target_QK, size)
        panel.set_title(label(title(name)), fontsize=LARGE)
        _grid_ticks(axes, number, len(target_by_name), size, tokens, tokens)
    spare = axes.flat[len(target_by_name) :]
    canvas.fill(figure, image, axes, spare, canvas.block_sizes(len(tokens), len(tokens), size))
    canvas.caption(figure, "Targets of the patterns", text or " ".join(tokens), KINDS["encoder"].caption)
    return figure


def draw_maps(
    columns: Mapping[str, Sequence[tuple[str, AttentionMaps]]],
    layer: int | Sequence[int],
    head: int | Sequence[int],
    run: str = "",
) -> Figure:
    """Draw chosen heads' attention maps: arms of a comparison side by side, training steps from top to bottom.

    With equally long sequences of layers and heads, the first of these heads is drawn side by side for all arms, then
    the second, and so on (Deshpande & Narasimhan 2020, figure 1). Raises ValueError if no arm has any of the heads.

    columns: {arm: (label, maps) from the start to the end of training}.
    layer: layer of the head, or of each head.
    head: number of the head in its layer, or of each head.
    run: what the maps are of, such as a run and its step, for the caption.
    """
    heads = list(zip(np.atleast_1d(layer).tolist(), np.atleast_1d(head).tolist(), strict=True))
    rows = max(len(series) for series in columns.values())
    wide = len(heads) * len(columns)
    inches = max(1.6, min(3.4, WIDTH / wide))
    figure = Figure((wide * inches + 1.8, rows * (inches + 0.15) + 2.0), layout="compressed")
    axes = figure.subplots(rows, wide, squeeze=False)
    for panel in axes.ravel():  # panels stay empty where an arm has fewer maps, or lacks a head
        panel.set_axis_off()
    image = None
    for column, (place, arm) in enumerate((place, arm) for place in heads for arm in columns):
        for row, (name, maps) in enumerate(columns[arm]):
            if not all(0 <= index < size for index, size in zip(place, maps.weights_NHQK.shape, strict=False)):
                continue
            panel = axes[row, column]
            panel.set_axis_on()
            size = canvas.map_size(len(maps.row_tokens), len(maps.tokens), inches)
            image = canvas.draw_map(panel, maps.weights_NHQK[place], size)
            if column == 0:
                panel.set_ylabel(label(name, 30), fontsize=MEDIUM, parse_math=False)
            if row == 0:
                _set_title(panel, size, label(arm, 24), f"layer {place[0]}, head {place[1]}")
            row_tokens, is_last = maps.row_tokens if column == 0 else (), row == len(columns[arm]) - 1
            canvas.token_ticks(panel, size, rows=row_tokens, columns=maps.tokens if is_last else ())
    if image is None:
        shapes = sorted({maps.weights_NHQK.shape[:2] for series in columns.values() for _, maps in series})
        sizes = " or ".join(f"{layers} layers of {count} heads" for layers, count in shapes)
        raise ValueError(f"no arm has the heads {heads} (layer, head, counted from 0): the models have {sizes}")
    longest = max((maps for series in columns.values() for _, maps in series), key=lambda maps: len(maps.tokens))
    longest_size = canvas.map_size(len(longest.row_tokens), len(longest.tokens), inches)
    canvas.weight_bar(figure, image, axes, _blocks(longest, longest_size))
    canvas.caption(figure, run, longest.sentence, KINDS[longest.kind].caption)
    return figure


def draw_means(maps_by_arm: Mapping[str, AttentionMaps], run: str = "") -> Figure:
    """Draw the last layer's attention, averaged over its heads, with the arms of a comparison side by side.

    The maps are of the same kind, and of the same text. For encoders, titles have the shares of attention on the
    diagonal and on stripes (`analysis.stripes`), as in figure 3 of He et al. 2021 (DeBERTa).

    run: what the maps are of, such as a comparison and its step, for the caption.
    """
    first = next(iter(maps_by_arm.values()))
    size = _map_size(first, 3.4)
    columns, rows = canvas.grid(len(maps_by_arm), max(3, int(WIDTH / size.width)))
    # Room for labels of the rows and the colour bar, and for labels of the columns, where a row may be incomplete.
    wide, high = columns * size.width + 2.6, rows * (size.height + 0.4) + 2.1 + (rows > 1)
    figure = Figure((wide, high), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, (panel, (arm, maps)) in enumerate(zip(axes.flat, maps_by_arm.items(), strict=False)):
        image = canvas.draw_map(panel, maps.weights_NHQK[-1].mean(0), size)
        _set_title(panel, size, f"{label(arm, 24)}: layer {len(maps.weights_NHQK) - 1}", _shares(maps))
        _grid_ticks(axes, number, len(maps_by_arm), size, maps.row_tokens, maps.tokens)
    canvas.fill(figure, image, axes, axes.flat[len(maps_by_arm) :], _blocks(first, size))
    kind = KINDS[first.kind]
    canvas.caption(figure, run, f"{kind.title}, mean over the heads of the last layer", first.sentence, kind.caption)
    return figure


def _shares(maps: AttentionMaps) -> str:
    """Return a title line on the last layer: attention on diagonal and stripes (heaviest columns); "" for decoders."""
    if maps.kind != "encoder":
        return ""
    shares = stripes.shares_of_maps(maps)
    return f"{shares.diagonal[-1]:.2f} on the diagonal, {shares.stripes[-1]:.2f} on stripes"

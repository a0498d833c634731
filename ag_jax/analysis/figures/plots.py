"""Figures of attention maps of one model or of a comparison's arms, and of the patterns' target matrices.

Every `draw_...` returns a matplotlib `Figure` to show, change or `save`.

Shape letters: N layers, H heads, L length, Q query position, K key position.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ag_jax.analysis.figures import canvas
from ag_jax.analysis.figures.canvas import LARGE, MEDIUM, WIDTH, label, save
from ag_jax.analysis.figures.curves import draw_losses, draw_masses, draw_measures
from ag_jax.analysis.figures.overview import draw_mass, draw_overview, pattern_colours
from ag_jax.analysis.maps import (
    KINDS,
    MOST_NAMED,
    AttentionMaps,
    Heads,
    Measured,
    is_clear,
    measured,
    strongest_pattern,
    title,
)
from ag_jax.attention.assignment import Assignment, is_usable
from ag_jax.attention.patterns import PatternTokens

__all__ = [
    "draw_attack",
    "draw_chosen",
    "draw_heads",
    "draw_losses",
    "draw_maps",
    "draw_mass",
    "draw_masses",
    "draw_means",
    "draw_measures",
    "draw_overview",
    "draw_patterns",
    "draw_training",
    "file_suffix",
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
    text: str = "",
) -> list[epath.Path]:
    """Write figures of a model's attention as PNGs (all maps, single heads, mass on patterns); return their paths.

    The file names also have the kind of attention, if that is not the encoder's, the first words of the text, if it is
    not the model's own, and the heads whose outputs were zeroed, if there are any:
    attention_cross_overview_step100.png, attention_overview_step100_the_lawyers_praised_1f3a_without3.2_4.1.png.

    step: training step of the model, for the file names; None leaves it out.
    layers: layers of `draw_heads`, None for its own choice.
    heads: heads that `draw_chosen` draws in place of `draw_heads`; none for `draw_heads`.
    text: text for the file names; empty for the model's own.
    """
    folder = epath.Path(directory)
    figures = {"overview": draw_overview(maps, assignment)}
    if heads:
        figures[f"heads{_short(heads)}"] = draw_chosen(maps, assignment, special, heads)
    else:
        names = "" if layers is None else "_layers" + "_".join(str(layer) for layer in layers)
        figures[f"heads{names}"] = draw_heads(maps, assignment, special, layers)
    figures["mass"] = draw_mass(maps, assignment, special)
    kind = "" if maps.kind == "encoder" else f"{maps.kind}_"
    suffix = file_suffix(step, maps.without, text)
    return [save(figure, folder / f"attention_{kind}{name}{suffix}.png") for name, figure in figures.items()]


def file_suffix(step: int | None, without: Heads, text: str = "") -> str:
    """Return the end of a figure's file name, such as `_step100_without3.2`: the step, the text and the zeroed heads.

    text: its first words are in the name, with the beginning of a hash; empty leaves it out.
    """
    words = [word[:12] for word in re.findall("[a-z0-9]+", text.lower())[:3]]
    named = "_".join(["", *words, hashlib.sha256(text.encode()).hexdigest()[:4]]) if text else ""
    return ("" if step is None else f"_step{step}") + named + (f"_without{_short(without)}" if without else "")


def _short(heads: Heads) -> str:
    """Return heads as a part of a file name, such as `3.2_4.1`, or their number and a hash if they are many."""
    names = "_".join(f"{layer}.{head}" for layer, head in heads)
    if len(heads) > MOST_NAMED:
        return f"_{len(heads)}_heads_{hashlib.sha256(names.encode()).hexdigest()[:8]}"
    return names


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
    """Draw attention maps of one head for each guiding pattern, beside the pattern's target, and of a free head.

    Each head has a row, and each layer a column; the maps of guided heads are framed. The title of a guided head's map
    has the head's mass on the target, and the title of the target that of a head that attends uniformly. The title of a
    free head's map has its `strongest_pattern` and the mass on it, if this is clearly above chance (`maps.is_clear`).
    Without guidance, the first two heads are drawn. A column of pointers has no target in a text alone.

    layers: layers to draw; None draws the first and the last.
    """
    last = len(maps.weights_NHQK) - 1
    chosen = sorted({0, last}) if layers is None else layers
    columns = [_Column(f"layer {layer}", maps, layer, assignment) for layer in chosen]
    return _draw_rows(columns, special, maps.caption)


def draw_training(
    stages: Sequence[tuple[str, AttentionMaps, Assignment]], special: PatternTokens, layer: int
) -> Figure:
    """Draw attention maps of a layer's heads, in rows as in `draw_heads`, at stages of training, the columns.

    stages: for each its label, its maps, all of the same text, and the guided heads of its model. The heads of the
        first stage are drawn, and the maps of all stages are measured by their patterns.
    """
    columns = [_Column(name, maps, layer, assignment) for name, maps, assignment in stages]
    about = f"{KINDS[stages[0][1].kind].title}: attention in layer {layer} during training"
    return _draw_rows(columns, special, (about, stages[0][1].sentence))


class _Column(NamedTuple):
    """A column of attention maps: its name, the maps, their layer, and the guided heads of their model."""

    name: str
    maps: AttentionMaps
    layer: int
    assignment: Assignment


def _draw_rows(columns: Sequence[_Column], special: PatternTokens, caption: Sequence[str]) -> Figure:
    """Draw a row of attention maps for one head of each guiding pattern and for a free head; see `draw_heads`."""
    _, first, _, assignment = columns[0]
    heads, names = first.weights_NHQK.shape[1], assignment.names
    owners = assignment.of_layer(heads)
    free = [head for head, owner in enumerate(owners) if owner is None]
    rows = [owners.index(name) for name in names] + free[: 1 if names else 2]
    has_target = [owner is not None and is_usable(owner) for owner in map(owners.__getitem__, rows)]
    wide = len(columns) + bool(names)  # the targets come last; a run without guidance has none
    longest = max(1.45, min(3.4, (WIDTH - 1.0) / wide))
    size = canvas.map_size(len(first.row_tokens), len(first.tokens), longest)
    figure = Figure((wide * size.width + 1.0, len(rows) * (size.height + 0.25) + 1.4), layout="compressed")
    axes = figure.subplots(len(rows), wide, squeeze=False)
    colours = pattern_colours(first, *(column.assignment for column in columns))
    masses = [_Masses.of(column.maps, special, assignment) for column in columns]
    for row, head in enumerate(rows):
        owner = owners[head]
        for place, (column, of_column) in enumerate(zip(columns, masses, strict=True)):
            panel = axes[row, place]
            image = canvas.draw_map(panel, column.maps.weights_NHQK[column.layer, head], size)
            heading = label(column.name, 30) if row == 0 else ""
            _set_title(panel, size, heading, *of_column.of_head(column.layer, head)[:1])
            guide = column.assignment.patterns(*column.maps.weights_NHQK.shape[:2])[column.layer, head]
            if guide:
                canvas.frame(panel, colours[guide])
        if owner and has_target[row]:
            of_owner = masses[0].by_name[owner]
            canvas.draw_map(axes[row, -1], of_owner.target_QK, size)
            chance = sorted({f"{of_owner.chance_N[column.layer]:.2f}" for column in columns})
            _set_title(axes[row, -1], size, f"target (chance {' to '.join(chance)})")
            canvas.frame(axes[row, -1], colours[owner])
        kind = first.unguided(assignment)
        axes[row, 0].set_ylabel(f"head {head}" + (f" ({kind})" if kind and not owner else ""), fontsize=MEDIUM)
        for place, panel in enumerate(axes[row]):
            row_names = first.row_labels if place == 0 else ()
            canvas.token_ticks(panel, size, rows=row_names, columns=first.labels if row == len(rows) - 1 else ())
    # The bar takes the first of the places that have no target.
    spare = list(axes[~np.array(has_target), -1]) if names else []
    canvas.fill(figure, image, axes, spare, _blocks(first, size))
    canvas.caption(figure, *caption)
    canvas.map_axes(axes[-1, 0], KINDS[first.kind].row, KINDS[first.kind].column)
    return figure


def draw_chosen(maps: AttentionMaps, assignment: Assignment, special: PatternTokens, heads: Heads) -> Figure:
    """Draw the maps of these heads, titled with the mass on the pattern that guides the head, else on its strongest.

    The titles are as in `draw_heads`, with the mass of a head that attends uniformly.
    """
    masses, colours = _Masses.of(maps, special, assignment), pattern_colours(maps, assignment)
    size = canvas.map_size(
        len(maps.row_tokens), len(maps.tokens), max(1.9, min(3.4, (WIDTH - 1.0) / min(3, len(heads))))
    )
    columns, rows = canvas.grid(len(heads), max(1, int(WIDTH / size.width)))
    figure = Figure((columns * size.width + 1.0, rows * (size.height + 1.0) + 1.6), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, (panel, (layer, head)) in enumerate(zip(axes.flat, heads, strict=False)):
        image = canvas.draw_map(panel, maps.weights_NHQK[layer, head], size)
        owner = masses.owners_NH[layer, head]
        kind = maps.unguided(assignment)
        kind = f" ({kind})" if kind and not owner else ""
        _set_title(panel, size, f"layer {layer}, head {head}{kind}", " ".join(masses.of_head(layer, head)))
        if owner:
            canvas.frame(panel, colours[owner])
        _grid_ticks(axes, number, len(heads), size, maps.row_labels, maps.labels)
    canvas.fill(figure, image, axes, axes.flat[len(heads) :], _blocks(maps, size))
    canvas.caption(figure, *maps.caption)
    canvas.map_axes(axes[(len(heads) - 1) // columns, 0], KINDS[maps.kind].row, KINDS[maps.kind].column)
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

        The pattern is the one that guides the head, or else the head's strongest one, if the mass is clearly above
        chance; otherwise there is none.
        """
        owner = self.owners_NH[layer, head]
        name = owner or self.best_NH[layer, head]
        mass, chance = self.by_name[name].mass_NH[layer, head], self.by_name[name].chance_N[layer]
        if np.isnan(mass):
            return (f"– on {label(title(name))}",)
        # Hard-coded weights follow no pattern, however much of them happens to lie on one.
        if not owner and (self.maps.is_fixed or not is_clear(mass, chance)):
            return ()
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
    row_names = rows if number % width == 0 else ()
    canvas.token_ticks(axes.flat[number], size, rows=row_names, columns=columns if is_lowest else ())


def _set_title(axes: Axes, size: canvas.Size, *lines: str | tuple[str, ...]) -> None:
    """Write a title of several lines above an attention map, broken where a line is wider than the map."""
    broken = [canvas.wrapped(line, 0.97 * size.width, MEDIUM) for line in lines if line]
    axes.set_title("\n".join(broken), fontsize=MEDIUM, parse_math=False)


def _blocks(maps: AttentionMaps, size: canvas.Size) -> canvas.Blocks:
    return canvas.block_sizes(len(maps.row_tokens), len(maps.tokens), size)


def draw_patterns(tokens: Sequence[str], target_by_name: Mapping[str, np.ndarray], text: str = "") -> Figure:
    """Draw the target matrix of each pattern for a sentence (Deshpande & Narasimhan 2020, figures 2 and 4).

    text: the sentence, for people; empty shows its tokens.
    """
    inches = max(1.9, min(2.4, canvas.room_for_labels(len(tokens))))  # room for every token, if that is possible
    columns, rows = canvas.grid(len(target_by_name), int(WIDTH / inches))
    figure = Figure((columns * inches + 1.0, rows * (inches + 0.9) + 1.6), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    size = canvas.Size(inches, inches)
    for number, (panel, (name, target_QK)) in enumerate(zip(axes.flat, target_by_name.items(), strict=False)):
        image = canvas.draw_map(panel, target_QK, size)
        panel.set_title(label(title(name)), fontsize=LARGE)
        _grid_ticks(axes, number, len(target_by_name), size, tokens, tokens)
    spare = axes.flat[len(target_by_name) :]
    canvas.fill(figure, image, axes, spare, canvas.block_sizes(len(tokens), len(tokens), size))
    canvas.caption(figure, "Targets of the patterns", text or " ".join(tokens))
    canvas.map_axes(axes[(len(target_by_name) - 1) // columns, 0], KINDS["encoder"].row, KINDS["encoder"].column)
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
    inches = max(1.6, min(3.4, (WIDTH - 1.0) / wide))
    figure = Figure((wide * inches + 1.0, rows * (inches + 0.15) + 2.2), layout="compressed")
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
            row_names, is_last = maps.row_labels if column == 0 else (), row == len(columns[arm]) - 1
            canvas.token_ticks(panel, size, rows=row_names, columns=maps.labels if is_last else ())
    if image is None:
        shapes = sorted({maps.weights_NHQK.shape[:2] for series in columns.values() for _, maps in series})
        sizes = " or ".join(f"{layers} layers of {count} heads" for layers, count in shapes)
        raise ValueError(f"no arm has the heads {heads} (layer, head, counted from 0): the models have {sizes}")
    longest = max((maps for series in columns.values() for _, maps in series), key=lambda maps: len(maps.tokens))
    longest_size = canvas.map_size(len(longest.row_tokens), len(longest.tokens), inches)
    canvas.weight_bar(figure, image, axes, _blocks(longest, longest_size))
    canvas.caption(figure, run, longest.sentence)
    canvas.map_axes(axes[-1, 0], KINDS[longest.kind].row, KINDS[longest.kind].column)
    return figure


def draw_means(maps_by_arm: Mapping[str, AttentionMaps], run: str = "") -> Figure:
    """Draw the last layer's attention, averaged over its heads, with the arms of a comparison side by side.

    The maps are of the same kind, and of the same text. As figure 3 of He et al. 2021 (DeBERTa).

    run: what the maps are of, such as a comparison and its step, for the caption.
    """
    first = next(iter(maps_by_arm.values()))
    columns, rows = canvas.grid(len(maps_by_arm), 3)
    size = canvas.map_size(len(first.row_tokens), len(first.tokens), min(2.45, (WIDTH - 1.0) / columns))
    # Room for labels of the rows, and for labels of the columns, where a row may be incomplete.
    wide, high = columns * size.width + 1.0, rows * (size.height + 0.4) + 1.9 + (rows > 1)
    figure = Figure((wide, high), layout="compressed")
    axes = figure.subplots(rows, columns, squeeze=False)
    for number, (panel, (arm, maps)) in enumerate(zip(axes.flat, maps_by_arm.items(), strict=False)):
        image = canvas.draw_map(panel, maps.weights_NHQK[-1].mean(0), size)
        _set_title(panel, size, f"{label(arm, 24)}: layer {len(maps.weights_NHQK) - 1}")
        _grid_ticks(axes, number, len(maps_by_arm), size, maps.row_labels, maps.labels)
    canvas.fill(figure, image, axes, axes.flat[len(maps_by_arm) :], _blocks(first, size))
    kind = KINDS[first.kind]
    about = f"{kind.title}: last layer, mean over its heads{', ' if run else ''}{run}"
    canvas.caption(figure, about, first.sentence)
    canvas.map_axes(axes[(len(maps_by_arm) - 1) // columns, 0], kind.row, kind.column)
    return figure

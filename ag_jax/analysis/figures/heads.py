"""Heat maps with a number for every head: its score in a probe, or the change of the loss without the head."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ag_jax.analysis.figures import canvas
from ag_jax.analysis.figures.canvas import MEDIUM, SMALL, WEIGHTS, label
from ag_jax.analysis.maps import title
from ag_jax.attention.assignment import Assignment

CHANGES = "RdBu_r"  # colour map of changes: red above zero, blue below


def draw_scores(
    scores: Mapping[str, Mapping[str, np.ndarray]], assignments: Mapping[str, Assignment], caption: str
) -> Figure:
    """Draw heat maps, layers by heads, of every head's probe score: models as rows, kinds of query as columns.

    scores: for each model and kind, the score of each layer and head in [0, 1], `NH`. All panels have one colour scale,
        from 0 to the largest score, with a bar below, and the largest of each panel is written into its cell.
    assignments: the guided heads of each model, which are framed in the colour of their pattern.
    caption: what the numbers are.
    """
    kinds = list(dict.fromkeys(kind for of_model in scores.values() for kind in of_model))
    names = [name for assignment in assignments.values() for name in assignment.names]
    colours = canvas.colours(names)
    layers, heads = (max(of.shape[axis] for of_model in scores.values() for of in of_model.values()) for axis in (0, 1))
    wide, high = min(2.6, 0.8 + 0.16 * heads), min(2.4, 0.5 + 0.14 * layers)
    figure = Figure((1.0 + len(kinds) * wide, 1.3 + len(scores) * high), layout="constrained")
    panels = figure.subplots(len(scores), len(kinds), squeeze=False)
    limit = max(1e-9, *(float(of.max()) for of_model in scores.values() for of in of_model.values()))
    for column, kind in enumerate(kinds):
        for row, (model, of_model) in enumerate(scores.items()):
            axes = panels[row, column]
            if kind not in of_model:
                axes.set_axis_off()
                continue
            scores_NH = of_model[kind]
            image = axes.imshow(scores_NH, cmap=WEIGHTS, vmin=0, vmax=limit, aspect="auto")
            text = f"{scores_NH.max():.2f}".lstrip("0")
            # White ink on dark cells: the colour of this cell depends on the largest score of all panels.
            _mark(axes, scores_NH, text, "white" if scores_NH.max() > 0.5 * limit else "black")
            _frame(axes, assignments[model], scores_NH, colours)
            if row == 0:
                axes.set_title(label(kind, 24), fontsize=MEDIUM)
            if column == 0:
                axes.set_ylabel(f"{label(model, 18)}\nlayer", fontsize=MEDIUM)
            if row == len(scores) - 1:
                axes.set_xlabel("head", fontsize=MEDIUM)
    shrink = min(1.0, 2.6 / figure.get_figwidth())
    bar = figure.colorbar(
        image, ax=panels, location="bottom", shrink=shrink, aspect=30, ticks=[0, limit], format="%.2g"
    )
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label("share of right answers", fontsize=MEDIUM, labelpad=-6)
    _title(figure, caption, colours)
    return figure


def draw_changes(changes: Mapping[str, np.ndarray], assignments: Mapping[str, Assignment], caption: str) -> Figure:
    """Draw how much the loss changes without each head: for each model, a heat map of layers by heads.

    changes: for each model, the change of each layer and head, `NH`. Each panel has a colour scale of its own, the same
        on both sides of zero; red is a rise. The largest rise is written into its cell.
    assignments: the guided heads of each model, which are framed in the colour of their pattern.
    caption: what the numbers are.
    """
    colours = canvas.colours(name for assignment in assignments.values() for name in assignment.names)
    layers, heads = (max(of.shape[axis] for of in changes.values()) for axis in (0, 1))
    wide, high = min(5.0, 2.0 + 0.3 * heads), min(3.2, 0.8 + 0.22 * layers)
    figure = Figure((1.0 + wide, 0.9 + len(changes) * high), layout="constrained")
    panels = figure.subplots(len(changes), 1, squeeze=False)[:, 0]
    for axes, (model, change_NH) in zip(panels, changes.items(), strict=True):
        limit = max(float(np.abs(change_NH).max()), 1e-9)
        image = axes.imshow(change_NH, cmap=CHANGES, vmin=-limit, vmax=limit, aspect="auto")
        bar = figure.colorbar(image, ax=axes, ticks=[-limit, 0, limit], format="%+.2g")
        bar.ax.tick_params(labelsize=SMALL)
        _mark(axes, change_NH, f"{change_NH.max():+.2g}", "white" if change_NH.max() > 0.6 * limit else "black")
        _frame(axes, assignments[model], change_NH, colours)
        axes.set_ylabel(f"{label(model, 18)}\nlayer", fontsize=MEDIUM)
        axes.set_xlabel("head", fontsize=MEDIUM)
    _title(figure, caption, colours)
    return figure


def _mark(axes: Axes, values_NH: np.ndarray, text: str, ink: str) -> None:
    """Label a heat map's axes with layers and heads, and write a text into the cell with the largest value."""
    canvas.layer_head_ticks(axes, values_NH.shape, 6)
    layer, head = np.unravel_index(int(values_NH.argmax()), values_NH.shape)
    axes.text(int(head), int(layer), text, ha="center", va="center", fontsize=SMALL - 1.5, color=ink)


def _frame(axes: Axes, assignment: Assignment, values_NH: np.ndarray, colours: Mapping[str, str]) -> None:
    """Frame a heat map's guided heads in their patterns' colours, one frame for a run of consecutive layers."""
    layers, heads = values_NH.shape
    for head, owner in enumerate(assignment.of_layer(heads)):
        if owner is None:
            continue
        for run in assignment.runs(layers):
            corner = head - 0.5, run.start - 0.5
            box = Rectangle(corner, 1, len(run), fill=False, edgecolor=colours[owner], linewidth=1.5)
            axes.add_patch(box).set_clip_on(False)  # or the edge of the axes would hide half of the line


def _title(figure: Figure, caption: str, colours: Mapping[str, str]) -> None:
    lines = [", ".join(title(name) for name in colours) + " frame the heads that they guide"] if colours else []
    figure.suptitle("\n".join([caption, *lines]), fontsize=MEDIUM)

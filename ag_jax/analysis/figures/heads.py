"""Figure of a score of every head, such as its accuracy in a probe."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ag_jax.analysis.figures import canvas
from ag_jax.analysis.figures.canvas import MEDIUM, SMALL, WEIGHTS, label
from ag_jax.analysis.maps import Assignment, head_patterns, title


def draw_scores(
    scores: Mapping[str, Mapping[str, np.ndarray]], assignments: Mapping[str, Assignment], caption: str
) -> Figure:
    """Draw heat maps of layers by heads: a row of panels for each model, a column for each kind of query.

    scores: for each model and kind, the score of each layer and head in [0, 1], `NH`. A column has one colour scale,
        from 0 to its largest score, and the largest of each panel is written into its cell.
    assignments: the guided heads of each model, which are framed in the colour of their pattern.
    caption: what the numbers are.
    """
    kinds = list(dict.fromkeys(kind for of_model in scores.values() for kind in of_model))
    names = [name for assignment in assignments.values() for name, _ in assignment]
    colours = canvas.colours(names)
    layers, heads = (max(of.shape[axis] for of_model in scores.values() for of in of_model.values()) for axis in (0, 1))
    wide, high = min(2.6, 0.8 + 0.16 * heads), min(2.4, 0.5 + 0.14 * layers)
    figure = Figure((1.0 + len(kinds) * wide, 0.9 + len(scores) * high), layout="constrained")
    panels = figure.subplots(len(scores), len(kinds), squeeze=False)
    for column, kind in enumerate(kinds):
        largest = max(float(of_model[kind].max()) for of_model in scores.values() if kind in of_model)
        for row, (model, of_model) in enumerate(scores.items()):
            axes = panels[row, column]
            if kind not in of_model:
                axes.set_axis_off()
                continue
            scores_NH = of_model[kind]
            axes.imshow(scores_NH, cmap=WEIGHTS, vmin=0, vmax=max(largest, 1e-9), aspect="auto")
            _label_axes(axes, *scores_NH.shape)
            layer, head = np.unravel_index(int(scores_NH.argmax()), scores_NH.shape)
            text = f"{scores_NH[layer, head]:.2f}".lstrip("0")
            ink = "white" if scores_NH[layer, head] > 0.5 * largest else "black"
            axes.text(head, layer, text, ha="center", va="center", fontsize=SMALL - 1.5, color=ink)
            for at, owner in enumerate(head_patterns(assignments[model], scores_NH.shape[1])):
                if owner is not None:
                    box = Rectangle((at - 0.5, -0.5), 1, len(scores_NH), fill=False, edgecolor=colours[owner])
                    axes.add_patch(box)
            if row == 0:
                axes.set_title(label(kind, 24), fontsize=MEDIUM)
            if column == 0:
                axes.set_ylabel(f"{label(model, 18)}\nlayer", fontsize=MEDIUM)
            if row == len(scores) - 1:
                axes.set_xlabel("head", fontsize=MEDIUM)
    lines = [", ".join(title(name) for name in colours) + " frame the heads that they guide"] if colours else []
    figure.suptitle("\n".join([caption, *lines]), fontsize=MEDIUM)
    return figure


def _label_axes(axes, layers: int, heads: int) -> None:
    def places(count: int) -> Sequence[int]:
        return range(0, count, math.ceil(count / 6))

    axes.set_xticks(places(heads), [str(at + 1) for at in places(heads)], fontsize=SMALL)
    axes.set_yticks(places(layers), [str(at + 1) for at in places(layers)], fontsize=SMALL)
    axes.tick_params(length=0)

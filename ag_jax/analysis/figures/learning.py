"""The figure of learning curves: scores on development data, or training losses, over the epochs of fine-tuning."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ag_jax.analysis.figures import canvas

Curve = Sequence[tuple[int, float]]  # (epoch, value) of one training
COLUMNS = 3


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel of the figure.

    title: what its curves are of.
    curves: for each arm the curves of its trainings.
    baseline: a value that is drawn as a dashed line; None draws none.
    """

    title: str
    curves: Mapping[str, Sequence[Curve]]
    baseline: float | None = None


def draw(panels: Sequence[Panel], baseline: str = "") -> Figure:
    """Draw learning curves: a thick line is the mean over the trainings of an arm, thin lines are the trainings.

    The mean is over the epochs that all trainings reached. The legend names the arms, if there are several.

    baseline: what the dashed lines are, for the legend.
    """
    columns, rows = canvas.grid(len(panels), COLUMNS)
    figure = Figure((max(4.0, 2.8 * columns), 2.1 * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    arms = list(dict.fromkeys(arm for panel in panels for arm in panel.curves))
    colour_of = canvas.colours(arms)
    for place, panel in zip(axes, panels, strict=False):
        for arm, curves in panel.curves.items():
            _draw_arm(place, curves, colour_of[arm], canvas.label(arm, 40))
        if panel.baseline is not None:
            place.axhline(panel.baseline, color="0.35", linestyle="--", linewidth=1.2, label=baseline)
        place.set_title(canvas.label(panel.title, 40), fontsize=canvas.LARGE, loc="left", parse_math=False)
        place.set_xlabel("epoch", fontsize=canvas.MEDIUM)
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
        canvas.tidy(place)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    # The first panel may lack an arm or the line.
    named = {name: handle for place in axes for handle, name in zip(*place.get_legend_handles_labels(), strict=True)}
    if len(named) > 1:
        legend = figure.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=4, fontsize=canvas.MEDIUM, frameon=False
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _draw_arm(axes: Axes, curves: Sequence[Curve], colour: str, name: str) -> None:
    for curve in curves if len(curves) > 1 else ():
        axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.4)
    shared = sorted(set.intersection(*({epoch for epoch, _ in curve} for curve in curves)))
    means = [np.mean([dict(curve)[epoch] for curve in curves]) for epoch in shared]
    axes.plot(shared, means, color=colour, linewidth=1.8, marker="o", markersize=3, label=name)

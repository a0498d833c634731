"""A figure of models' accuracies over training steps."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ag_jax.analysis.figures import canvas

Point = tuple[int, float, float]  # step, accuracy, and half of its 95 % interval


def draw(series: Mapping[str, Sequence[Sequence[Point]]], label: str, caption: str) -> Figure:
    """Draw each model's accuracy over its training steps, with a line at 50 %, the accuracy of guessing one of two.

    series: for each arm and each of its models the points, ascending by step.
    label: what the accuracy is of, for the axis.
    caption: text below the figure.
    """
    figure = Figure(figsize=(canvas.WIDTH, 3.2), layout="constrained")
    axes = figure.add_subplot()
    colours = canvas.colours(series)
    for arm, models in series.items():
        for number, points in enumerate(models):
            steps, means, halves = ([point[part] for point in points] for part in range(3))
            name = canvas.label(arm) if number == 0 else None
            percent, bars = [100 * mean for mean in means], [100 * half for half in halves]
            axes.errorbar(steps, percent, bars, color=colours[arm], label=name, marker="o", markersize=3, capsize=2)
    axes.axhline(50, color="0.6", linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.legend(frameon=False)
    canvas.tidy(axes)
    canvas.caption(figure, caption)
    return figure

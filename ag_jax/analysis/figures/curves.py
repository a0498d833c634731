"""Curves of losses and attention mass during training, from the rows of `metrics.jsonl`.

Shape letters: N layers, S logged steps.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from ag_jax.analysis.figures.canvas import (
    LARGE,
    MEDIUM,
    SMALL,
    WEIGHTS,
    caption,
    colours,
    label,
    tidy,
)
from ag_jax.analysis.maps import MEANINGS, title
from ag_jax.objectives.base import PrimaryMetric
from ag_jax.objectives.masked_lm import MLM

MetricRows = Sequence[Mapping[str, Any]]  # rows of metrics of one run
PLATEAU = "0.35"  # colour of the plateau
AXES = {"step": "step", "tokens_seen": "training tokens seen"}
# Measures of the plateau (`objectives.plateau`): a panel, with its metrics and what they are of.
MEASURES = {
    "mean cosine of hidden states in a text": {"collapse/masked": "masked positions", "collapse/all": "all tokens"},
    "share of the most frequent word": {"repetition/predicted": "predictions", "repetition/labels": "labels"},
}


@dataclasses.dataclass(frozen=True)
class Plateau:
    """Plateau of the training loss, and the step at which each seed's run of each compared config (arm) leaves it.

    loss: the loss of the best guess without context.
    leaving_steps: for each arm, the step at which each of its seeds left the plateau, None for a seed that never did.
    """

    loss: float
    leaving_steps: Mapping[str, Sequence[int | None]]


def same_tokens(series: Mapping[str, Sequence[MetricRows]]) -> bool:
    """Return whether, seed by seed, all arms of a comparison had read equally many tokens at each logged step.

    Their losses over steps and over tokens are then the same curves.
    """
    for of_seed in itertools.zip_longest(*series.values(), fillvalue=()):
        tokens: dict[int, int] = {}
        for row in itertools.chain.from_iterable(of_seed):
            if tokens.setdefault(row["step"], row["tokens_seen"]) != row["tokens_seen"]:
                return False
    return True


def draw_losses(
    series: Mapping[str, Sequence[MetricRows]],
    x: str = "step",
    headline: PrimaryMetric = MLM,
    plateau: Plateau | None = None,
    run: str = "",
) -> Figure:
    """Draw training losses of a comparison's arms over steps or tokens and, in a panel below, guidance losses.

    A thick line is the mean over an arm's seeds, thin lines are the seeds, and dots are the mean validation loss
    (Deshpande & Narasimhan 2020, figures 3, 5 and 6). The line of the first arm is the widest, so that it can be seen
    below others that coincide with it. A dashed line is the plateau, and a triangle points at the loss with which a
    seed left it.

    series: {arm: rows of metrics of each of its seeds}.
    x: a key of `AXES`.
    headline: the primary metric.
    plateau: the plateau and where arms left it; None draws neither.
    run: name of the comparison, for the caption.
    """
    loss = headline.metric
    has_guidance = any(_points(rows, "train", x, "ag_loss") for seeds in series.values() for rows in seeds)
    figure = Figure((8.0, 4.4 if has_guidance else 3.4), layout="constrained")
    panels = figure.subplots(1 + has_guidance, 1, sharex=True, squeeze=False, height_ratios=(2, 1)[: 1 + has_guidance])[
        :, 0
    ]
    colour_of = colours(series)
    width_of = dict.fromkeys(series, 1.5) | {next(iter(series)): 3.2 if len(series) > 1 else 1.8}
    for arm, seeds in series.items():
        # Without guidance there is one panel, and `zip` leaves out its loss.
        for panel, key in zip(panels, (loss, "ag_loss"), strict=False):
            _draw_seeds(panel, [_points(rows, "train", x, key) for rows in seeds], colour_of[arm], width_of[arm])
        for place, value in _mean([_points(rows, "validation", x, loss) for rows in seeds]):
            panels[0].plot(
                place, value, "o", markersize=4, color=colour_of[arm], markeredgecolor="white", markeredgewidth=0.6
            )
    if plateau is not None:
        _draw_plateau(panels[0], series, x, loss, plateau, colour_of)
    for panel, name in zip(panels, (f"{headline.label} ({headline.unit})", "guidance loss"), strict=False):
        panel.set_ylabel(name, fontsize=MEDIUM)
        tidy(panel)
    # The guidance loss can fall to 0: all guided heads then equal their targets.
    panels[-1].set_ylim(bottom=0) if has_guidance else None
    panels[-1].set_xlabel(AXES[x], fontsize=MEDIUM)
    panels[-1].xaxis.set_major_formatter(
        EngFormatter(sep="") if x == "tokens_seen" else lambda value, _: f"{value:,.0f}"
    )
    validated = any(_points(rows, "validation", x, loss) for seeds in series.values() for rows in seeds)
    _legend(panels[0], series, colour_of, width_of, validated, plateau)
    caption(figure, run)
    return figure


def _points(rows: MetricRows, split: str, x: str, key: str) -> dict[int, tuple[float, float]]:
    """Return {step: (value of `x`, value of `key`)} for the logged metrics of a split, where `key` was logged."""
    logged = (row for row in rows if row["split"] == split and row.get(key) is not None)
    return {row["step"]: (row[x], row[key]) for row in logged}


def _mean(seeds: Sequence[dict[int, tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the mean over seeds of the points (x, metric), at each step that all seeds logged."""
    steps = sorted(set.intersection(*(set(points) for points in seeds))) if seeds else []
    return [tuple(np.mean([points[step] for points in seeds], axis=0).tolist()) for step in steps]


def _draw_seeds(
    axes: Axes, seeds: Sequence[dict[int, tuple[float, float]]], colour: str, width: float, style: str = "-"
) -> None:
    for points in seeds if len(seeds) > 1 else ():
        axes.plot(*_lines(sorted(points.values())), style, color=colour, linewidth=0.7, markersize=3, alpha=0.4)
    axes.plot(*_lines(_mean(seeds)), style, color=colour, linewidth=width, markersize=6)


def _lines(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [place for place, _ in points], [value for _, value in points]


def _draw_plateau(
    axes: Axes,
    series: Mapping[str, Sequence[MetricRows]],
    x: str,
    loss: str,
    plateau: Plateau,
    colour_of: Mapping[str, str],
) -> None:
    """Draw the loss plateau as a line, and a triangle on each curve at the step where its seed left the plateau."""
    axes.axhline(plateau.loss, color=PLATEAU, linestyle="--", linewidth=1.2, zorder=1.5)
    for arm, seeds in series.items():
        for rows, step in zip(seeds, plateau.leaving_steps.get(arm, ()), strict=False):
            points = _points(rows, "train", x, loss)
            if step in points:
                axes.plot(*points[step], "v", markersize=7, color=colour_of[arm], markeredgecolor="black", zorder=3)


def _legend(
    axes: Axes,
    series: Mapping[str, Sequence[MetricRows]],
    colour_of: Mapping[str, str],
    width_of: Mapping[str, float],
    validated: bool,
    plateau: Plateau | None,
) -> None:
    handles = [Line2D([], [], color=colour_of[arm], linewidth=width_of[arm]) for arm in series]
    names = [
        label(arm, 40) + (f" (mean of {len(seeds)} seeds)" if len(seeds) > 1 else "") for arm, seeds in series.items()
    ]
    if validated:
        handles.append(Line2D([], [], marker="o", linestyle="", markersize=4, color="0.4"))
        names.append("validation")
    if plateau is not None:
        handles.append(Line2D([], [], color=PLATEAU, linestyle="--", linewidth=1.2))
        names.append(f"plateau: guessing by frequency ({plateau.loss:.3f})")
        for arm in series:
            steps = [step for step in plateau.leaving_steps.get(arm, ()) if step is not None]
            if steps:
                handles.append(
                    Line2D(
                        [], [], marker="v", linestyle="", markersize=7, color=colour_of[arm], markeredgecolor="black"
                    )
                )
                names.append(f"{label(arm, 40)} leaves the plateau at step {', '.join(f'{step:,}' for step in steps)}")
    for text in axes.legend(handles, names, fontsize=MEDIUM, frameon=False).get_texts():
        text.set_parse_math(False)


def measures_of(series: Mapping[str, Sequence[MetricRows]]) -> dict[str, dict[str, str]]:
    """Return the part of `MEASURES` that evaluations of these runs have; translation has none."""
    evaluations = [row for seeds in series.values() for rows in seeds for row in rows if row["split"] == "validation"]
    seen = {key for row in evaluations for key, value in row.items() if value is not None}
    panels = {panel: {key: of for key, of in metrics.items() if key in seen} for panel, metrics in MEASURES.items()}
    return {panel: metrics for panel, metrics in panels.items() if metrics}


def draw_measures(
    series: Mapping[str, Sequence[MetricRows]],
    leaving_steps: Mapping[str, Sequence[int | None]] = MappingProxyType({}),
    run: str = "",
) -> Figure:
    """Draw collapse and repetition (`objectives.plateau`) at each evaluation of a comparison's arms, over steps.

    A thick line is the mean over an arm's seeds, thin lines are the seeds. Lines of all tokens and of labels are
    dashed. A vertical line is at each step where a seed left the plateau of the loss. `measures_of` must not be empty.

    series: {arm: rows of metrics of each of its seeds}.
    leaving_steps: for each arm, the step at which each of its seeds left the plateau, None for a seed that never did.
    run: name of the comparison, for the caption.
    """
    panels, colour_of = measures_of(series), colours(series)
    figure = Figure((4.0 * len(panels), 3.0), layout="constrained")
    for axes, (name, metrics) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for arm, seeds in series.items():
            for metric, style in zip(metrics, (".-", ".--"), strict=False):
                points = [_points(rows, "validation", "step", metric) for rows in seeds]
                _draw_seeds(axes, points, colour_of[arm], 1.5, style)
            for step in leaving_steps.get(arm, ()):
                if step is not None:
                    axes.axvline(step, color=colour_of[arm], linestyle=":", linewidth=1.2)
        styles = [Line2D([], [], color=PLATEAU, linestyle=style) for style in ("-", "--")]
        axes.legend(styles[: len(metrics)], metrics.values(), fontsize=MEDIUM, edgecolor="none", framealpha=0.9)
        axes.set_title(name, fontsize=LARGE)
        axes.set_xlabel(AXES["step"], fontsize=MEDIUM)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.04)
        tidy(axes)
    handles: list[Line2D] = [Line2D([], [], color=colour_of[arm], linewidth=1.5) for arm in series]
    names = [label(arm, 40) for arm in series]
    if any(step is not None for steps in leaving_steps.values() for step in steps):
        handles.append(Line2D([], [], color=PLATEAU, linestyle=":", linewidth=1.2))
        names.append("leaves the plateau of the loss")
    below = figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=MEDIUM, frameon=False)
    for text in below.get_texts():
        text.set_parse_math(False)
    caption(figure, run)
    return figure


def draw_masses(rows_by_arm: Mapping[str, MetricRows], run: str = "") -> Figure:
    """Draw guided heads' attention mass on their pattern by layer and step, in a panel for each arm and pattern.

    A cell covers the steps over which its row of metrics is averaged; the first one begins at step 0. The axis of steps
    is logarithmic, because guidance works early. Arms without guidance are left out; at least one must have it.

    run: name of the comparison, for the caption.
    """
    panels = {
        (arm, name): _mass_over_steps(rows, name)
        for arm, rows in rows_by_arm.items()
        for name in _guided_patterns(rows)
    }
    arms = list(dict.fromkeys(arm for arm, _ in panels))
    order = {name: place for place, name in enumerate(MEANINGS)}
    names = sorted(dict.fromkeys(name for _, name in panels), key=lambda name: order.get(name, len(order)))
    layers = max(mass_NS.shape[0] for _, mass_NS in panels.values())
    height = max(1.6, min(3.2, 0.15 * layers + 0.5))
    wide = max(2.0, min(4.2, 7.0 / len(names)))
    figure = Figure((len(names) * wide + 1.2, len(arms) * (height + 0.4) + 0.5), layout="constrained")
    axes = figure.subplots(len(arms), len(names), squeeze=False, sharex=True)
    for row, arm in enumerate(arms):
        for column, name in enumerate(names):
            panel = axes[row, column]
            if (arm, name) not in panels:
                panel.set_axis_off()
                continue
            edges_S, mass_NS = panels[arm, name]
            image = _draw_mass(panel, edges_S, mass_NS)
            of_arm = "" if len(arms) == 1 else f"{label(arm, 24)}: "
            panel.set_title(f"{of_arm}{label(title(name))}", fontsize=LARGE, parse_math=False)
            panel.set_ylabel("layer" if column == 0 else "", fontsize=MEDIUM)
            panel.set_xlabel("step (logarithmic)" if row == len(arms) - 1 else "", fontsize=MEDIUM)
    # All panels share the colour scale from 0 to 1, so the last image is enough for the bar.
    bar = figure.colorbar(image, ax=axes, shrink=0.9, aspect=25, pad=0.015)
    bar.set_label("share of attention on the target,\nlinear scale", fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    of_arm = f" of {arms[0]}" if len(arms) == 1 else ""
    about = f"Attention of the guided heads{of_arm} on the targets of their patterns"
    caption(figure, f"{run}: {about[0].lower()}{about[1:]}" if run else about)
    return figure


def _guided_patterns(rows: MetricRows) -> list[str]:
    keys = (key for row in rows if row["split"] == "train" for key in row)
    return list(dict.fromkeys(key.removeprefix("mass/") for key in keys if key.startswith("mass/")))


def _mass_over_steps(rows: MetricRows, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (column edges, cells `NS` by layer and step) of a heat map of the attention mass on a pattern.

    Each of S logged rows of metrics has a column; its edges are two of S + 1 training steps. The mass is NaN where the
    pattern had no target.
    """
    logged = [row for row in rows if row["split"] == "train" and row.get(f"mass/{name}") is not None]
    steps_S = np.array([row["step"] for row in logged], float)
    mass_NS = np.array([row[f"mass/{name}"] for row in logged], float).T
    # The first cell begins at step 0, which a logarithmic axis cannot show, so it is drawn from half its last step.
    return np.concatenate([steps_S[:1] / 2, steps_S]), mass_NS


def _draw_mass(axes: Axes, edges_S: np.ndarray, mass_NS: np.ndarray) -> Any:
    layers = mass_NS.shape[0]
    image = axes.pcolormesh(
        edges_S, np.arange(layers + 1) - 0.5, np.ma.masked_invalid(mass_NS), cmap=WEIGHTS, vmin=0, vmax=1
    )
    axes.set_facecolor("0.85")
    axes.set_xscale("log")
    axes.set_ylim(layers - 0.5, -0.5)
    places = range(0, layers, 1 if layers <= 8 else 3)
    axes.set_yticks(places, [str(place) for place in places])
    axes.tick_params(labelsize=SMALL, which="both")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=12))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    return image

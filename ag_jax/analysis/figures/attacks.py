"""Figures of attacks: share of masked query-key pairs, task scores by the attack's temperature, and step times."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ag_jax.analysis.attacks import MaskedShare, Temperatures
from ag_jax.analysis.figures.canvas import LARGE, MEDIUM, caption, colours, label, tidy


def draw_masked(groups: Mapping[str, Mapping[str, MaskedShare]], run: str = "") -> Figure:
    """Draw the share of masked query-key pairs over training, and by layer at its end (Wu et al. 2022, figure 5).

    Each group has a row of two panels with a line for each name, in the same colour in all groups. The first panel is
    over steps if all lines of the group have equally many, otherwise over per cent of training.

    groups: {group: {name of the line: share of masked units}}.
    run: name of the comparison, for the caption.
    """
    figure = Figure((9.6, 2.6 * len(groups) + 0.6), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False, width_ratios=(3, 2))
    colour_of = colours(name for shares in groups.values() for name in shares)
    for (left, right), (group, shares) in zip(axes, groups.items(), strict=True):
        over_steps = len({share.steps_S[-1] for share in shares.values()}) == 1
        for name, share in shares.items():
            x_S = share.steps_S if over_steps else share.steps_S / share.steps_S[-1]
            share_N = share.at_end[1]
            style = {"color": colour_of[name], "markersize": 3.5, "label": label(name, 24)}
            # A line through a single logged row would be invisible.
            left.plot(x_S, share.share_S, "-" if len(x_S) > 1 else "o", linewidth=1.6, **style)
            right.plot(share_N, "o-", linewidth=1.2, **style)
        left.set_xlabel("step" if over_steps else "part of training", fontsize=MEDIUM)
        left.set_xlim(left=0)
        left.xaxis.set_major_locator(MaxNLocator("auto", integer=over_steps))
        left.xaxis.set_major_formatter(
            (lambda value, _: f"{value:,.0f}") if over_steps else PercentFormatter(1.0, decimals=0)
        )
        left.set_title(label(group, 40), fontsize=LARGE, loc="left", parse_math=False)
        left.set_ylabel("masked share", fontsize=MEDIUM)
        # Lines may be averaged over different parts of training; the label names the longest.
        measured = max(1 - (share.late_steps[0] - 1) / share.late_steps[1] for share in shares.values())
        right.set_xlabel(f"layer (last {measured:.0%} of training)", fontsize=MEDIUM)
        most = max(share.share_SN.shape[1] for share in shares.values())
        right.set_xticks(range(0, most, 1 if most <= 12 else 3))
        highest = max(max(share.share_S.max(), share.at_end[1].max()) for share in shares.values())
        # One scale for both panels. The lower bound keeps the axis from collapsing where nothing was masked.
        for panel in (left, right):
            tidy(panel)
            panel.set_ylim(0, min(1.02, max(1.08 * highest, 0.01)))
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if highest > 0.05 else 1))
        _legend(right)
    caption(figure, run)
    return figure


def draw_temperatures(by_task: Mapping[str, Temperatures], run: str = "") -> Figure:
    """Draw task scores against the attack's temperature tau, with a panel for each task (Wu et al. 2022, figure 4 b).

    A dashed line is the score without an attack.

    run: name of the comparison, for the caption.
    """
    figure = Figure((max(4.4, 3.4 * len(by_task)), 3.2), layout="constrained")
    colour_of = colours(by_task)
    for panel, (task, scores) in zip(figure.subplots(1, len(by_task), squeeze=False)[0], by_task.items(), strict=True):
        means = 100 * np.array(scores.means)
        deviations = [deviation for deviation in scores.deviations if deviation is not None]
        spread = 100 * np.array(deviations) if deviations else None  # one seed has none
        panel.errorbar(
            scores.taus, means, yerr=spread, fmt="o-", color=colour_of[task], markersize=4, capsize=3, label="attacked"
        )
        if scores.plain is not None:
            panel.axhline(100 * scores.plain, color="0.4", linestyle="--", linewidth=1.2, label="without an attack")
            _legend(panel)
        panel.set_title(label(task, 24), fontsize=LARGE, parse_math=False)
        panel.set_xticks(scores.taus, [f"{tau:g}" for tau in scores.taus])
        panel.set_xlabel("tau (lower attacks more)", fontsize=MEDIUM)
        panel.set_ylabel(f"{scores.metric.replace('_', ' ')} × 100", fontsize=MEDIUM)
        tidy(panel)
    caption(figure, run)
    return figure


def draw_step_times(ratios: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw step times relative to the first training method's, by sequence length (Wu et al. 2022, figure 4 a).

    ratios: {method, such as training without an attack: {sequence length in tokens: time of a step / time of a step of
        the first method}}.
    """
    figure = Figure((5.2, 3.4), layout="constrained")
    panel = figure.subplots()
    colour_of = colours(ratios)
    for method, ratio_by_length in ratios.items():
        lengths = sorted(ratio_by_length)
        times = [ratio_by_length[length] for length in lengths]
        panel.plot(lengths, times, "o-", color=colour_of[method], markersize=4, linewidth=1.6, label=label(method, 24))
    lengths = sorted({length for ratio_by_length in ratios.values() for length in ratio_by_length})
    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, [f"{length}" for length in lengths])
    panel.set_xlabel("tokens of a row", fontsize=MEDIUM)
    panel.set_ylabel("step time over the first method's", fontsize=MEDIUM)
    panel.set_ylim(bottom=0)  # heights are ratios, which a cut axis would distort
    tidy(panel)
    _legend(panel)
    return figure


def _legend(axes: Axes) -> None:
    for text in axes.legend(fontsize=MEDIUM, frameon=False, loc="best").get_texts():
        text.set_parse_math(False)

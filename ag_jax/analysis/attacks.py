"""What attacks did, and what they cost: the share of attention that was masked, scores against the temperature, times of steps.

A *unit* is a pair of a token and one that it may attend to; masks are those of `objectives.adversarial`.

Shape letters: N layers, S logged steps.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ag_jax.analysis.canvas import LARGE, MEDIUM, colours, label, save, tidy

Rows = Sequence[Mapping[str, Any]]  # of one run or trial
END = 0.2  # the last part of training, over which tables and layers are averaged


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedShare:
    """The share of the units that was masked in a run, overall and by layer, for each logged row.

    begin_S, steps_S: a row is the mean over the steps from begin_S + 1 to steps_S.
    """

    begin_S: np.ndarray
    steps_S: np.ndarray
    share_S: np.ndarray
    share_SN: np.ndarray

    @property
    def late_S(self) -> np.ndarray:
        """Whether each row lies in the last fifth of training; if none does, only the last row is marked."""
        late_S = self.begin_S >= (1 - END) * self.steps_S[-1]
        return late_S if late_S.any() else self.steps_S == self.steps_S[-1]

    @property
    def late_steps(self) -> tuple[int, int]:
        """The first and the last step that `at_end` is of."""
        return int(self.begin_S[self.late_S][0]) + 1, int(self.steps_S[-1])

    @property
    def at_end(self) -> tuple[float, np.ndarray]:
        """Overall and by layer `N`, averaged over the steps of the rows `late_S`."""
        weights_S = np.where(self.late_S, self.steps_S - self.begin_S, 0)
        return float(np.average(self.share_S, weights=weights_S)), np.average(self.share_SN, axis=0, weights=weights_S)

    def numbers(self) -> dict[str, Any]:
        """`at_end`, as report.json holds it."""
        share, share_N = self.at_end
        return {"all": share, "layers": share_N.tolist(), "steps": list(self.late_steps)}


def masked_share(seeds: Sequence[Rows]) -> MaskedShare | None:
    """The mean over runs that differ in their seed, at the steps that all of them have; None if nothing was masked."""
    trained = [[row for row in rows if row["split"] == "train"] for rows in seeds]
    # The last step of the row before each row; seeds may log different rows, and then the longest one counts.
    begins: dict[int, int] = {}
    for rows in trained:
        for before, row in zip([0, *(row["step"] for row in rows)], rows, strict=False):
            begins[row["step"]] = min(before, begins.get(row["step"], before))
    of_seeds = [{row["step"]: row for row in rows if row.get("masked") is not None} for rows in trained]
    steps = sorted(set.intersection(*(set(of_seed) for of_seed in of_seeds))) if of_seeds else []
    if not steps:
        return None
    share_S, share_SN = (
        np.mean([[of_seed[step][name] for step in steps] for of_seed in of_seeds], axis=0, dtype=np.float64)
        for name in ("masked", "masked/layers")
    )
    return MaskedShare(np.array([begins[step] for step in steps]), np.array(steps), share_S, share_SN)


def masked_table(header: Sequence[str], shares: Mapping[tuple[str, ...], MaskedShare]) -> list[str]:
    """Lines of a section on what was masked; `shares` by what stands in the first columns, which `header` names."""
    layers = max(share.share_SN.shape[1] for share in shares.values())
    columns = [*header, "Steps", "All layers", *(f"Layer {number}" for number in range(1, layers + 1))]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for key, share in shares.items():
        overall, share_N = share.at_end
        first, last = share.late_steps
        cells = [f"{first:,} to {last:,}", *(f"{100 * value:.1f}" for value in (overall, *share_N))]
        lines.append("| " + " | ".join([*key, *cells, *["–"] * (layers - len(share_N))]) + " |")
    explained = (
        "Per cent of the units of attention (a token, and one that it may attend to) that the attack masked at the end of training, "
        "as a mean over the seeds. The steps are those of the logged rows that lie in the last fifth of training, or of the last row "
        "if none does. Where an adversary masks more, the model is more vulnerable."
    )
    return ["## What was masked", "", explained, "", *lines, ""]


def masked_figure(groups: Mapping[str, Mapping[str, MaskedShare]], path: str | os.PathLike) -> epath.Path:
    """Write `draw_masked` as a PNG; returns its path."""
    return save(draw_masked(groups), path)


def draw_masked(groups: Mapping[str, Mapping[str, MaskedShare]]) -> Figure:
    """The masked share over training, and by layer at its end (Wu et al. 2022, figure 5): a row of panels for each group.

    In a group is a line for each name, of the same colour in all. Training is in steps where all lines of a group have as many,
    in per cent of it where they do not.
    """
    if not any(groups.values()):
        raise ValueError("there is no masked share to draw: give at least one run with an attack on attention")
    figure = Figure((9.6, 2.6 * len(groups) + 0.6), layout="constrained")
    axes = figure.subplots(len(groups), 2, squeeze=False, width_ratios=(3, 2))
    chosen = colours(name for shares in groups.values() for name in shares)
    for (left, right), (group, shares) in zip(axes, groups.items(), strict=True):
        same = len({share.steps_S[-1] for share in shares.values()}) == 1
        for name, share in shares.items():
            x_S = share.steps_S if same else share.steps_S / share.steps_S[-1]
            share_N = share.at_end[1]
            shown = label(name, 24)
            style = {"color": chosen[name], "markersize": 3.5, "label": shown}
            left.plot(x_S, share.share_S, "-" if len(x_S) > 1 else "o", linewidth=1.6, **style)
            right.plot(np.arange(1, len(share_N) + 1), share_N, "o-", linewidth=1.2, **style)
        left.set_xlabel("step" if same else "part of training", fontsize=MEDIUM)
        left.set_xlim(left=0)
        left.xaxis.set_major_locator(MaxNLocator("auto", integer=same))
        left.xaxis.set_major_formatter(
            (lambda value, _: f"{value:,.0f}") if same else PercentFormatter(1.0, decimals=0)
        )
        left.set_title(label(group, 40), fontsize=LARGE, loc="left", parse_math=False)
        left.set_ylabel("masked share", fontsize=MEDIUM)
        measured = max(1 - (share.late_steps[0] - 1) / share.late_steps[1] for share in shares.values())
        right.set_xlabel(f"layer (last {measured:.0%} of training)", fontsize=MEDIUM)
        most = max(share.share_SN.shape[1] for share in shares.values())
        right.set_xticks(range(1, most + 1, 1 if most <= 12 else 3))
        highest = max(max(share.share_S.max(), share.at_end[1].max()) for share in shares.values())
        for panel in (left, right):
            tidy(panel)
            panel.set_ylim(0, min(1.02, max(1.08 * highest, 0.01)))
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if highest > 0.05 else 1))
        _legend(right)
    return figure


@dataclasses.dataclass(frozen=True)
class Temperatures:
    """Scores of a task at several temperatures, ascending: mean and standard deviation over seeds, as fractions.

    plain: the score without an attack, None if there is none; several: whether there are seeds to deviate from one another.
    """

    metric: str
    taus: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    plain: float | None = None
    several: bool = True


def temperature_table(by_task: Mapping[str, Temperatures]) -> list[str]:
    """Lines of a section on scores against tau."""
    taus = sorted({tau for of_task in by_task.values() for tau in of_task.taus})
    columns = ["Task", "Metric", *(f"tau = {tau:g}" for tau in taus), "Without an attack"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for task, of_task in by_task.items():
        cells = {
            tau: f"{100 * mean:.1f}" + (f" ± {100 * deviation:.1f}" if of_task.several else "")
            for tau, mean, deviation in zip(of_task.taus, of_task.means, of_task.deviations, strict=True)
        }
        plain = "–" if of_task.plain is None else f"{100 * of_task.plain:.1f}"
        lines.append("| " + " | ".join([task, of_task.metric, *(cells.get(tau, "–") for tau in taus), plain]) + " |")
    explained = (
        "The lower the temperature tau, the less a masked unit costs the adversary, and the stronger it attacks."
    )
    return ["## Scores against the temperature", "", explained, "", *lines, ""]


def temperature_figure(by_task: Mapping[str, Temperatures], path: str | os.PathLike) -> epath.Path:
    """Write `draw_temperatures` as a PNG; returns its path."""
    return save(draw_temperatures(by_task), path)


def draw_temperatures(by_task: Mapping[str, Temperatures]) -> Figure:
    """Scores against tau, a panel for each task (Wu et al. 2022, figure 4 b); dashed is the score without an attack."""
    if not by_task:
        raise ValueError("there are no scores to draw: give at least one task")
    figure = Figure((max(4.4, 3.4 * len(by_task)), 3.2), layout="constrained")
    chosen = colours(by_task)
    for panel, (task, of_task) in zip(figure.subplots(1, len(by_task), squeeze=False)[0], by_task.items(), strict=True):
        means, deviations = (100 * np.array(values) for values in (of_task.means, of_task.deviations))
        spread = deviations if of_task.several else None
        panel.errorbar(
            of_task.taus, means, yerr=spread, fmt="o-", color=chosen[task], markersize=4, capsize=3, label="attacked"
        )
        if of_task.plain is not None:
            panel.axhline(100 * of_task.plain, color="0.4", linestyle="--", linewidth=1.2, label="without an attack")
            _legend(panel)
        panel.set_title(label(task, 24), fontsize=LARGE, parse_math=False)
        panel.set_xticks(of_task.taus, [f"{tau:g}" for tau in of_task.taus])
        panel.set_xlabel("tau (lower attacks more)", fontsize=MEDIUM)
        panel.set_ylabel(f"{of_task.metric.replace('_', ' ')} × 100", fontsize=MEDIUM)
        tidy(panel)
    return figure


def step_time_figure(ratios: Mapping[str, Mapping[int, float]], path: str | os.PathLike) -> epath.Path:
    """Write `draw_step_times` as a PNG; returns its path."""
    return save(draw_step_times(ratios), path)


def draw_step_times(ratios: Mapping[str, Mapping[int, float]]) -> Figure:
    """A step's time over that of plain training, against the tokens of a row (Wu et al. 2022, figure 4 a), a line a method.

    `ratios[method][tokens]`. Raises ValueError without any.
    """
    if not any(ratios.values()):
        raise ValueError("there are no times to draw: give at least one method and length")
    figure = Figure((5.2, 3.4), layout="constrained")
    panel = figure.subplots()
    chosen = colours(ratios)
    for method, of_method in ratios.items():
        lengths = sorted(of_method)
        times = [of_method[length] for length in lengths]
        panel.plot(lengths, times, "o-", color=chosen[method], markersize=4, linewidth=1.6, label=label(method, 24))
    lengths = sorted({length for of_method in ratios.values() for length in of_method})
    panel.set_xscale("log", base=2)
    panel.set_xticks(lengths, [f"{length}" for length in lengths])
    panel.set_xlabel("tokens of a row", fontsize=MEDIUM)
    panel.set_ylabel("step time over the first method's", fontsize=MEDIUM)
    panel.set_ylim(bottom=0)
    tidy(panel)
    _legend(panel)
    return figure


def _legend(axes: Axes) -> None:
    for text in axes.legend(fontsize=MEDIUM, frameon=False, loc="best").get_texts():
        text.set_parse_math(False)

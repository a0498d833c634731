"""What attacks did: the share of attention that was masked, and scores against the temperature; drawn in `figures`.

A *unit* is a pair of a token and one that it may attend to; masks are those of `objectives.adversarial`.

Shape letters: N layers, S logged steps.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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

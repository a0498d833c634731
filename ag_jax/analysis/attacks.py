"""Effects of attacks on attention: the share of query-key pairs masked, and task scores by the attack's temperature.

A *unit* is a pair of a token and a token that it may attend to. The lower the temperature tau, the less a masked
unit costs the adversary (Wu et al. 2022, equations 9 and 10). Masks are those of `objectives.adversarial`. The figures
are in `figures.attacks`.

Shape letters: N layers, S logged steps.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ag_jax.analysis.report import DASH, Figure, Section, percent, table_of_layers
from ag_jax.analysis.tables import Table

MetricRows = Sequence[Mapping[str, Any]]  # rows of metrics of one run or trial
MASKED = "What was masked"  # title of a section of reports
END = 0.2  # fraction at the end of training over which the masked share is averaged


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedShare:
    """Share of query-key pairs that an attack masked, over all layers and by layer, at each logged step.

    begin_S: last step before each row; a row is the mean over the steps from begin_S + 1 to steps_S.
    steps_S: last step of each row.
    share_S: share of masked units over all layers, from 0 to 1.
    share_SN: share of masked units by layer, from 0 to 1.
    """

    begin_S: np.ndarray
    steps_S: np.ndarray
    share_S: np.ndarray
    share_SN: np.ndarray

    @property
    def late_S(self) -> np.ndarray:
        """Booleans: whether each of the S logged steps counts as the end of training.

        These are the steps whose rows of metrics are means over steps of the last fifth of training only, or, if there
        is no such row, the last logged step.
        """
        late_S = self.begin_S >= (1 - END) * self.steps_S[-1]
        return late_S if late_S.any() else self.steps_S == self.steps_S[-1]

    @property
    def late_steps(self) -> tuple[int, int]:
        """(first, last) of the final training steps, over which `at_end` averages the share of masked pairs."""
        return int(self.begin_S[self.late_S][0]) + 1, int(self.steps_S[-1])

    @property
    def at_end(self) -> tuple[float, np.ndarray]:
        """Share of query-key pairs masked in the last steps of training: (over all layers, array `N` by layer)."""
        weights_S = np.where(self.late_S, self.steps_S - self.begin_S, 0)
        return float(np.average(self.share_S, weights=weights_S)), np.average(self.share_SN, axis=0, weights=weights_S)

    def numbers(self) -> dict[str, Any]:
        """Return {`all`: final share of masked pairs, `layers`: the share by layer, `steps`: [first, last]}.

        For `report.json`. The shares are means over the steps from the first to the last (`late_steps`).
        """
        share, share_N = self.at_end
        return {"all": share, "layers": share_N.tolist(), "steps": list(self.late_steps)}


def masked_share(seeds: Sequence[MetricRows]) -> MaskedShare | None:
    """Return the share of masked query-key pairs, a mean over seeds at the steps that all logged; None without steps.

    None if there is no such step, for example without an attack.

    seeds: rows of metrics of each run.
    """
    trained = [[row for row in rows if row["split"] == "train"] for rows in seeds]
    # The last step before each row. Seeds may log different rows, and then the longest interval counts.
    begins: dict[int, int] = {}
    for rows in trained:
        for before, row in zip([0, *(row["step"] for row in rows)], rows, strict=False):
            begins[row["step"]] = min(before, begins.get(row["step"], before))
    per_seed = [{row["step"]: row for row in rows if row.get("masked") is not None} for rows in trained]
    steps = sorted(set.intersection(*(set(row_by_step) for row_by_step in per_seed))) if per_seed else []
    if not steps:
        return None
    share_S, share_SN = (
        np.array([[row_by_step[step][name] for step in steps] for row_by_step in per_seed]).mean(
            axis=0, dtype=np.float64
        )
        for name in ("masked", "masked/layers")
    )
    return MaskedShare(np.array([begins[step] for step in steps]), np.array(steps), share_S, share_SN)


def masked_section(header: Sequence[str], shares: Mapping[Any, MaskedShare], *figures: Figure) -> Section:
    """Return a report's section on the shares of query-key pairs masked at the end of training.

    header: names of the first columns.
    shares: {cells of the first columns: share of masked units}, as fractions; the table has per cent.
    """
    rows = []
    for key, share in shares.items():
        overall, share_N = share.at_end
        first, last = share.late_steps
        rows.append(([*key, f"{first:,} to {last:,}"], [*map(percent, (overall, *share_N))]))
    explained = (
        "Per cent of the units of attention (a token, and one that it may attend to) that the attack masked "
        "at the end of training, as a mean over the seeds. The steps are those of the logged rows that lie in "
        "the last fifth of training, or of the last row if none does. "
        "Where an adversary masks more, the model is more vulnerable."
    )
    return Section(MASKED, [explained, table_of_layers([*header, "Steps"], rows), *figures])


@dataclasses.dataclass(frozen=True)
class Temperatures:
    """Scores of one task for models trained at several tau, the temperature of adversarial self-attention.

    A lower tau makes the adversary mask more.

    metric: name of the score.
    taus: temperatures, ascending.
    means: mean score over seeds at each temperature, as a fraction.
    deviations: standard deviation over seeds at each temperature, as a fraction; None with one seed.
    plain: score without an attack, as a fraction; None if it was not measured.
    """

    metric: str
    taus: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float | None, ...]
    plain: float | None = None


def temperature_section(by_task: Mapping[str, Temperatures], *figures: Figure) -> Section:
    """Return a report's section on task scores by tau, the temperature of adversarial self-attention."""
    taus = sorted({tau for scores in by_task.values() for tau in scores.taus})
    columns = ["Task", "Metric", *(f"tau = {tau:g}" for tau in taus), "Without an attack"]
    rows = []
    for task, scores in by_task.items():
        cells = {
            tau: percent(mean) + ("" if deviation is None else f" ± {percent(deviation)}")
            for tau, mean, deviation in zip(scores.taus, scores.means, scores.deviations, strict=True)
        }
        rows.append([task, scores.metric, *(cells.get(tau, DASH) for tau in taus), percent(scores.plain)])
    explained = (
        "The lower the temperature tau, the less a masked unit costs the adversary, and the stronger it attacks."
    )
    return Section("Scores against the temperature", [explained, Table(columns, rows), *figures])

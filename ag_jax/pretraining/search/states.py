"""State of the runs of a search, from the results of its cells (`pretraining.training_cell`).

A run has a cell for each step at which it is compared with others, and one for its end.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ag_jax.grid.cells import Table
from ag_jax.pretraining.search.points import Study

LOSSES = ("train_loss", "validation_loss", "average_train_loss")

Numbers = dict[str, float | None]  # of losses and metrics, by their names; None for one that was not measured


@dataclasses.dataclass(frozen=True)
class RunState:
    """State of one run of a search: its final metrics, its metrics at each comparison with others, and any failure.

    measured: `LOSSES` and `search.metric` of a finished run; None for any other. The metric is None if it was not
        measured, because nothing was counted for it, such as a share of the alarms of a model that raised none.
    failure: why the run failed; None if it did not.
    diverged: whether it failed because a number was not finite, and not for want of memory.
    rungs: `LOSSES` and `search.metric` after each step, written as text, at which it was compared with others.
    """

    measured: Numbers | None = None
    failure: str | None = None
    diverged: bool = False
    rungs: dict[str, Numbers] = dataclasses.field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether the run has finished or failed, so that nothing is left to train."""
        return self.measured is not None or self.failure is not None


States = dict[tuple[int, int], RunState]  # by number of the point and seed


def of_results(study: Study, table: Table) -> States:
    """Return {(number of the point, seed): state} of every run of a search, from the results of its cells.

    Raises ValueError if a result lacks the number `search.metric`.
    """
    return {
        (number, seed): _of_run(point.path(seed), study.rung_steps(point), study.search.metric, table)
        for number, point in enumerate(study.points)
        for seed in point.configs
    }


def _of_run(path: str, rungs: list[int], metric: str, table: Table) -> RunState:
    """Return the state of a run; it failed if one of its results did, or has a number that is not finite."""
    state = RunState()
    for until in (*rungs, None):
        name = path if until is None else f"{path}@{until}"
        if (result := table.get(name)) is None:
            continue
        if not result.is_done:
            state = dataclasses.replace(state, failure=result.reason, diverged=result.status == "diverged")
            continue
        every = numbers_of(result.facts)
        if metric not in every:
            raise ValueError(f"{name} has no {metric}, but {', '.join(every)}: choose another --workdir")
        numbers = {name: every[name] for name in (*LOSSES, metric)}
        if (reason := not_finite(numbers, metric)) is not None:
            at = "" if until is None else f" at step {until}"
            state = dataclasses.replace(state, failure=reason + at, diverged=True)
        elif until is None:
            state = dataclasses.replace(state, measured=numbers)
        else:
            state = dataclasses.replace(state, rungs=state.rungs | {str(until): numbers})
    return state


def numbers_of(summary: Mapping[str, Any]) -> Numbers:
    """Return {name: value} of the losses and metrics in a run's summary by which search points can be judged.

    These are `LOSSES`, and the metrics of the last evaluation that are one number, not one for each layer, or that were
    not measured.
    """
    metrics = summary["validation"].items()
    return {name: summary[name] for name in LOSSES} | {
        name: value for name, value in metrics if value is None or isinstance(value, (int, float))
    }


def not_finite(numbers: Mapping[str, float | None], metric: str) -> str | None:
    """Return a sentence that names the first number of `LOSSES` and `metric` that is not finite; None if all are.

    Numbers that were not measured do not count.
    """
    for name in (*LOSSES, metric):
        if (value := numbers[name]) is not None and not math.isfinite(value):
            return f"{name} is not finite"
    return None

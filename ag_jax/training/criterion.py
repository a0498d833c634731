"""The best evaluation of a job, by a metric, and early stopping: training ends if the metric no longer improves.

Both depend only on the evaluations so far, which checkpoints hold, so a run that was killed and resumed decides as an
uninterrupted one, and all hosts decide alike.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The metrics that a job's evaluators returned after a training step.

    step: number of updates done.
    train_loss: mean of the primary metric over the steps since the previous evaluation; None if their weight is 0.
    seconds: duration of these steps.
    values: metrics returned by the evaluators.
    """

    step: int
    train_loss: float | None
    seconds: float
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Rule by which evaluations are compared: a metric, and whether low or high values are better.

    metric: name of the metric.
    is_lower_better: whether the lowest value is the best, not the highest.
    """

    metric: str
    is_lower_better: bool

    @classmethod
    def of_objective(cls, metric: str) -> "Criterion":
        """Return the criterion for a metric of an objective: lower is better for losses and `nll`, else higher."""
        return cls(metric, metric.endswith("loss") or metric == "nll")

    def cost(self, value: float | None) -> float:
        """Return a metric's value as a cost, lower for better values; None (not measured) costs infinity.

        It is negated if high values are better. None, a metric that was not measured, costs infinity.
        """
        if value is None:
            return math.inf
        return value if self.is_lower_better else -value

    def index(self, values: Iterable[Any]) -> int | None:
        """Return the index of the best value, the first of equal ones; None if no value is a finite number."""
        best: tuple[float, int] | None = None
        for number, value in enumerate(values):
            if (
                isinstance(value, (int, float))
                and math.isfinite(value)
                and (best is None or self.cost(value) < best[0])
            ):
                best = self.cost(value), number
        return None if best is None else best[1]

    def number(self, history: Sequence[Evaluation]) -> int:
        """Return the number, counted from 1, of the best evaluation in the history; 0 if there is none."""
        index = self.index(evaluation.values.get(self.metric) for evaluation in history)
        return 0 if index is None else index + 1

    def evaluation(self, history: Sequence[Evaluation]) -> Evaluation | None:
        """Return the best evaluation in the history; None if there is none."""
        number = self.number(history)
        return history[number - 1] if number else None

    def is_over(self, history: Sequence[Evaluation], patience: int | None, after: int = 0) -> bool:
        """Return whether to stop early: whether `patience` evaluations after step `after` brought no better value.

        False if `patience` is None. Equal values, and values that are no finite number, are not better.

        after: step up to which evaluations do not count for `patience`, only for the best value.
        """
        earlier = sum(evaluation.step <= after for evaluation in history)
        return patience is not None and len(history) - max(self.number(history), earlier) >= patience

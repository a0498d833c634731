"""The best evaluation of a run, by a metric, and early stopping: training ends if the metric no longer improves.

Both depend only on the evaluations so far, which checkpoints hold, so a run that was killed and resumed decides as an
uninterrupted one, and all hosts decide alike.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The metrics of held-out data after a training step.

    step: number of updates done.
    train_loss: mean of the primary metric over the steps since the previous evaluation; None if their weight is 0.
    seconds: duration of these steps.
    values: the metrics, {name: value}.
    """

    step: int
    train_loss: float | None
    seconds: float
    values: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Rule by which evaluations are compared, and by which training ends early if they bring no better value.

    metric: name of the metric.
    is_lower_better: whether the lowest value is the best, not the highest.
    patience: number of evaluations in a row without a better value after which training ends; None trains all steps.
    after: step up to which evaluations are of another run, which a branch goes on from. They do not count for
        `patience`, and none of them is the best, but their best value is still the one to be beaten.
    """

    metric: str
    is_lower_better: bool
    patience: int | None = None
    after: int = 0

    @classmethod
    def of_objective(cls, metric: str, patience: int | None = None, after: int = 0) -> "Criterion":
        """Return the criterion for a metric of an objective: lower is better for losses and `nll`, else higher."""
        return cls(metric, metric.endswith("loss") or metric == "nll", patience, after)

    def cost(self, value: float | None) -> float:
        """Return a metric's value as a cost, lower for better values; None (not measured) costs infinity."""
        if value is None:
            return math.inf
        return value if self.is_lower_better else -value

    def index(self, values: Iterable[Any]) -> int | None:
        """Return the index of the best value, the first of equal ones; None if no value is a finite number."""
        costs = [
            (self.cost(value), number)
            for number, value in enumerate(values)
            if isinstance(value, (int, float)) and math.isfinite(value)
        ]
        return min(costs)[1] if costs else None

    def best(self, history: Sequence[Evaluation]) -> Evaluation | None:
        """Return the best evaluation after the step `after`; None if there is none."""
        own = [evaluation for evaluation in history if evaluation.step > self.after]
        index = self._index(own)
        return None if index is None else own[index]

    def _index(self, history: Sequence[Evaluation]) -> int | None:
        return self.index(evaluation.values.get(self.metric) for evaluation in history)

    def is_over(self, history: Sequence[Evaluation]) -> bool:
        """Return whether to stop early: whether the last `patience` evaluations brought no better value.

        Equal values, and values that are no finite number, are not better.
        """
        if self.patience is None:
            return False
        index = self._index(history)
        counted_from = max(0 if index is None else index + 1, sum(one.step <= self.after for one in history))
        return len(history) - counted_from >= self.patience

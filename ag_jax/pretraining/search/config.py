"""The settings of a search: the grids, how points are judged, and how long they are trained."""

import dataclasses
import re
from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt

from ag_jax.settings import schema


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """The grids of `ag-jax search`, and how it chooses among their points.

    grids: settings with lists of values for each arm, such as {"ag": {"optimizer": {"learning_rate": (1e-3, 2e-3)}}};
        a point is one value of each setting. The names of the arms are values of the config file's argument `arm`, if
        it takes one.
    metric: the number of a run's summary by which points are judged, also at rungs: `validation_loss`, `train_loss`,
        `average_train_loss`, or a metric of the last evaluation, such as `mlm_accuracy`. The lowest is the best for
        losses and `nll`, the highest for others.
    rungs: fractions of the run after which the worse half of an arm's points is stopped (successive halving), in
        ascending order; an empty list trains all points to the end.
    seeds: seeds that every point is trained with; points are judged by the mean over them.
    steps: number of steps of every point, each with schedules of that length; none for that of the config. Not allowed
        together with `training.words`, or with `training.steps` as a flag or in a grid.
    """

    grids: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict, hash=False)
    metric: str = "validation_loss"
    rungs: tuple[Annotated[float, Gt(0), Lt(1)], ...] = ()
    seeds: tuple[Annotated[int, Ge(0)], ...] = (0,)
    steps: Annotated[int, Ge(1)] | None = None

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"search.seeds must be one or more integers without repetition, got {self.seeds}")
        if list(self.rungs) != sorted(set(self.rungs)):
            raise ValueError(f"search.rungs must be different fractions in ascending order, got {self.rungs}")
        folded = [arm.lower() for arm in self.grids]
        for arm, grid in self.grids.items():
            if not re.fullmatch(r"[A-Za-z0-9_]+", arm):
                raise ValueError(
                    f"search.grids.{arm}: the name of an arm is also that of a folder: use letters, digits and _"
                )
            if folded.count(arm.lower()) > 1:
                raise ValueError(f"search.grids has two arms with the name {arm}: name each of them once")
            for setting, values in schema.flat(grid).items():
                self._check_values(f"search.grids.{arm}.{setting}", values)
            if not schema.flat(grid):
                raise ValueError(f"search.grids.{arm} has no settings: give at least one, with a list of its values")

    @staticmethod
    def _check_values(setting: str, values: Any) -> None:
        """Raise ValueError unless `values` is a list of values of a setting."""
        if not isinstance(values, (tuple, list)) or not values:
            raise ValueError(f"{setting} must be a list of at least one value, such as (1, 2), got {values!r}")
        if any(isinstance(value, (tuple, list, dict)) for value in values):
            raise ValueError(f"{setting} must be a list of numbers or texts, got {values!r}")

    def settings_of(self, arm: str) -> dict[str, list[Any]]:
        """Return the values of each setting in the grid of an arm, {"section.key": values}."""
        return {setting: list(values) for setting, values in schema.flat(self.grids[arm]).items()}

"""Cells of an experiment, what is stored of each, and the order in which they are computed."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from etils import epath


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A file of a result, in the directory of the cell.

    file: its name.
    sha256: digest of its content.
    """

    file: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Result:
    """The stored result of a cell.

    facts: its small parts, as JSON values, such as metrics and counts.
    artifacts: its files, such as arrays.
    status: whether the cell was computed to its end, or how it failed: a number was not finite (`diverged`), or memory
        was short (`out_of_memory`).
    reason: why it failed; None if it did not.
    inputs: the cell's `inputs`, which `run` adds.
    """

    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = dataclasses.field(default_factory=dict)
    status: Literal["done", "diverged", "out_of_memory"] = "done"
    reason: str | None = None
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether the cell was computed to its end; otherwise it failed."""
        return self.status == "done"


Table = Mapping[str, Result]  # results of the cells that are computed, by `Cell.name`


@dataclasses.dataclass(frozen=True, eq=False)
class Cell(abc.ABC):
    """The smallest part of an experiment that is computed and stored as a whole, such as a probe of a model.

    This is the base class of all kinds of cells, which add the fields that they need.

    path: its directory, below that of the experiment, such as `probes/ag-seed0/stories`. It holds the files of the cell
        and its result.
    until: step at which a training pauses, to be compared with others there; None for the whole training, and for
        everything else.
    """

    path: str
    until: int | None = dataclasses.field(default=None, kw_only=True)

    # What happens if a result is stored that was computed from other inputs: the cell is computed anew, or refused.
    on_change: ClassVar[Literal["redo", "refuse"]] = "redo"

    @property
    def name(self) -> str:
        """Name of the cell in tables of results: its path, with the step at which it pauses."""
        return self.path if self.until is None else f"{self.path}@{self.until}"

    @property
    @abc.abstractmethod
    def inputs(self) -> Mapping[str, str]:
        """Digests of everything that the result depends on, such as {"model": ..., "text": ..., "settings": ...}."""

    def changes(self, stored: Result) -> list[str]:
        """Return the names of the inputs from which a stored result was not computed; [] if it is that of the cell."""
        names = sorted({*self.inputs, *stored.inputs})
        return [name for name in names if self.inputs.get(name) != stored.inputs.get(name)]

    @abc.abstractmethod
    def compute(self, directory: epath.Path) -> Result:
        """Compute the cell, or resume it, and return its result, whose files it writes.

        directory: its directory, which exists. No other process computes the cell meanwhile.
        """

    def tidy(self, directory: epath.Path, table: Table) -> None:  # noqa: B027  (most cells need all that they wrote)
        """Delete what the cell no longer needs now that its result is stored. Host 0 calls it, while it holds the lock.

        directory: its directory.
        table: the results of all cells so far, with that of this cell.
        """


@dataclasses.dataclass(frozen=True)
class Stage:
    """Cells that may be computed now.

    cells: the cells. Those that are computed already may be among them.
    is_last: whether no more cells become ready by their results, so that a process may leave the last of them to others
        instead of waiting.
    known: cells whose results are read if there are any, whether they may be computed now or not. As they may be past
        what can be computed again, such as a step of a longer training, damage to them is an error.
    """

    cells: Sequence[Cell]
    is_last: bool = True
    known: Sequence[Cell] = ()


# The plan of an experiment: the results so far -> the cells that may be computed now. It is a pure function, so that
# every process and every host comes to the same cells.
Plan = Callable[[Table], Stage]

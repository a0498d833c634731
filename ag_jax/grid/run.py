"""Compute the cells of an experiment, together with all other processes that do the same in its directory."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

from etils import epath

from ag_jax.distributed import hosts, lock
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Plan, Result, Stage, Table

LOOK_EVERY = 5.0  # seconds between two looks at cells on which other processes work
SHOWN = 5  # cells of other processes that a line names


def run(plan: Plan, workdir: epath.Path, *, retry: bool = False) -> Table | None:
    """Compute the cells of a plan that have no result yet; return the results of all, by `Cell.name`.

    Processes share the cells if they call this function with the same plan and directory, whenever each starts and
    ends. A process claims a cell, computes it, and writes its result; a cell whose process was killed is free again. If
    other processes work on all that is left, the process waits, because their results may make more cells ready. But in
    the last stage of the plan it returns None: the process that computes the last cell gets all results, those of cells
    that failed among them.

    A stored result that is damaged, or was computed from other inputs, is computed anew, with a line that says so.

    plan: the results so far -> the cells that may be computed now. As it is called again and again, it should return
        the same objects.
    workdir: directory of the experiment, in which each cell has its own.
    retry: compute cells that failed before once more; each of several processes does, if they fail again.

    Every host must call it: host 0 reads, claims and writes, and all compute the same cells.

    Raises ValueError for a cell that refuses other inputs (`Cell.on_change`).
    """
    experiment = _Experiment(plan, workdir, retry)
    while True:
        content = hosts.from_first("the results", experiment.read)
        # In one order, in which no process has found them.
        table = {name: store.of_json(of_cell) for name, of_cell in sorted(content.items())}
        stage = plan(table)
        left = [cell for cell in stage.cells if cell.name not in table]
        if not left:
            return table
        with contextlib.ExitStack() as claims:
            number = hosts.from_first("the next cell", functools.partial(experiment.claim, left, claims))
            if number is not None:
                cell, inputs = left[number], dict(left[number].inputs)
                hosts.say(f"{cell.name}: {len(table)} of {len(table) + len(left)} are done")
                result = dataclasses.replace(cell.compute(workdir / cell.path), inputs=inputs)
                hosts.from_first("the result", functools.partial(experiment.write, cell, result))
                continue
        if hosts.from_first("the other processes", functools.partial(experiment.leave, left, stage.is_last)):
            return None
        time.sleep(LOOK_EVERY)


def stored(plan: Plan, workdir: epath.Path, retry: bool = False) -> Table:
    """Return the results that `run` would use instead of computing cells: those that are stored and valid.

    Every host must call it. The arguments are those of `run`; with `retry`, results of failed cells are left out.
    """
    results = hosts.from_first("the stored results", _Experiment(plan, workdir, retry).read)
    return {name: store.of_json(content) for name, content in sorted(results.items())}


class _Experiment:
    """State of an experiment on host 0, which alone reads results, claims cells and writes.

    The arguments are those of `run`.
    """

    def __init__(self, plan: Plan, workdir: epath.Path, retry: bool):
        self._plan, self._workdir, self._retry = plan, workdir, retry
        self._claims = lock.Claims()
        self._table: dict[str, Result] = {}
        self._begun: set[str] = set()  # names of cells that this process has computed, whose failures `retry` leaves
        self._told: set[str] = set()

    def read(self) -> dict[str, Any]:
        """Read the results that are stored since the last call; return all as JSON values, by name of the cell."""
        is_new = True
        while is_new:  # because results make more cells ready, which may have results, too
            stage = self._stage()
            known = set(stage.known)
            cells = [cell for cell in (*stage.known, *stage.cells) if cell.name not in self._table]
            new = {cell.name: result for cell in cells if (result := self._valid(cell, cell in known)) is not None}
            self._table |= new
            is_new = bool(new)
        return {name: store.to_json(result) for name, result in self._table.items()}

    def claim(self, cells: Sequence[Cell], claims: contextlib.ExitStack) -> int | None:
        """Claim the first cell that no other process computes, and delete its invalid result; return its number.

        Returns None if there is none.

        claims: takes the claim, and thereby ends it.
        """
        for number, cell in enumerate(cells):
            with contextlib.ExitStack() as attempt:
                mine = attempt.enter_context(self._claims(self._lock_of(cell)))
                if mine and self._valid(cell) is None:  # another process may have stored its result meanwhile
                    self._confirm = mine.confirm
                    # Its files are written over, and a cell that is killed must not have the result of other files.
                    store.path_of(self._workdir / cell.path, cell.until).unlink(missing_ok=True)
                    self._begun.add(cell.name)
                    claims.enter_context(attempt.pop_all())
                    return number
        return None

    def write(self, cell: Cell, result: Result) -> None:
        """Store the result of the claimed cell."""
        directory = self._workdir / cell.path
        self._confirm()
        self._table[cell.name] = store.write(directory, result, cell.until)
        cell.tidy(directory, self._table)

    def leave(self, cells: Sequence[Cell], is_last: bool) -> bool:
        """Return whether the last cells can be left to other processes, which are known to run; tell that, or to wait.

        is_last: whether the results of these cells make no more cells ready.
        """
        names = ", ".join(cell.name for cell in cells[:SHOWN]) + (", ..." if len(cells) > SHOWN else "")
        if is_last and all(self._claims.runs(self._lock_of(cell)) for cell in cells):
            self._tell(f"other processes work on all that is left, {names}; the last of them writes the report")
            return True
        self._tell(f"waiting for other processes, which work on {names}")
        return False

    def _stage(self) -> Stage:
        stage = self._plan(dict(sorted(self._table.items())))
        cells = {*stage.cells, *stage.known}
        if len({cell.name for cell in cells}) < len(cells):
            raise ValueError(f"two cells of {self._workdir} have the same directory, of which one would be left out")
        return stage

    def _lock_of(self, cell: Cell) -> epath.Path:
        return self._workdir / cell.path / lock.FILE

    def _valid(self, cell: Cell, is_known: bool = False) -> Result | None:
        """Return the stored result of a cell; None if there is none, or if it is to be computed anew.

        is_known: raise ValueError if it is damaged (`Stage.known`).
        """
        directory = self._workdir / cell.path
        try:
            result = store.read(directory, cell.until)
        except store.DamagedError as error:
            if is_known and cell.until is not None:  # a training that is past this step does not return to it
                raise ValueError(f"{error.damage}: delete {directory} to train it again") from error
            if is_known:
                raise
            self._tell(f"{error.damage}; computing {cell.name} anew")
            return None
        if result is None:
            return None
        if changes := cell.changes(result):
            change = f"{directory} was computed for another {' and '.join(changes)}"
            if cell.on_change == "refuse":
                raise ValueError(f"{change}: choose another --workdir, or go back to what it was computed for")
            self._tell(f"{change}; computing it anew")
            return None
        return result if result.is_done or not self._retry or cell.name in self._begun else None

    def _tell(self, message: str) -> None:
        if message not in self._told:
            hosts.tell(message)
            self._told.add(message)

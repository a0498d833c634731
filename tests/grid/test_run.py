"""The contract of grids: cells that take a millisecond, computed by several processes that may be killed."""

import dataclasses
import itertools
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import ClassVar, Literal

import numpy as np
import pytest
from etils import epath

from ag_jax.distributed import hosts, lock, storage
from ag_jax.grid import run as grid
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Result, Stage
from tests.distributed.fake_hosts import FakeHosts


@dataclasses.dataclass(frozen=True, eq=False)
class Score(Cell):
    """A cell with the score of a seed; it notes who computes it."""

    seed: int
    calls: list
    text: str = "t"
    seconds: float = 0.0
    diverges: bool = False

    @property
    def inputs(self):
        return {"seed": str(self.seed), "text": self.text}

    def compute(self, directory):
        self.calls.append((self.name, threading.get_ident()))
        time.sleep(self.seconds)
        if self.diverges:
            return Result({"seconds": 1.5}, status="diverged", reason=f"seed {self.seed}: not finite")
        scores = store.write_arrays(directory, "scores.npz", {"scores": np.array([self.seed, len(self.text)])})
        return Result({"score": self.seed / 8}, {"scores": scores})


@dataclasses.dataclass(frozen=True, eq=False)
class Refusing(Score):
    on_change: ClassVar[Literal["redo", "refuse"]] = "refuse"


@dataclasses.dataclass(frozen=True, eq=False)
class Training(Cell):
    """A training that counts its steps in a file, and pauses at `until`."""

    steps: int
    calls: list

    @property
    def inputs(self):
        return {"steps": str(self.steps)}

    def compute(self, directory):
        directory.mkdir(parents=True, exist_ok=True)  # each host has its own here
        path, end = directory / "step", self.until or self.steps
        step = int(path.read_text()) if path.exists() else 0
        while step < end:
            step += 1
            self.calls.append((self.path, step))
            storage.write_whole(path, str(step))
        return Result({"loss": -float(self.path[-1]) * step})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(grid, "LOOK_EVERY", 0.002)


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path):
    if request.param == "disk":
        return epath.Path(tmp_path)
    request.getfixturevalue("bucket")
    return epath.Path("gs://bucket/grid")


@pytest.fixture
def disk(tmp_path):
    return epath.Path(tmp_path)


def scores(calls, count=3, **settings):
    return [Score(f"arm/seed{seed}", seed, calls, **settings) for seed in range(count)]


def constant(cells, is_last=True):
    return lambda table: Stage(cells, is_last)


def names(calls):
    return [name for name, _ in calls]


def rungs(calls):
    """Return a plan: four trainings pause after 3 steps, and the better half goes on to 5."""
    first = [Training(f"point{number}", 5, calls, until=3) for number in range(4)]
    last = [Training(f"point{number}", 5, calls) for number in range(4)]

    def plan(table):
        if any(cell.name not in table for cell in first):
            return Stage(first, is_last=False)
        ranked = sorted(range(4), key=lambda number: table[first[number].name].facts["loss"])
        return Stage([*first, *(last[number] for number in sorted(ranked[:2]))])

    return plan


def test_each_cell_is_computed_once_by_several_processes(place):
    calls: list = []
    with ThreadPoolExecutor(3) as threads:
        tasks = [threads.submit(grid.run, constant(scores(calls, 8, seconds=0.01)), place) for _ in range(3)]
        tables = [task.result(timeout=60) for task in tasks]
    assert sorted(names(calls)) == [f"arm/seed{seed}" for seed in range(8)] and len({who for _, who in calls}) > 1
    whole = [table for table in tables if table is not None]
    assert whole, "the last one has the results"
    assert all(
        {name: result.facts["score"] for name, result in table.items()}
        == {f"arm/seed{seed}": seed / 8 for seed in range(8)}
        for table in whole
    )
    assert not [path for path in (place / "arm" / "seed0").iterdir() if path.name == lock.FILE]


def test_processes_share_rungs(place):
    calls: list = []
    with ThreadPoolExecutor(2) as threads:
        tasks = [threads.submit(grid.run, rungs(calls), place) for _ in range(2)]
        tables = [table for task in tasks if (table := task.result(timeout=60)) is not None]
    ends = {"point0@3", "point1@3", "point2@3", "point3@3", "point2", "point3"}
    assert tables and all(set(table) == ends for table in tables)
    steps = [3, 3, 5, 5]
    assert sorted(calls) == [(f"point{number}", step + 1) for number in range(4) for step in range(steps[number])]


class Killed(BaseException):
    """What ends a process in these tests."""


def killed(monkeypatch, last, task):
    """Run a task until half a change of the files after its first `last` halves; return whether it came so far.

    As after a kill, nothing more is written or deleted, so that locks stay behind.
    """
    halves = itertools.count(1)

    def counted(change):
        def call(*arguments, **settings):
            for part in (lambda: None, lambda: change(*arguments, **settings)):
                value = part()
                if next(halves) >= last:
                    raise Killed
            return value

        return call

    changes = ((storage, "create"), (storage, "write_whole"), (store, "write_arrays"), (os, "remove"), (os, "unlink"))
    with monkeypatch.context() as patch:
        for owner, name in changes:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            task()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("what", ["scores", "rungs"])
def test_killed_before_and_after_each_of_its_writes(tmp_path, monkeypatch, what):
    plan = {"scores": lambda: constant(scores([], 2)), "rungs": lambda: rungs([])}[what]
    whole = grid.run(plan(), epath.Path(tmp_path / "whole"))
    left = 0
    for last in itertools.count(1):
        folder = tmp_path / str(last)
        workdir = epath.Path(folder)
        was_killed = killed(monkeypatch, last, lambda: grid.run(plan(), workdir))  # noqa: B023
        for path in folder.rglob("lock.json"):
            left += 1
            path.write_text(path.read_text().replace('"process_started": "', '"process_started": "0'))
        assert grid.run(plan(), workdir) == whole
        if not was_killed:
            break
    assert last > 12 and left > 8


def test_other_inputs_are_named_and_computed_anew(disk, capsys):
    grid.run(constant(scores([])), disk)
    table = grid.run(constant(scores(calls := [], text="other")), disk)
    assert names(calls) == ["arm/seed0", "arm/seed1", "arm/seed2"]
    assert capsys.readouterr().err.count("for another text; computing it anew") == 3
    assert store.read_arrays(disk / "arm" / "seed2", table["arm/seed2"].artifacts["scores"])["scores"][1] == 5
    assert grid.run(constant(scores(calls := [], text="other")), disk) == table and not calls


def test_a_result_without_an_input_is_not_of_the_cell(disk):
    """It was stored before the results of this kind of cell depended on the text."""
    (disk / "arm" / "seed0").mkdir(parents=True)
    store.write(disk / "arm" / "seed0", Result({"score": 7}, inputs={"seed": "0"}))
    assert grid.run(constant(scores(calls := [], 1)), disk)["arm/seed0"].facts == {"score": 0.0} and len(calls) == 1


def test_other_inputs_are_refused(disk):
    table = grid.run(constant([Refusing("a", 1, [])]), disk)
    with pytest.raises(ValueError, match=r"a was computed for another text"):
        grid.run(constant([Refusing("a", 1, [], "other")]), disk)
    assert grid.run(constant([Refusing("a", 1, [])]), disk) == table


@pytest.mark.parametrize("name", ["result.json", "scores.npz"])
def test_what_is_damaged_is_named_and_computed_anew(disk, capsys, name):
    table = grid.run(constant(scores([])), disk)
    path = disk / "arm" / "seed1" / name
    path.write_bytes(path.read_bytes().replace(b"0.125", b"0.625") if name == "result.json" else b"")
    assert grid.run(constant(scores(calls := [])), disk) == table and names(calls) == ["arm/seed1"]
    assert str(path) in capsys.readouterr().err


def test_a_result_of_other_files_is_never_left(disk):
    """A cell that is computed anew and killed has no result: its files may be written over already."""
    grid.run(constant(scores([], 1)), disk)

    class Dies(Score):
        def compute(self, directory):
            super().compute(directory)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid.run(constant([Dies("arm/seed0", 0, [], "other")]), disk)
    assert store.read(disk / "arm" / "seed0") is None
    assert grid.run(constant(scores(calls := [], 1)), disk) and len(calls) == 1


def test_failures_are_results_and_computed_once_more_on_request(disk):
    calls: list = []

    def plan(fails):
        first, second = Score("first", 1, calls, diverges=fails), Score("second", 2, calls)
        return lambda table: Stage([first, second] if "first" in table and table["first"].is_done else [first])

    for _ in range(2):  # the second is blocked
        table = grid.run(plan(True), disk)
        assert table["first"].status == "diverged" and "not finite" in table["first"].reason and len(table) == 1
    assert names(calls) == ["first"]
    assert grid.run(plan(True), disk, retry=True)["first"].status == "diverged" and names(calls) == ["first"] * 2
    table = grid.run(plan(False), disk, retry=True)
    assert table["first"].is_done and table["second"].is_done and names(calls) == ["first"] * 3 + ["second"]


def test_a_cell_may_start_from_the_files_of_another(disk, capsys):
    """Its inputs are known when that is done; if that is computed anew with another result, so is this one."""

    def plan(calls, text="t"):
        first, cells = Score("first", 1, calls, text), {}

        def ready(table):
            if "first" not in table:
                return Stage([first], is_last=False)
            digest = table["first"].artifacts["scores"].sha256
            return Stage([first, cells.setdefault(digest, Score("second", 2, calls, digest))])

        return ready

    assert len(grid.run(plan(calls := []), disk)) == 2 and names(calls) == ["first", "second"]
    assert len(grid.run(plan(calls := []), disk)) == 2 and not calls
    assert len(grid.run(plan(calls := [], "other"), disk)) == 2 and names(calls) == ["first", "second"]
    assert len(grid.run(plan(calls := [], "other"), disk)) == 2 and not calls


def test_two_cells_of_one_directory_are_an_error(disk):
    with pytest.raises(ValueError, match="same directory"):
        grid.run(constant([Score("a", 1, []), Score("a", 2, [])]), disk)


def test_a_rung_is_computed_anew_alone(disk):
    """Its result is deleted, and not that of the whole training."""
    cells = [Training("point1", 5, [], until=3), Training("point1", 5, [])]
    table = grid.run(constant(cells), disk)
    path = disk / "point1" / "result-3.json"
    path.write_text(path.read_text().replace("-3.0", "-9.0"))
    whole = (disk / "point1" / "result.json").read_text()
    (disk / "point1" / "step").unlink()
    assert grid.run(constant(cells), disk) == table and (disk / "point1" / "result.json").read_text() == whole


def test_what_is_read_back_is_what_was_written(disk, monkeypatch):
    """Keys of JSON are texts, numbers of numpy become those of Python, and a file system that lies is noticed."""
    store.write(disk, Result({2: np.int64(7), 10: None}))
    assert store.read(disk).facts == {"2": 7, "10": None}
    monkeypatch.setattr(storage, "write_whole", lambda path, text: path.write_text(text.replace("7", "8")))
    with pytest.raises(store.DamagedError):
        store.write(disk, Result({2: np.int64(7)}))


def test_a_process_that_lost_its_claim_writes_no_result(disk, monkeypatch):
    class Left(BaseException):
        pass

    class Slow(Score):
        def compute(self, directory):
            held(directory / lock.FILE, host="far")
            return super().compute(directory)

    def leave(status):
        raise Left

    monkeypatch.setattr(hosts, "leave_at_once", leave)
    with pytest.raises(Left):
        grid.run(constant([Slow("a", 1, [])]), disk)
    assert store.read(disk / "a") is None


def test_a_longer_training_goes_on(disk):
    grid.run(constant([Training("point1", 3, [])]), disk)
    table = grid.run(constant([Training("point1", 5, calls := [])]), disk)
    assert calls == [("point1", 4), ("point1", 5)] and table["point1"].facts == {"loss": -5.0}


def held(path, **changes):
    """Write the lock of another process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_whole(path, json.dumps(vars(lock.Holder.this_process()) | changes | {"beats": 0}))


def test_the_last_cells_are_left_to_processes_that_run(disk, capsys):
    held(disk / "arm" / "seed1" / lock.FILE)
    assert grid.run(constant(scores(calls := [])), disk) is None and names(calls) == ["arm/seed0", "arm/seed2"]
    assert "arm/seed1; the last of them writes the report" in capsys.readouterr().err


def test_what_another_process_has_stored_meanwhile_is_not_computed_again(disk, monkeypatch):
    """It ends between the look at the results and the claim."""
    honest, calls = lock.Claims.take, []

    def late(claims, own):
        if own.path.parent.name == "seed1":
            own.path.parent.mkdir(parents=True)
            store.write(own.path.parent, Result({"score": 7}, inputs={"seed": "1", "text": "t"}))
        return honest(claims, own)

    monkeypatch.setattr(lock.Claims, "take", late)
    table = grid.run(constant(scores(calls)), disk)
    assert table["arm/seed1"].facts == {"score": 7} and names(calls) == ["arm/seed0", "arm/seed2"]


def test_a_process_waits_for_results_that_make_cells_ready(disk, capsys):
    held(disk / "arm" / "seed1" / lock.FILE)

    def finish():
        store.write(disk / "arm" / "seed1", Result({"score": 7}, inputs={"seed": "1", "text": "t"}))
        (disk / "arm" / "seed1" / lock.FILE).unlink()

    timer = threading.Timer(0.2, finish)
    timer.start()
    table = grid.run(constant(scores(calls := []), is_last=False), disk)
    timer.join()
    assert table["arm/seed1"].facts == {"score": 7} and names(calls) == ["arm/seed0", "arm/seed2"]
    assert capsys.readouterr().err.count("waiting for other processes, which work on arm/seed1") == 1


def test_a_cell_of_another_machine_that_is_lost(disk, monkeypatch):
    """Nothing says at once that its process has ended, so it is not left to it, but taken over."""
    held(disk / "arm" / "seed1" / lock.FILE, host="another")
    monkeypatch.setattr(lock, "STALE_AFTER", 0.1)
    assert len(grid.run(constant(scores(calls := [])), disk)) == 3 and names(calls)[-1] == "arm/seed1"


def test_the_last_cell_is_left_to_a_process_of_another_machine_that_beats(disk, monkeypatch):
    beats, path = itertools.count(1), disk / "arm" / "seed1" / lock.FILE
    held(path, host="another")

    def sleep(_):
        storage.write_whole(path, path.read_text().replace('"beats"', f'"x{next(beats)}": 0, "beats"'))

    monkeypatch.setattr(grid, "time", SimpleNamespace(sleep=sleep))
    assert grid.run(constant(scores(calls := [])), disk) is None and names(calls) == ["arm/seed0", "arm/seed2"]


def test_a_beat_of_long_ago_says_nothing(disk, monkeypatch):
    """The process of another machine has beaten while this one computed a cell for an hour, and ended since."""
    clock, path = [0.0], disk / "arm" / "seed0" / lock.FILE
    monkeypatch.setattr(lock.time, "monotonic", lambda: clock[0])
    held(path, host="another")

    class Long(Score):
        def compute(self, directory):
            held(path, host="another", token="later")
            clock[0] += 3600
            return super().compute(directory)

    def sleep(_):
        clock[0] += 30

    monkeypatch.setattr(grid, "time", SimpleNamespace(sleep=sleep))
    cells = [Score("arm/seed0", 0, calls := []), Long("arm/seed1", 1, calls)]
    assert len(grid.run(constant(cells), disk)) == 2 and names(calls) == ["arm/seed1", "arm/seed0"]


def test_several_hosts_compute_the_same_cells(tmp_path, disk, monkeypatch):
    calls: dict[int, list] = {host: [] for host in range(3)}

    def task(host):
        return grid.run(rungs(calls[host]), disk / f"host{host}" if host else disk)

    tables = FakeHosts(monkeypatch, 3).run(task)
    assert tables[0] == tables[1] == tables[2] and len(tables[0]) == 6
    assert calls[0] == calls[1] == calls[2] and len(calls[0]) == 16
    results = [path for host in (1, 2) for path in (tmp_path / f"host{host}").rglob("result*.json")]
    assert not results, "host 0 writes"

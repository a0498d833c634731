"""Results of long experiments as JSON lines: a line for each finished cell, and all lines of a file of one commit.

A cell is the smallest part of an experiment that is run and recorded as a whole, such as an arm with a seed. A program
that is stopped and started again skips the cells that are in its file. Results of two commits are never in one file,
and a commit stands for the code that ran, so nothing is recorded while there are uncommitted changes of the code.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import subprocess
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Self, TypeVar

import record
from etils import epath

import ag_jax
from ag_jax.distributed import lock

Line = dict[str, Any]
Work = TypeVar("Work", bound=Hashable)
LOOK_EVERY = 10.0  # seconds between two looks at cells that other processes work on
CODE = ("ag_jax", "configs")  # the package; config files are part of it
PROGRAMS = "benchmarks/*.py"  # which decide what is run


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell whose line has all fields of the cell, beside the results; each experiment adds its fields."""

    @classmethod
    def of(cls, line: Line) -> Self:
        """Return the cell that a line records."""
        return cls(**{field.name: line[field.name] for field in dataclasses.fields(cls)})

    @property
    def name(self) -> str:
        """A name that may be that of a folder."""
        return "-".join(map(str, dataclasses.astuple(self)))


def read(path: pathlib.Path) -> list[Line]:
    """Return the lines of a file of results; none if the file does not exist.

    Raises ValueError, with the number of the line, if one is no JSON.
    """
    found = []
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected the JSON of a cell ({error}); delete the line"
            ) from error
    return found


def commit(root: pathlib.Path) -> str:
    """Return the commit of the clone `root`. Raises ValueError if it is no clone."""
    return _git(root, "rev-parse", "HEAD").strip()


def check(path: pathlib.Path, root: pathlib.Path) -> None:
    """Raise ValueError if no line may be added to the file: with uncommitted changes of the code, or if the file has
    lines of another commit than that of the clone `root`.
    """
    changed = _git(root, "status", "--porcelain", "--", *CODE, PROGRAMS).splitlines()
    if changed:
        raise ValueError(
            f"{root} has uncommitted changes of the code, so its commit does not say what ran: "
            f"{', '.join(line[3:] for line in changed[:5])}; commit them, or take a clone of their own for results"
        )
    here = commit(root)
    others = sorted({line["commit"] for line in read(path)} - {here})
    if others:
        raise ValueError(
            f"{path} has cells of commit {', '.join(others)}, but {root} is at {here}, and results of two commits are "
            "never mixed: check that commit out, or give another folder with --results"
        )


def check_import(root: pathlib.Path) -> None:
    """Raise ValueError if the package that Python imports is not that of the clone `root`, whose commit is recorded."""
    found = pathlib.Path(ag_jax.__file__).resolve()
    if not found.is_relative_to(root.resolve()):
        raise ValueError(f"{found} is not in the clone {root}, whose commit would be recorded: set PYTHONPATH={root}")


def share(
    path: pathlib.Path,
    root: pathlib.Path,
    directory: epath.Path,
    waiting: Callable[[Sequence[Line]], Sequence[Work]],
    measure: Callable[[Work, Sequence[Line]], Line],
    name: Callable[[Work], str],
    may_begin: Callable[[Work, Sequence[Line]], bool] = lambda cell, lines: True,
) -> None:
    """Run the cells that have no line in a file yet, and add the line of each as soon as it is done.

    Several processes may call it at the same time with the same arguments: every cell is run by one of them. The
    function returns when no cell waits any more.

    path: the file of results.
    root: the clone whose commit is recorded.
    directory: folder for the locks by which processes share the cells.
    waiting: the lines of the file -> the cells that are to be run, in their order.
    measure: a cell and the lines of the file -> the cell's own line, without its origin (`stamp`).
    name: a cell -> its name, which may be that of a folder.
    may_begin: whether the lines of the file have all that a cell needs. A cell that may not begin waits.
    """
    origin, claims = stamp(root), lock.Claims()
    while todo := waiting(read(path)):
        for cell in todo:
            with claims(directory / "claims" / name(cell)) as mine:
                lines = read(path)  # another process may have finished the cell since
                if not mine or cell not in waiting(lines) or not may_begin(cell, lines):
                    continue
                check(path, root)
                line = measure(cell, lines) | origin
                # A process that did not run for minutes loses its claim, and another may have recorded the cell since.
                if cell in waiting(read(path)):
                    append(path, line, root)
            break  # because what this cell decides may decide which cells wait
        else:
            time.sleep(LOOK_EVERY)


def append(path: pathlib.Path, line: Line, root: pathlib.Path) -> None:
    """Add a line to a file of results, which is created if need be; a process that is killed leaves no part of a line.

    Several processes may add lines to the same file.

    Raises ValueError as `check` does, or if the line is of another commit than the clone `root` is at now.
    """
    check(path, root)
    if line["commit"] != commit(root):
        raise ValueError(
            f"{root} was at {line['commit']} when this program started, and is at {commit(root)} now: start it again"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".new")
    with _locked(path.parent):
        whole.write_text("".join(json.dumps(each) + "\n" for each in [*read(path), line]))
        whole.replace(path)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Hold a lock on a folder, so that of two processes that write a file anew none loses the line of the other."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def stamp(root: pathlib.Path) -> Line:
    """Return what every line has to say of its origin: command, commit, hash of the code, device and versions."""
    return {
        "command": record.command(),
        "commit": commit(root),
        "package": package_hash(root),
        **record.machine(),
    }


def package_hash(root: pathlib.Path) -> str:
    """Return a hash of the code: of the names and contents of all Python files of the package and its configs."""
    hashed = hashlib.sha256()
    for path in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        content = path.read_bytes()
        hashed.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return hashed.hexdigest()[:16]


def _git(root: pathlib.Path, *arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(
            f"{root} must be a git clone, whose commit is recorded with each result: git {arguments[0]} failed there "
            f"({error})"
        ) from error

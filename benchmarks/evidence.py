"""Evidence: results of long experiments, with the code that ran, stored cell by cell in folders that are committed.

A point of an experiment, such as an arm with a seed, is a cell (`ag_jax.grid`) whose result is a line: a dictionary
with the fields of the point, what was measured, and where it comes from. A program that is stopped and started again,
or runs several times at once, computes every point once. Results of different code are never in one folder, and code
that is not committed records nothing.

Experiments that were recorded before are files of JSON lines, `NAME.jsonl` in place of the folder `NAME`.
"""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self, TypeVar

import jax
import record
from etils import epath

import ag_jax
from ag_jax.grid import run as grid
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Result, Stage, Table
from ag_jax.training.stopping import Interrupted

Line = dict[str, Any]
CODE = ("ag_jax", "configs")  # the package; config files are part of it
PROGRAMS = "benchmarks/*.py"  # which decide what is run


@dataclasses.dataclass(frozen=True)
class Point:
    """A point of an experiment, whose line has all of its fields; each experiment adds its own."""

    @classmethod
    def of(cls, line: Line) -> Self:
        """Return the point that a line records."""
        return cls(**{field.name: line[field.name] for field in dataclasses.fields(cls)})

    @property
    def name(self) -> str:
        """A name that may be that of a folder."""
        return "-".join(map(str, dataclasses.astuple(self)))


AnyPoint = TypeVar("AnyPoint", bound=Point)
Group = TypeVar("Group")
# The lines so far -> the points that may be computed now, also those that have a line, and whether no others follow.
Points = Callable[[Sequence[Line]], tuple[Sequence[AnyPoint], bool]]


@dataclasses.dataclass(frozen=True, eq=False)
class PointCell(Cell):
    """A point of an experiment as a cell; a result of other code is an error.

    point: the point.
    measure: returns what the line of the point has beside the fields of the point and `stamp`. If it fails, the line
        has the reason as `failed`.
    program: file of the program that measures it.
    code: what ran (`code_of`), as it was when the program started.
    """

    point: Point
    measure: Callable[[], Line]
    program: pathlib.Path
    code: Mapping[str, str]

    on_change: ClassVar[Literal["redo", "refuse"]] = "refuse"

    @property
    def inputs(self) -> Mapping[str, str]:
        """Digests of the package, of the program and of the options, and the values of the point."""
        inputs = {name: value for name, value in self.code.items() if name != "commit"}
        return inputs | {"point": json.dumps(dataclasses.asdict(self.point))}

    def compute(self, directory: epath.Path) -> Result:
        """Measure the point. Raises ValueError if the code is not that with which the program started."""
        self._check()
        line = dataclasses.asdict(self.point) | self.measure()
        self._check()
        origin = {"command": record.command(), "commit": self.code["commit"], "package": self.code["package"]}
        line |= origin | record.machine()
        return Result(line, status="diverged" if "failed" in line else "done", reason=line.get("failed"))

    def _check(self) -> None:
        now = code_of(self.program)
        if any(self.code[name] != now[name] for name in ("package", "program")):
            raise ValueError(f"the code of {self.program} was changed since this program started: start it again")


def chosen(tried: Mapping[Group, Sequence[AnyPoint]], lines: Sequence[Line]) -> dict[Group, AnyPoint] | None:
    """Return the point of each group that has the lowest validation loss; None if any point has no line yet.

    tried: the points of each group; one that failed has an infinite loss.
    """
    kind = type(next(iter(tried.values()))[0])
    losses = {kind.of(line): line.get("validation_loss", float("inf")) for line in lines}
    if any(point not in losses for points in tried.values() for point in points):
        return None
    return {group: min(points, key=losses.__getitem__) for group, points in tried.items()}


def run(
    folder: pathlib.Path,
    program: pathlib.Path,
    points: Points[AnyPoint],
    measure: Callable[[AnyPoint, Sequence[Line]], Line],
    options: Mapping[str, str] = types.MappingProxyType({}),
) -> list[Line] | None:
    """Compute the points of an experiment that have no line yet; return the lines of all.

    The result is None if other processes compute what is left.

    folder: the folder of the experiment's results.
    program: the file of the program, in the clone whose code is run.
    points: which points may be computed; see `Points`.
    measure: a point and the lines so far -> what its line has beside the fields of the point and its origin.
    options: digests of what else the results depend on, such as a model or data that the command names.

    Raises ValueError if the folder has results of other code or options, or if nothing may be recorded (`code_of`).
    """
    code, cells = code_of(program) | options, dict[AnyPoint, PointCell]()

    def cell(point: AnyPoint) -> PointCell:
        if point not in cells:
            cells[point] = PointCell(point.name, point, lambda: measure(point, read(folder)), program, code)
        return cells[point]

    def plan(table: Table) -> Stage:
        ready, is_last = points([dict(result.facts) for result in table.values()])
        return Stage(list(map(cell, ready)), is_last)

    for result in _results(folder):  # also those of points that this command does not have
        if changes := [name for name in code if name != "commit" and result.inputs.get(name) != code[name]]:
            raise ValueError(
                f"{folder} has results of another {' and '.join(changes)}, which are never mixed: go back to it, or "
                "give another folder with --results"
            )
    table = grid.run(plan, epath.Path(folder))
    return None if table is None else [dict(result.facts) for result in table.values()]


def options(
    description: str | None, directory: str = "workdir", contents: str = "what is trained"
) -> argparse.ArgumentParser:
    """Return a parser of the flags that the programs of experiments share.

    directory: name of the flag for a directory.
    contents: what the directory has, for the help.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = {"type": lambda text: pathlib.Path(text).expanduser().resolve()}
    parser.add_argument(f"--{directory}", required=True, help=f"directory of {contents}", **path)
    parser.add_argument("--results", default=record.RESULTS, help="folder of the results", **path)
    parser.add_argument(
        "--compilation-cache",
        help="directory in which JAX keeps compiled programs between processes",
        type=lambda text: jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(text).expanduser())),
    )
    return parser


def start(main: Callable[[], None]) -> None:
    """Call the main function of a program; a signal ends it with one line."""
    try:
        main()
    except Interrupted as stopped:
        sys.exit(f"{stopped}. Run the same command again to resume")


def read(folder: pathlib.Path) -> list[Line]:
    """Return the lines of an experiment, from its folder or from the older `NAME.jsonl`; none if it was never run.

    Raises ValueError if a result is damaged.
    """
    path = place(folder)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return [dict(result.facts) for result in _results(path)]


def _results(folder: pathlib.Path) -> list[Result]:
    results = [store.read(epath.Path(path.parent)) for path in sorted(folder.glob("*/result.json"))]
    return [result for result in results if result is not None]


def place(folder: pathlib.Path) -> pathlib.Path:
    """Return the folder with the results of an experiment, or the older `NAME.jsonl` if the folder has none."""
    older = folder.with_suffix(".jsonl")
    return older if older.exists() and not any(folder.glob("*/result.json")) else folder


def code_of(program: pathlib.Path) -> dict[str, str]:
    """Return the commit of a program's clone, and hashes of the package and of the program.

    Raises ValueError if results may not be recorded: if the package that Python imports is not that of the clone, or if
    the code has changes that are not committed, so that no commit says what ran.
    """
    root = program.resolve().parent.parent
    package = pathlib.Path(ag_jax.__file__).resolve()
    if not package.is_relative_to(root):
        raise ValueError(f"{package} is not in the clone {root}, whose commit would be recorded: set PYTHONPATH={root}")
    if changed := _git(root, "status", "--porcelain", "--", *CODE, PROGRAMS).splitlines():
        raise ValueError(
            f"{root} has uncommitted changes of the code, so its commit does not say what ran: "
            f"{', '.join(line[3:] for line in changed[:5])}; commit them, or take a clone of their own for results"
        )
    return {
        "commit": _git(root, "rev-parse", "HEAD").strip(),
        "package": package_hash(root),
        "program": hashlib.sha256(program.read_bytes()).hexdigest()[:16],
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

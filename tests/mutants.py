"""Change one expression of the program at a time, at random, and count the changes that the tests notice.

    python -m tests.mutants --coverage=FILE --seed=1 --count=150    # of the packages in PACKAGES
    python -m tests.mutants --coverage=FILE --root=OTHER            # of another checkout, which has a FILE of its own
    python -m tests.mutants --coverage=FILE --measure               # only print the coverage by module
    python -m tests.mutants --list                                  # only print the changes

Unlike planted bugs, which people wrote and whose tests are known, random changes measure the power of the tests. The
share that they notice (kill) is compared before and after tests change, with one seed and one `--seconds`. Some changes
leave all results as they are, so the share is a lower bound of the power.

First, each file of tests runs alone under `coverage`, which gives the lines that it executes, also in processes that it
starts; FILE keeps them. Then each change is planted in a copy of the checkout, and the files of tests that execute the
line run until one fails: first those in a folder of the package's name, then the others, the quickest first, as many as
take `--seconds` together without the change. A change is also noticed if the tests take eight times as long.
"""

import argparse
import ast
import copy
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import coverage

from tests.planted_bugs import REPOSITORY, environment, fails, in_copies

PACKAGES = ("attention", "objectives", "models", "training", "data")
KINDS = ("operator", "constant", "axis", "sign", "condition")
SURVIVOR, UNREACHED = "SURVIVES", "NOT EXECUTED"  # verdicts on changes that no test notices
START = 8.0  # seconds that a process of pytest takes before its first test
SWAPPED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one expression.

    kind: one of KINDS.
    file: the changed file, relative to the checkout.
    line: the first line of the expression.
    begin, end: the expression's first byte in the file, and the byte after its last.
    right, wrong: the texts before and after.
    """

    kind: str
    file: str
    line: int
    begin: int
    end: int
    right: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {' '.join(self.right.split())} -> {self.wrong}"


def _changed(node: ast.expr) -> tuple[str, ast.expr] | None:
    """Return the kind of change that fits an expression, and the changed expression; None if none fits."""
    new = copy.deepcopy(node)
    match new:
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in SWAPPED:
            if any(isinstance(side, ast.JoinedStr | ast.Constant) and not _is_number(side) for side in (left, right)):
                return None  # texts, and types such as `int | None`
            new.op = SWAPPED[type(operator)]()
            return "operator", new
        case ast.Constant(value=bool(value)):
            new.value = not value
            return "condition", new
        case ast.Constant(value=int(value) | float(value)):
            new.value = value + 1 if isinstance(value, int) else 2 * value or 1.0
            return "constant", new
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            return "sign", operand
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return "condition", operand
        case ast.Compare(ops=[operator]):
            new.ops = [SWAPPED[type(operator)]()]
            return "condition", new
        case ast.BoolOp(op=operator):
            new.op = SWAPPED[type(operator)]()
            return "condition", new
    return None


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _expressions(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    """Yield (kind, expression, changed expression) below a node, but not for messages, types and decorators."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Raise | ast.JoinedStr) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.keyword) and child.arg in ("axis", "axes") and _axis(child.value) is not None:
                yield "axis", child.value, ast.Constant(0 if _axis(child.value) else -1)
                continue
            if isinstance(child, ast.expr) and (change := _changed(child)):
                yield change[0], child, change[1]
                if change[0] == "operator" and isinstance(child, ast.BinOp) and isinstance(child.op, ast.Add | ast.Sub):
                    yield "sign", child, change[1]
            yield from _expressions(child)


def _axis(node: ast.expr) -> int | None:
    """Return the number of an axis that is written out, or None."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int) else None


def mutants(root: pathlib.Path, seed: int, count: int) -> list[Mutant]:
    """Return `count` changes of the modules of a checkout, as many of each kind, in random order."""
    sites: dict[str, list[Mutant]] = {kind: [] for kind in KINDS}
    for path in sorted(path for package in PACKAGES for path in (root / "ag_jax" / package).rglob("*.py")):
        text = path.read_bytes()
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for kind, node, new in _expressions(ast.parse(text)):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
            right, wrong = text[begin:end].decode(), f"({ast.unparse(ast.fix_missing_locations(new))})"
            sites[kind].append(Mutant(kind, str(path.relative_to(root)), node.lineno, begin, end, right, wrong))
    generator = random.Random(seed)
    chosen = [one for kind in KINDS for one in generator.sample(sites[kind], count // len(KINDS))]
    generator.shuffle(chosen)
    return chosen


@dataclasses.dataclass(frozen=True)
class Executed:
    """The lines of the program that a file of tests executes.

    seconds: its running time under coverage, alone, with the start of the process.
    lines: {file of the program: numbers of its lines}.
    """

    seconds: float
    lines: dict[str, list[int]]


def test_files(root: pathlib.Path) -> list[str]:
    """Return the files of tests that pytest collects by default."""
    command = [sys.executable, "-m", "pytest", "tests", "--collect-only", "-q", "-q"]
    done = subprocess.run(command, cwd=root, env=environment(root), capture_output=True, text=True, check=True)
    return sorted({line.rpartition(":")[0] for line in done.stdout.splitlines() if line.startswith("tests/")})


def executed(root: pathlib.Path, file: str) -> Executed:
    """Run a file of tests under coverage, alone, and return what it executes.

    Raises ValueError if a test fails.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "rc").write_text(
            f"[run]\nsource = ag_jax\nparallel = true\ndata_file = {folder}/data\npatch = subprocess, fork, _exit\n"
        )
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={folder}/rc", "-m", "pytest"]
        began = time.monotonic()
        done = subprocess.run([*command, "-q", "-p", "no:cacheprovider", file], cwd=root, env=environment(root))
        seconds = time.monotonic() - began
        if done.returncode:  # otherwise all changes that it executes would count as noticed
            raise ValueError(f"expected {file} to pass without a change, pytest ended with status {done.returncode}")
        lines: dict[str, set[int]] = {}
        for part in folder.glob("data.*"):
            data = coverage.CoverageData(str(part))
            try:
                data.read()
            except coverage.CoverageException:
                continue  # of a process that a test killed, or whose files it limited
            for path in data.measured_files():
                name = str(pathlib.Path(path).relative_to(root.resolve()))
                lines.setdefault(name, set()).update(data.lines(path) or ())
    return Executed(round(seconds, 1), {name: sorted(numbers) for name, numbers in sorted(lines.items())})


def measure(root: pathlib.Path, path: pathlib.Path, workers: int) -> dict[str, Executed]:
    """Return {file of tests: what it executes}, from a file, to which measurements that are missing are added."""
    stored = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    all_executed = {name: Executed(seconds, lines) for name, seconds, lines in stored}
    missing = [name for name in test_files(root) if name not in all_executed]
    with path.open("a") as file:
        for name, one in zip(missing, in_copies(root, workers, executed, missing), strict=True):
            all_executed[name] = one
            file.write(json.dumps([name, one.seconds, one.lines]) + "\n")
            file.flush()
    return all_executed


def by_module(root: pathlib.Path, all_executed: dict[str, Executed]) -> str:
    """Return a table of the share of each module's statements that the tests execute, and of packages."""
    lines: list[str] = []
    packages: dict[str, list[int]] = {}
    for path in sorted((root / "ag_jax").rglob("*.py")):
        name = str(path.relative_to(root))
        _, statements, _, _, _ = coverage.Coverage(data_file=None, config_file=False).analysis2(str(path))
        reached = {number for one in all_executed.values() for number in one.lines.get(name, ())}
        covered, total = len(reached.intersection(statements)), len(statements)
        package = name.split("/")[1]
        packages[package] = [a + b for a, b in zip(packages.get(package, (0, 0)), (covered, total), strict=True)]
        if total:
            lines.append(f"{covered / total:7.1%} {covered:6} of {total:6}  {name}")
    sums = [*packages.items(), ("all", [sum(pair) for pair in zip(*packages.values(), strict=True)])]
    return "\n".join(lines + [f"{a / b:7.1%} {a:6} of {b:6}  {name}" for name, (a, b) in sums if b])


def tests_of(mutant: Mutant, all_executed: dict[str, Executed], seconds: float) -> tuple[list[str], float]:
    """Return the files of tests that run for a change, in their order, and the time they take without it."""
    package = mutant.file.split("/")[1]
    lines = range(mutant.line, mutant.line + mutant.right.count("\n") + 1)
    covering = sorted(
        (not name.startswith(f"tests/{package}/"), one.seconds, name)
        for name, one in all_executed.items()
        if any(line in one.lines.get(mutant.file, ()) for line in lines)
    )
    files: list[str] = []
    total = START
    for _, cost, name in covering:
        cost = max(cost - START, 0.1)
        if files and total + cost > seconds:
            continue
        files.append(name)
        total += cost
    return files, total


def main() -> int:
    """Print for every change the test that noticed it, and the share that was noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=REPOSITORY, help="the checkout to copy")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of changes")
    parser.add_argument("--count", type=int, default=150, help="number of changes")
    parser.add_argument("--seconds", type=float, default=90.0, help="of tests for one change")
    parser.add_argument("--coverage", type=pathlib.Path, help="file of the lines that tests execute")
    parser.add_argument("--measure", action="store_true", help="only measure the coverage and print it by module")
    parser.add_argument("--workers", type=int, default=2, help="number of copies in which tests run side by side")
    parser.add_argument("--only", default="", help="numbers of changes, with commas")
    parser.add_argument("--list", action="store_true", help="print the changes and stop")
    options = parser.parse_args()
    root = options.root.resolve()
    changes = mutants(root, options.seed, options.count)
    numbers = [int(number) for number in options.only.split(",") if number] or range(1, len(changes) + 1)
    if options.list:
        print("\n".join(f"{number}. {changes[number - 1]}" for number in numbers))
        return 0
    if not options.coverage:
        parser.error("expected --coverage=FILE, in which the lines that tests execute are kept")
    all_executed = measure(root, options.coverage, options.workers)
    if options.measure:
        print(by_module(root, all_executed))
        return 0

    def judge(checkout: pathlib.Path, number: int) -> str:
        change = changes[number - 1]
        files, seconds = tests_of(change, all_executed, options.seconds)
        if not files:
            return UNREACHED
        content = (checkout / change.file).read_bytes()
        content = content[: change.begin] + change.wrong.encode() + content[change.end :]
        return fails(checkout, files, {change.file: content}, 8 * seconds) or SURVIVOR

    noticed = 0
    for number, verdict in zip(numbers, in_copies(root, options.workers, judge, numbers), strict=True):
        noticed += verdict not in (SURVIVOR, UNREACHED)
        print(f"{number}. {changes[number - 1]}: {verdict}", flush=True)
    print(f"{noticed} of {len(numbers)} changes noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

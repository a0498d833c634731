"""Run tests and print what each file costs: CPU time, compilation, and processes that it starts.

    python -m tests.cost                               # the tests of `bash launch/test.sh`
    python -m tests.cost --tests=50 tests/training     # other tests, and the 50 that take the most CPU time
    python -m tests.cost --read=FILE                   # a table of measurements that were stored with --store=FILE

CPU time is that of the test's process and of its children that have ended, from set-up to tear-down; what tests share
is counted with the first that needs it. Seconds of compilation are those of tracing, lowering and XLA, without what is
read from a cache. Nothing else should run meanwhile.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
STORE = "AG_JAX_TEST_COST"  # environment variable: the file to which the plugin appends its measurements
COMPILATION = "/jax/core/compile/"  # prefix of the events of jax.monitoring
BACKEND = f"{COMPILATION}backend_compile_duration"
PROCESSES = ("subprocess.Popen", "os.fork", "os.posix_spawn")  # events of sys.addaudithook


@dataclasses.dataclass
class Cost:
    """The cost of some tests; costs can be added.

    tests: number of tests.
    wall: seconds.
    cpu: seconds of CPU time, of the process and its children.
    compiling: seconds of tracing, lowering and compilation.
    programs: number of programs that XLA compiled.
    processes: number of processes that were started.
    """

    tests: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    compiling: float = 0.0
    programs: int = 0
    processes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Cost(*(mine + its for mine, its in pairs))

    def __sub__(self, other: "Cost") -> "Cost":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Cost(*(mine - its for mine, its in pairs))


class Meter:
    """Pytest plugin that appends the cost of each test to a file, as lines of JSON: [name of the test, *fields]."""

    def __init__(self, path: str):
        import jax.monitoring

        self._path = path
        self._compiling, self._programs, self._processes = 0.0, 0, 0
        jax.monitoring.register_event_duration_secs_listener(self._compiled)
        sys.addaudithook(self._started)

    def _compiled(self, event: str, seconds: float, **_) -> None:
        if event.startswith(COMPILATION):
            self._compiling += seconds
            self._programs += event == BACKEND

    def _started(self, event: str, _) -> None:
        self._processes += event in PROCESSES

    def _reading(self) -> Cost:
        cpu = sum(os.times()[:4])
        return Cost(0, time.monotonic(), cpu, self._compiling, self._programs, self._processes)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure one test with its set-up and tear-down."""
        before = self._reading()
        result = yield
        cost = self._reading() - before
        with open(self._path, "a") as file:
            file.write(json.dumps([item.nodeid, 1, *dataclasses.astuple(cost)[1:]]) + "\n")
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Measure, unless this process only distributes tests to others."""
    is_distributor = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if os.environ.get(STORE) and not is_distributor:
        config.pluginmanager.register(Meter(os.environ[STORE]))


def read(path: pathlib.Path) -> dict[str, Cost]:
    """Return {name of a test: its cost} from a file that `Meter` wrote."""
    return {name: Cost(*fields) for name, *fields in map(json.loads, path.read_text().splitlines())}


def table(costs: Iterable[tuple[str, Cost]], key: Callable[[str], str], most: int | None = None) -> str:
    """Return a table of costs, most CPU time first, with the sum in its last line.

    costs: names of tests, and their costs.
    key: the name of the line that a test belongs to.
    most: number of lines; None for all.
    """
    sums: dict[str, Cost] = collections.defaultdict(Cost)
    for name, cost in costs:
        sums[key(name)] += cost
    lines = sorted(sums.items(), key=lambda pair: -pair[1].cpu)[:most]
    lines.append(("all", sum(sums.values(), Cost())))
    return "\n".join(
        [f"{'CPU s':>8} {'wall s':>8} {'compiling':>9} {'programs':>8} {'processes':>9} {'tests':>6}"]
        + [
            f"{cost.cpu:8.1f} {cost.wall:8.1f} {cost.compiling:9.1f} {cost.programs:8} {cost.processes:9} "
            f"{cost.tests:6}  {name}"
            for name, cost in lines
        ]
    )


def main() -> int:
    """Run tests with the plugin and print tables of files and of tests; return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=20, help="number of tests in the second table")
    parser.add_argument("--store", type=pathlib.Path, help="keep the measurements in this file")
    parser.add_argument("--read", type=pathlib.Path, help="print tables of this file, and run nothing")
    options, arguments = parser.parse_known_args()
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        path = options.read or options.store or pathlib.Path(folder, "costs.jsonl")
        if not options.read:
            path.unlink(missing_ok=True)
            addopts = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p tests.cost"
            environment = os.environ | {STORE: str(path.resolve()), "PYTEST_ADDOPTS": addopts}
            command = ["bash", "launch/test.sh", *arguments]
            status = subprocess.run(command, cwd=REPOSITORY, env=environment).returncode
        costs = read(path)
    print(table(costs.items(), lambda name: name.partition("::")[0]))
    print(table(costs.items(), lambda name: name, options.tests))
    return status


if __name__ == "__main__":
    sys.exit(main())

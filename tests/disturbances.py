"""Kill, stop and starve commands that train, run them again, and compare the results.

    python -m tests.disturbances --kills=20 --seed=0     # seeded; pytest does not collect it
    python -m tests.disturbances --only=full-train       # only cases whose names begin with this
    python -m tests.disturbances --list                  # print the names of the cases and stop

The commands are `train`, a fine-tuning `suite` and `compare`, of which all cases are tried, and `search` with a rung
and a `branch` of another run, which are killed alone:

    kill-COMMAND-N           `kill -9` after a random share of the undisturbed time; a third kills the resumed run, too
    term-COMMAND-PHASE       SIGTERM while preparing text, compiling, saving a checkpoint, or validating
    limit-COMMAND-PHASE      from this phase on, no file may grow beyond 8 KiB
    full-COMMAND-PHASE       from this phase on, the disk is full: a small tmpfs; skipped where none can be mounted
    directory-COMMAND        three processes in one directory share the work; of `train`, two end with a message
    cache-COMMAND-N          three processes in three directories build one cache; from N = 1 on, one of them is killed

Each disturbed command must end with the documented exit status and without a traceback, and lose nothing that was saved
before: checkpoints, rows of metrics with their clock, epochs and results of trials. The same command, run again, must
then leave what an undisturbed one leaves: the same files; bit for bit the same checkpoints; rows of metrics,
predictions and JSON files that are equal but for the clock. Every case has a cache and a directory of its own.

The moments depend on the seed, but what they hit depends on the machine, so a finding may need some repetitions. The
table at the end has one line for each finding. The exit status is 1 if there are findings.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

from etils import epath

from ag_jax.distributed import interruption
from ag_jax.training.checkpoint import FINGERPRINT, PROGRESS, Checkpoints, steps_in
from ag_jax.training.fingerprint import paths
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests import commands
from tests import results as stored
from tests.finetuning import tiny_tasks

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PHASES = ("preparing", "compiling", "saving", "validating")
SECONDS = 240  # that a command may take; many, because other processes may be busy
FILE_LIMIT = 8 * 2**10  # bytes: enough for messages and configs, too little for checkpoints
DISK = "24m"  # the size of the tmpfs
AGAIN = "To go on, run the same command again"
WORDS = "the house of our union is strong and we will build roads . they said no ; he went home early .".split()
SUITE = """
from ag_jax.settings import schema
from ag_jax.finetuning.config import FinetuningConfig, Recipe

def get_config():
    config = schema.default(FinetuningConfig)
    config.checkpoint, config.data, config.seeds = {model!r}, {data!r}, (0, 1)
    config.tasks["sst2"] = schema.default(Recipe)
    config.tasks["sst2"].update(epochs=4, max_length=16, batch_sizes=(4,), learning_rates=(1e-3, 1e-2))
    return config
"""
SEARCH = """
from ag_jax.settings import config_files
from ag_jax.settings.config_files import OneOf

def get_config(*, arm: OneOf("ag", "plain") = "ag"):
    config = config_files.read(f"quickstart:arm={arm}")
    rates = {"optimizer": {"learning_rate": (1e-3, 4e-3)}}
    config.search.grids = {"plain": rates, "ag": rates}
    config.search.update(steps=20, rungs=(0.5,))
    return config
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A failure of a case, with a description and the output of the command."""

    case: str
    happened: str
    detail: str = ""


@dataclasses.dataclass
class Case:
    """A case that is being run.

    folder: a folder with the case's own run directories and caches.
    findings: the failures so far.
    """

    name: str
    command: "Command"
    folder: pathlib.Path
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def expect(self, condition: object, happened: str, done: commands.Finished | None = None) -> None:
        """Record a finding unless the condition holds."""
        if not condition:
            detail = f"exit status {done.returncode}\n{done.stdout}{done.stderr}" if done else ""
            self.findings.append(Finding(self.name, happened, detail))

    def start(self, directory: str = "run", compiled: str = "compiled") -> commands.Running:
        """Start the command with a run directory, cache and compilation cache in this case's folder."""
        environment = {
            "AG_JAX_CACHE": str(self.folder / "cache"),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / compiled),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        workdir = f"--workdir={self.folder / directory}"
        return commands.Running([*self.command.arguments, workdir], environment=environment)

    def resume(self, *moments: "Saved", directory: str = "run") -> None:
        """Run the same command to its end, and compare its files with those of an undisturbed run and of `moments`."""
        done = self.start(directory).wait(SECONDS)
        self.expect(done.returncode == 0, "the same command, run again, fails", done)
        self.expect("Traceback" not in done.stderr, "the same command, run again, prints a traceback", done)
        for lost in (lost for saved in moments for lost in saved.lost(self.folder / directory)):
            self.expect(False, f"lost: {lost}", done)
        self.compare(directory, done)

    def compare(self, directory: str = "run", done: commands.Finished | None = None) -> None:
        """Record findings for files that differ from those of an undisturbed run."""
        found, expected = content(self.folder / directory), self.command.undisturbed
        for name in sorted(found.keys() | expected.keys()):
            if name not in expected or name not in found:
                self.expect(False, f"{name} is {'left over' if name in found else 'missing'}", done)
            else:
                self.expect(found[name] == expected[name], f"{name} differs from the undisturbed one", done)


@dataclasses.dataclass
class Command:
    """A command, with the result of an undisturbed run.

    arguments: the command-line arguments after `ag-jax`.
    part: the folder below the run directory in which phases are detected.
    validated_every: steps from one validation to the next.
    undisturbed: the `content` of the directory of an undisturbed run.
    seconds: the time of an undisturbed run without and with compiled programs from an earlier run.
    """

    name: str
    arguments: list[str]
    part: str
    validated_every: int
    undisturbed: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: tuple[float, float] = (0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Saved:
    """The results in a directory that must not be lost.

    rows: rows of metrics of each run, up to its newest checkpoint.
    epochs: epochs of each trial that are in its newest checkpoint.
    files: contents of summaries and results, which are written last.
    """

    rows: dict[str, list[dict[str, Any]]]
    epochs: dict[str, list[dict[str, Any]]]
    files: dict[str, bytes]

    @classmethod
    def of(cls, workdir: pathlib.Path) -> "Saved":
        """Read the saved results of a directory in its present state."""
        rows, epochs = {}, {}
        for directory in workdir.rglob("checkpoints"):
            steps = finished_steps(directory)
            if not steps:
                continue
            name = directory.parent.relative_to(workdir).as_posix()
            progress = read_progress(directory, steps[-1])
            if "epochs" in progress:
                epochs[name] = progress["epochs"]
            elif (directory.parent / "metrics.jsonl").exists():
                rows[name] = [row for row in read_metrics(epath.Path(directory.parent)) if row["step"] <= steps[-1]]
        kept = list(workdir.rglob("result.json"))
        return cls(rows, epochs, {path.relative_to(workdir).as_posix(): path.read_bytes() for path in kept})

    def lost(self, workdir: pathlib.Path) -> Iterator[str]:
        """Yield the saved results that are missing or were computed again, as their clock fields show."""
        for name, rows in self.rows.items():
            there = (workdir / name / "metrics.jsonl").exists()
            if not there or read_metrics(epath.Path(workdir / name))[: len(rows)] != rows:
                yield f"rows of {name}/metrics.jsonl up to the checkpoint of step {rows[-1]['step'] if rows else 0}"
        for name, epochs in self.epochs.items():
            path = workdir / name / "result.json"
            if not path.exists() or stored.facts(path.parent)["epochs"][: len(epochs)] != epochs:
                yield f"{len(epochs)} saved epochs of {name}"
        for name, data in self.files.items():
            if not (workdir / name).exists() or (workdir / name).read_bytes() != data:
                yield name


def finished_steps(directory: pathlib.Path) -> list[int]:
    """Return the steps of the checkpoints that are complete."""
    steps = steps_in(epath.Path(directory))
    return [step for step in steps if (directory / str(step) / "_CHECKPOINT_METADATA").exists()]


def read_progress(directory: pathlib.Path, step: int) -> dict[str, Any]:
    """Read the metadata of a checkpoint, which include a fingerprint of every array, also of the optimizer's."""
    return json.loads((directory / str(step) / "progress" / "metadata").read_text())


def content(workdir: pathlib.Path) -> dict[str, Any]:
    """Return the files of a directory by path: without clock fields; of figures and pages only that they exist."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in workdir.rglob("*") if path.is_file()):
        inside = path.relative_to(workdir)
        if {"checkpoints", "tensorboard", "figures"} & set(inside.parts[:-1]):
            continue
        if path.suffix == ".json":
            content = stored.facts(path.parent) if path.name == "result.json" else json.loads(path.read_text())
            found[inside.as_posix()] = without_clock(dict(content))
        elif path.name == "metrics.jsonl":
            found[inside.as_posix()] = without_clock(read_metrics(epath.Path(path.parent)))
        else:
            found[inside.as_posix()] = path.suffix == ".md" or path.read_bytes()
    for folder in ("checkpoints", "figures"):
        for directory in workdir.rglob(folder):
            names = sorted(path.name for path in directory.iterdir())
            found[f"{directory.relative_to(workdir).as_posix()}/"] = names
    for directory in workdir.rglob("checkpoints"):
        step = finished_steps(directory)[-1]
        name = f"{directory.relative_to(workdir).as_posix()}/{step}"
        progress = read_progress(directory, step) | {"rows": None}
        del progress[FINGERPRINT][PROGRESS]  # of clock fields, too
        found[f"{name}/progress"] = without_clock(progress)
        checkpoints = Checkpoints(epath.Path(directory), read_only=True)
        params = paths(checkpoints.restore_params(step))
        checkpoints.close()
        found[f"{name}/params"] = {key: (leaf.shape, leaf.tobytes()) for key, leaf in params.items()}
    return found


def without_clock(value: Any) -> Any:
    """Return a JSON value without the fields that depend on the clock."""
    if isinstance(value, dict):
        return {key: without_clock(item) for key, item in value.items() if key not in CLOCK_FIELDS}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


# The phases, detected from the output of a command and from its files.


def is_preparing(case: Case, running: commands.Running) -> bool:
    """Return whether a tokenizer is being trained or text tokenised.

    A suite has no cache: whether it reads its checkpoint and its tasks, before it claims its directory.
    """
    if case.command.name == "suite":
        time.sleep(0.3)  # until it handles signals
        return not (case.folder / "run" / "config.json").exists()
    return any((case.folder / "cache").glob("*.partial-*"))


def is_compiling(case: Case, running: commands.Running) -> bool:
    """Return whether the run is about to be trained, but has not been trained yet."""
    if case.command.name == "suite":
        return "trials start from" in running.stderr and not any((case.folder / "run").rglob("metrics.jsonl"))
    compiling = running.stderr.count("compiling the step")
    return compiling == (2 if case.command.part else 1) and not checkpoints_begun(case)


def checkpoints_begun(case: Case) -> list[pathlib.Path]:
    """Return the checkpoints of the command's `part`, unfinished checkpoints included."""
    return list((case.folder / "run" / case.command.part).rglob("checkpoints/*"))


def is_saving(case: Case, running: commands.Running) -> bool:
    """Return whether a checkpoint is being written, in its temporary directory."""
    return any("tmp" in path.name for path in checkpoints_begun(case))


def is_validating(case: Case, running: commands.Running) -> bool:
    """Return whether a validation is due: the last row of metrics is of a training step before a validation."""
    for path in (case.folder / "run" / case.command.part).rglob("metrics.jsonl"):
        with contextlib.suppress(ValueError):
            rows = read_metrics(epath.Path(path.parent))
            if rows and rows[-1]["split"] == "train" and rows[-1]["step"] % case.command.validated_every == 0:
                return True
    return False


REACHED = dict(zip(PHASES, (is_preparing, is_compiling, is_saving, is_validating), strict=True))


def wait_for_phase(case: Case, running: commands.Running, phase: str) -> bool:
    """Wait for a phase to begin; return whether it was seen before the command ended."""
    deadline = time.monotonic() + SECONDS
    while running.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):  # a listed file may vanish
            if REACHED[phase](case, running):
                return True
        time.sleep(0.001)
    return False


# The cases.


def kill(case: Case, seed: int, compiled: pathlib.Path) -> None:
    """Kill the command with SIGKILL at one or two random moments, then resume it."""
    chosen = random.Random(f"{seed} {case.name}")
    cold = chosen.random() < 0.25
    if not cold:
        shutil.copytree(compiled, case.folder / "compiled")
    seconds = case.command.seconds[0 if cold else 1]
    moments = []
    for share in [chosen.random() for _ in range(chosen.choice((1, 1, 2)))]:
        running = case.start()
        time.sleep(share * seconds)
        running.kill()
        done = running.wait()
        case.expect(done.returncode in (-signal.SIGKILL, 0), f"fails before it is killed ({share:.0%})", done)
        moments.append(Saved.of(case.folder / "run"))
    case.resume(*moments)


def terminate(case: Case, phase: str) -> None:
    """Send SIGTERM in a phase, then resume the command."""
    running = case.start()
    seen = wait_for_phase(case, running, phase)
    if seen:
        running.send_signal(signal.SIGTERM)
    done = running.wait(SECONDS)
    case.expect(seen, "the phase was not seen", done)
    if seen:
        case.expect(done.returncode == interruption.AGAIN, f"SIGTERM: exit status {done.returncode}", done)
        case.expect(AGAIN in done.stderr, "SIGTERM: does not say how to go on", done)
        case.expect("Traceback" not in done.stderr, "SIGTERM: a traceback", done)
    partial = list((case.folder / "cache").glob("*.partial-*"))
    case.expect(not partial, f"SIGTERM: {len(partial)} unfinished directories stay in the cache", done)
    if "stopped at step" in done.stderr and case.command.name != "suite":
        run = case.folder / "run" / case.command.part
        steps = finished_steps(run / "checkpoints") or [-1]
        last = read_metrics(epath.Path(run))[-1]["step"]
        case.expect(last <= steps[-1], f"SIGTERM: trained to step {last}, saved to step {steps[-1]}", done)
    case.resume(Saved.of(case.folder / "run"))


def limit(case: Case, phase: str) -> None:
    """Limit the size of files from a phase on, then resume the command."""
    starve(case, phase, _limited)


def full(case: Case, phase: str) -> None:
    """Fill the disk from a phase on, then resume the command."""
    starve(case, phase, _filled)


@contextlib.contextmanager
def _limited(case: Case, running: commands.Running) -> Iterator[None]:
    _, hard = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (FILE_LIMIT, hard))  # Python ignores SIGXFSZ
    yield


@contextlib.contextmanager
def _filled(case: Case, running: commands.Running) -> Iterator[None]:
    filler = case.folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    yield
    filler.unlink()


def starve(case: Case, phase: str, starved: Callable[[Case, commands.Running], Any]) -> None:
    """Remove the free space in a phase, while the command is halted; restore it afterwards and resume the command."""
    running = case.start(compiled="../compiled-elsewhere")
    seen = wait_for_phase(case, running, phase)
    if seen:
        running.send_signal(signal.SIGSTOP)
    with starved(case, running) if seen else contextlib.nullcontext():
        if seen:
            saved = Saved.of(case.folder / "run")
            running.send_signal(signal.SIGCONT)
        done = running.wait(SECONDS)
    case.expect(seen, "the phase was not seen", done)
    if not seen:
        return
    verb = case.command.arguments[0]
    case.expect(done.returncode == 1, f"no space: exit status {done.returncode}, not 1", done)
    case.expect(done.stderr.count(f"ag-jax {verb}: ") == 1, "no space: not one message", done)
    case.expect("Traceback" not in done.stderr, "no space: a traceback", done)
    partial = list((case.folder / "cache").glob("*.partial-*"))
    case.expect(not partial, f"no space: {len(partial)} unfinished directories stay in the cache", done)
    case.resume(saved)


def same_directory(case: Case) -> None:
    """Start three processes in one directory."""
    ended = [running.wait(SECONDS) for running in [case.start() for _ in range(3)]]
    statuses = sorted(done.returncode for done in ended)
    wanted = [0, 1, 1] if case.name == "directory-train" else [0, 0, 0]  # the others share the work
    case.expect(statuses == wanted, f"three in one directory end with {statuses}", ended[0])
    for done in ended:
        if done.returncode:
            case.expect("is in use by process" in done.stderr, "does not say who has the directory", done)
            case.expect(len(done.stderr.splitlines()) <= 2, "more than one message", done)
    case.compare()


def same_cache(case: Case, seed: int, number: int) -> None:
    """Start three processes that build one cache; if `number` is positive, kill one of them."""
    chosen = random.Random(f"{seed} {case.name}")
    running = [case.start(f"run{index}", compiled=f"compiled{index}") for index in range(3)]
    if number:
        wait_for_phase(case, running[0], "preparing")
        time.sleep(0.3 * chosen.random())
        running[0].kill()
    for index, one in enumerate(running):
        done = one.wait(SECONDS)
        if number and index == 0:
            case.resume(directory="run0")
            continue
        case.expect(done.returncode == 0, "one of three builders fails", done)
        case.expect("Traceback" not in done.stderr, "one of three builders prints a traceback", done)
        case.compare(f"run{index}", done)


# The commands, and their inputs.


def make_commands(folder: pathlib.Path) -> list[Command]:
    """Write a text, a model, a task and a run to branch from below `folder`; return the commands that use them."""
    chosen = random.Random(1)
    lines = [" ".join(chosen.choices(WORDS, k=9)).capitalize() + "." for _ in range(2000)]
    (folder / "text.txt").write_text("\n".join(lines))
    (folder / "tasks").mkdir()
    (folder / "model").mkdir()
    in_a_child(lambda: (tiny_tasks.write(folder / "tasks"), tiny_tasks.checkpoint(folder / "model")), folder)
    suite = folder / "suite.py"
    suite.write_text(SUITE.format(model=str(folder / "model" / "run"), data=str(folder / "tasks")))
    settings = {
        "data.source": folder / "text.txt",
        "data.sequence_length": 16,
        "data.tokenizer.vocabulary_size": 300,
        "model.layers": 2,
        "model.width": 12,
        "model.heads": 6,
        "training.batch_size": 4,
        "training.log_every": 1,
        "training.evaluate_every": 25,  # the step after it, at which a stopped run saves, has no checkpoint otherwise
        "training.checkpoint_every": 7,
        "guidance.fraction": 1.0,
        "optimizer.warmup_steps": 0,
    }

    def arguments(config: pathlib.Path = REPOSITORY / "configs" / "quickstart.py", **more: Any) -> list[str]:
        flags = settings | {key.replace("__", "."): value for key, value in more.items()}
        return [f"--config={config}", *(f"--config.{key}={value}" for key, value in flags.items())]

    search = folder / "search.py"
    search.write_text(SEARCH)
    constant = arguments(training__steps=40, training__keep_every=21, optimizer__decay="constant")
    stable = Command("stable", ["train", *constant], "", 25)
    case = Case("stable", stable, folder / "stable")
    case.folder.mkdir()
    case.expect((done := case.start().wait(SECONDS)).returncode == 0, "fails", done)
    return [
        Command("search", ["search", *arguments(search)], "", 25),
        Command(
            "branch",
            [
                "train",
                *arguments(training__steps=60, training__branch_from=f"{case.folder / 'run'}:21"),
                *("--config.training.keep_every=21", "--config.optimizer.decay_steps=10"),
            ],
            "",
            25,
        ),
        Command("train", ["train", *arguments(training__steps=60)], "", 25),
        Command("suite", ["finetune", f"--config={suite}"], "sst2", 6),
        Command("compare", ["compare", *arguments(training__steps=40, comparison__seeds="(0,)")], "ag-seed0", 25),
    ]


def in_a_child(work: Callable[[], Any], folder: pathlib.Path) -> None:
    """Call `work` in a child process with its own cache, because this process must not start JAX."""

    def with_own_cache() -> None:
        os.environ["AG_JAX_CACHE"] = str(folder / "cache")
        work()

    commands.in_a_child(with_own_cache)


def run_undisturbed(command: Command, folder: pathlib.Path) -> list[Finding]:
    """Run the command twice, the second time with compiled programs, and store its files and times in it."""
    seconds = []
    for number in range(2):
        (folder / str(number)).mkdir(parents=True)
        case = Case(f"undisturbed-{command.name}", command, folder / str(number))
        began = time.monotonic()
        done = case.start(compiled="../compiled").wait(SECONDS)
        seconds.append(time.monotonic() - began)
        if done.returncode:
            raise SystemExit(f"{command.name} fails undisturbed:\n{done.stderr}")
        if number == 0:
            command.undisturbed = content(case.folder / "run")
        case.compare(done=done)
    command.seconds = (seconds[0], seconds[1])
    return case.findings


@contextlib.contextmanager
def tmpfs(folder: pathlib.Path) -> Iterator[bool]:
    """Mount a small disk at `folder`; yield whether that succeeded."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = bool(shutil.which("mount")) and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def all_cases(kills: int, seed: int, compiled: pathlib.Path) -> dict[str, tuple[str, Callable[[Case], None]]]:
    """Return the name of the command and the function of each case, by case name."""
    cases: dict[str, tuple[str, Callable[[Case], None]]] = {}
    for command in ("train", "suite", "compare", "search", "branch"):
        for number in range(kills):
            cases[f"kill-{command}-{number}"] = (
                command,
                functools.partial(kill, seed=seed, compiled=compiled / command / "compiled"),
            )
    for command in ("train", "suite", "compare"):
        for phase in PHASES:
            for kind, function in (("term", terminate), ("limit", limit), ("full", full)):
                if (command, phase) != ("suite", "preparing") or kind != "limit":  # a suite writes no large file then
                    cases[f"{kind}-{command}-{phase}"] = command, functools.partial(function, phase=phase)
        cases[f"directory-{command}"] = command, same_directory
        for number in range(3 if command != "suite" else 0):  # a suite builds no cache
            cases[f"cache-{command}-{number}"] = command, functools.partial(same_cache, seed=seed, number=number)
    return cases


def run_case(name: str, command: Command, run: Callable[[Case], None], folder: pathlib.Path) -> list[Finding] | None:
    """Run a case and return its findings; None if it is skipped."""
    place = folder / "case"
    place.mkdir()
    case = Case(name, command, place)
    try:
        if not name.startswith("full-"):
            run(case)
        else:
            with tmpfs(place) as mounted:
                if not mounted:
                    return None
                run(case)
    except AssertionError as still_running:
        case.findings.append(Finding(name, f"does not end within {SECONDS} s", str(still_running)))
    except Exception:
        case.expect(False, "the case itself fails: " + traceback.format_exc())
    finally:
        shutil.rmtree(place)
    return case.findings


def main() -> int:
    """Run the cases and print the findings; return 0 if there are none, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="number of kills of each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="beginnings of names of cases, with commas")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    options = parser.parse_args()
    began, findings, skipped = time.monotonic(), [], []
    with tempfile.TemporaryDirectory(prefix="disturbances-") as name:
        folder = pathlib.Path(name).resolve()
        cases = all_cases(options.kills, options.seed, folder / "undisturbed")
        cases = {name: case for name, case in cases.items() if name.startswith(tuple(options.only.split(",")))}
        if options.list:
            print(*cases, sep="\n")
            return 0
        by_name = {command.name: command for command in make_commands(folder)}
        for command in dict.fromkeys(command for command, _ in cases.values()):
            findings += run_undisturbed(by_name[command], folder / "undisturbed" / command)
            cold, warm = by_name[command].seconds
            print(f"{command}: {cold:.1f} s undisturbed, {warm:.1f} s when compiled", file=sys.stderr, flush=True)
        for number, (case, (command, run)) in enumerate(cases.items(), 1):
            found = run_case(case, by_name[command], run, folder)
            skipped += [case] if found is None else []
            findings += found or []
            told = "; ".join(one.happened for one in found or [])
            told = "skipped: no tmpfs can be mounted here" if found is None else told or "passed"
            seconds = time.monotonic() - began
            print(f"{number} of {len(cases)}, {seconds:.0f} s, {case}: {told}", file=sys.stderr, flush=True)
    for found in findings:
        print(f"{found.case} | {found.happened}")
        if options.only:
            print(found.detail)
    seconds = time.monotonic() - began
    print(f"{len(findings)} findings in {len(cases) - len(skipped)} cases ({len(skipped)} skipped), {seconds:.0f} s")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())

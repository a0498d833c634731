"""Random command lines, each in a process of `tests.commands`."""

import collections
import dataclasses
import filecmp
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence

from ag_jax.distributed import interruption
from ag_jax.settings import config_files, schema
from tests import commands
from tests.fuzz import cases
from tests.fuzz.cases import Finding
from tests.goldens import make, reading

WALL_SECONDS = 300  # of a command; many, because other processes may be busy
ADDRESSES = 8 * 2**30  # bytes of addresses that a command may reserve
STATUSES = (0, 1, 2, interruption.AGAIN)
RUNS = ("finished", "interrupted", "adversarial", "imported", "comparison/ag-seed3")
BYTES = os.fsdecode(b"\xff\xfe\xe9")  # as the system hands over an argument that is not UTF-8
NONSENSE = ("", *"none -1 0 0.5 nan inf".split(), "9" * 20, *"1000000000 1073741824 1e9 1e400 (1, ()".split(), "(1, 2)")
NONSENSE += ("abc", "x" * 400, "{}", "é", BYTES, "\n")
SENTENCE = "--text=The union is strong."

PRETRAINING, TUNING = "--config=configs/pretraining.py", "--config=configs/finetuning.py"
# Each verb with command lines that are right.
RIGHT: dict[str, tuple[tuple[str, ...], ...]] = {
    "train": (
        (f"{PRETRAINING}:arm=ag", "--workdir=finished"),
        (PRETRAINING, "--workdir=interrupted"),
        (f"{PRETRAINING}:arm=plain", "--workdir=new", "--config.training.steps=3"),
        (f"{PRETRAINING}:arm=asa", "--workdir=adversarial"),
    ),
    "compare": (
        (PRETRAINING, "--workdir=comparison", *(f"--config.{key}={of}" for key, of in reading.COMPARED.items())),
    ),
    "evaluate": tuple((f"--workdir={name}",) for name in RUNS[:3]),
    "finetune": (
        (f"{TUNING}:points=2", "--workdir=suite"),
        (f"{TUNING}:points=2", "--workdir=suite"),
        (f"{TUNING}:keep=best", "--workdir=trial_kept"),
    ),
    "inspect": tuple((f"--workdir={name}", SENTENCE) for name in RUNS),
    "prepare": ((PRETRAINING,),),
    "tokenizer": ((PRETRAINING, "--workdir=new", SENTENCE),),
    "plan": ((PRETRAINING, "--topology=v5e:2x2"), (PRETRAINING, "--topology=v4-8")),
    "import": (("--from=exported", "--workdir=new"), ("--from=huggingface/classifier", "--workdir=new")),
    "export": (
        ("--to=new", "--workdir=finished"),
        ("--to=new", f"--workdir=trial_kept/{reading.TRIAL}", "--dtype=bfloat16"),
    ),
    "help": (("train",), ("configs/pretraining.py",), ("training.steps",)),
}
FLAGS = tuple("workdir step text topology from to expect dtype license encoder config search_batch".split())
PATHS = ("/nowhere/at/all", "finished/config.json", "text", "exported", ".", "")
PATHS += ("special/loop", "special/dangling", "finished/checkpoints", BYTES)
SOURCES = tuple(f"special/{name}" for name in ("fifo", "loop", "dangling", "empty.txt", "folder"))
SOURCES += ("/dev/stdin", "/dev/null", "tfds:x", *PATHS)
LONG = ("training.steps", "training.wandb")  # settings of which many values are right, and take hours or a network


def limit_memory() -> None:
    """Let the command reserve `ADDRESSES` bytes at most: beyond, it gets a MemoryError or ends."""
    resource.setrlimit(resource.RLIMIT_AS, (cases.memory("VmSize") + ADDRESSES, resource.RLIM_INFINITY))


def run_command(arguments: Sequence[str], here: pathlib.Path) -> commands.Finished:
    """`ag-jax ARGUMENTS` in the folder `here`; one that hangs is killed, with the exit status -9."""
    running = commands.Running(arguments, cwd=here, before=limit_memory)
    try:
        return running.wait(WALL_SECONDS)
    except AssertionError:
        return commands.Finished(-signal.SIGKILL, running.stdout, running.stderr)


def judge(ended: commands.Finished) -> str:
    """What is wrong with how a command ended; nothing if all is in order."""
    if ended.returncode == -signal.SIGKILL:
        return f"killed, after {WALL_SECONDS} seconds or for its memory"
    if ended.returncode < 0:
        return f"ended by {signal.Signals(-ended.returncode).name}"
    if ended.returncode not in STATUSES:
        return f"exit status {ended.returncode}"
    if cases.TRACE in ended.stderr:
        kind = ended.stderr.strip().splitlines()[-1].partition(":")[0]
        return f"a traceback, status {ended.returncode}: {kind[:100]}"
    messages = [line for line in ended.stderr.splitlines() if line.startswith("ag-jax")]
    if ended.returncode and len(messages) != 1:
        return f"status {ended.returncode} with {len(messages)} messages that begin with ag-jax"
    if ended.returncode and len(messages[0]) > cases.LONGEST:
        return f"a message of {len(messages[0]):,} characters"
    return ""


@dataclasses.dataclass
class Commands:
    """The cases of command lines in the working directory `here`, of which `kept` is an undamaged copy."""

    here: pathlib.Path
    kept: pathlib.Path
    seed: int
    statuses: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def run(self, numbers: Sequence[int]) -> Iterator[Finding | None]:
        """All cases."""
        for number in numbers:
            yield self._run(number)
        if numbers:
            print(f"exit statuses: {dict(self.statuses)}", file=sys.stderr)

    def _run(self, number: int) -> Finding | None:
        arguments, wrong = self.line(number)
        self._renew()
        ended = run_command(arguments, self.here)
        self.statuses[ended.returncode] += 1
        happened = judge(ended)
        if not happened and wrong and ended.returncode == 0:
            happened = f"status 0, although {wrong}"
        if not happened and ended.returncode != 0 and (lost := self._changed()):
            happened = f"failed and changed {lost}"
        if not happened:
            return None
        shown = " ".join(arguments).encode(errors="backslashreplace").decode()
        change = shown.replace(10 * "x", "")[:300]
        return Finding(f"C{number}", "command", change, happened, f"{ended.stdout}\n{ended.stderr}")

    def _renew(self) -> None:
        os.chdir("/")
        shutil.rmtree(self.here)
        shutil.copytree(self.kept, self.here)
        os.chdir(self.here)
        special = pathlib.Path("special")
        (special / "folder" / "deep").mkdir(parents=True)
        os.mkfifo(special / "fifo")
        (special / "loop").symlink_to("loop")
        (special / "dangling").symlink_to("nowhere")
        (special / "folder" / "deep" / "up.txt").symlink_to("..")
        (special / "empty.txt").touch()

    def _changed(self) -> str:
        """The first file of the goldens that is not what it was."""
        for path in (path for name in make.KINDS for path in sorted((self.kept / name).rglob("*")) if path.is_file()):
            now = self.here / path.relative_to(self.kept)
            if not now.exists() or not filecmp.cmp(path, now, shallow=False):
                return str(path.relative_to(self.kept))
        return ""

    def line(self, number: int) -> tuple[list[str], str]:
        """The arguments of a case, and why they must be rejected; nothing if they may be right."""
        rng = random.Random(f"{self.seed}/command/{number}")
        verb = rng.choice(list(RIGHT))
        flags = list(rng.choice(RIGHT[verb]))
        reasons = {}  # of the flag that an edit has added
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            if reason := rng.choice(EDITS)(rng, flags):
                reasons[flags[-1]] = reason
        wrong = next((reason for flag, reason in reasons.items() if flag in flags), "")
        if rng.random() < 0.04:
            verb = rng.choice(("trian", "", BYTES, "train compare", "--", "--wrokdir=x", "é"))
            wrong = "there is no such verb"
        arguments = [verb, *flags]
        if rng.random() < 0.2:
            rng.shuffle(arguments)
        if rng.random() < 0.1:
            arguments = [part for argument in arguments for part in argument.split("=", 1)]
            wrong = ""
        return arguments, wrong


def _settings(flags: Sequence[str]) -> list[str]:
    named = next((flag for flag in flags if flag.startswith("--config=configs/")), "")
    try:
        return sorted(schema.flat(config_files.load(named.removeprefix("--config=")).values))
    except Exception:
        return []


def _nonsense(rng: random.Random, flags: list[str]) -> str:
    if settings := [name for name in _settings(flags) if name not in LONG]:
        flags.append(f"--config.{rng.choice(settings)}={rng.choice(NONSENSE)}")
    return ""


def _no_setting(rng: random.Random, flags: list[str]) -> str:
    named = ("model.lyaers=2", "x=1", "model=3", "=1", ".a=2", f"{BYTES}=1")
    flags.append(f"--config.{rng.choice(named)}")
    return "there is no such setting"


def _no_flag(rng: random.Random, flags: list[str]) -> str:
    flags.append(rng.choice(("--wrokdir=x", "--verbose_=1", "-x", f"--{BYTES}", "--=", "--config.", "--no-such")))
    return "there is no such flag"


def _value(rng: random.Random, flags: list[str]) -> str:
    flags.append(f"--{rng.choice(FLAGS)}={rng.choice((*NONSENSE, *PATHS))}")
    return ""


def _other_value(rng: random.Random, flags: list[str]) -> str:
    number = rng.randrange(len(flags))
    flags[number] = f"{flags[number].partition('=')[0]}={rng.choice((*NONSENSE, *PATHS))}"
    return ""


def _left_out(rng: random.Random, flags: list[str]) -> str:
    flags.pop(rng.randrange(len(flags)))
    if not flags:
        flags.append("--print_config")
    return ""


def _argument(rng: random.Random, flags: list[str]) -> str:
    bad = rng.choice((":arm=", ":arm=x", ":x=1", ":arm=ag,arm=ag", ":" + BYTES, "::", ":" + "a," * 3000, ":points=3"))
    for number, flag in enumerate(flags):
        if flag.startswith("--config=configs/"):
            flags[number] = flag.partition(":")[0] + bad
    return ""


def _source(rng: random.Random, flags: list[str]) -> str:
    if any(flag.startswith("--config=configs/pre") for flag in flags):
        flags[:] = [flag for flag in flags if not flag.startswith("--workdir")]
        flags += [f"--config.data.source={rng.choice(SOURCES)}", "--workdir=new"]
    return ""


def _hosts(rng: random.Random, flags: list[str]) -> str:
    flags.append("--join_timeout=2")
    many = ["--hosts=2", "--host=0", "--coordinator=localhost:1"]
    flags += rng.choice((["--hosts=2"], ["--hosts=x"], many, ["--host=-1"], ["--hosts=auto"]))
    return ""


def _workdir(rng: random.Random, flags: list[str]) -> str:
    flags.append(f"--workdir={rng.choice((*RUNS, *make.KINDS, *PATHS))}")
    return ""


def _printed(rng: random.Random, flags: list[str]) -> str:
    flags.append(rng.choice(("--print_config", "--noprint_config", "--print_config=maybe")))
    return ""


EDITS = (_nonsense, _nonsense, _nonsense, _no_setting, _no_flag, _value, _other_value)
EDITS += (_left_out, _argument, _source, _hosts, _workdir, _printed)

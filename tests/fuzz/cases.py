"""Runs cases one by one in a forked process with limits, and replaces that process when a case ends it."""

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import resource
import select
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence

CPU_SECONDS, WALL_SECONDS = 40, 240  # of a case; the second are many because other processes may be busy
GROWTH = 700 * 2**20  # bytes that a case may take
ADDRESSES = 4 * 2**30  # bytes of addresses that a case may reserve
LONGEST = 5000  # characters of a message
TRACE = "Traceback (most recent call last)"


@dataclasses.dataclass(frozen=True)
class Finding:
    """A case that does not pass: its name for `--only`, what was damaged and how, and what happened."""

    case: str
    subject: str
    change: str
    happened: str
    detail: str = ""


class TooLong(BaseException):
    """The case took more time of the processor than it may."""


def _stop(*_) -> None:
    raise TooLong


def memory(what: str) -> int:
    """VmRSS, VmHWM or VmSize of this process, in bytes."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def watched(
    cases: Sequence[int], run: Callable[[int], Finding | None], lost: Callable[[int, str], Finding]
) -> Iterator[Finding | None]:
    """Run every case in forked processes; where one ends early, `lost` makes the finding, and a new one goes on."""
    left = list(cases)
    while left:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _work(left, run, writer)
        os.close(writer)
        try:
            with os.fdopen(reader, "rb", buffering=0) as lines:
                for number in list(left):
                    ready, _, _ = select.select([lines], [], [], WALL_SECONDS)
                    line = lines.readline() if ready else b""
                    left.pop(0)
                    if line:
                        found = json.loads(line)
                        yield Finding(**found) if found else None
                        continue
                    if not ready:
                        os.kill(child, signal.SIGKILL)
                    _, status = os.waitpid(child, 0)
                    child = 0
                    yield lost(number, _how(status) if ready else f"still running after {WALL_SECONDS} seconds")
                    break
        finally:  # the reader is closed: a process that goes on ends at its next line
            if child:
                os.waitpid(child, 0)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"the process exited with {os.waitstatus_to_exitcode(status)}"


def _work(cases: Sequence[int], run: Callable[[int], Finding | None], writer: int) -> None:
    try:
        signal.signal(signal.SIGPROF, _stop)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        for number in cases:
            found = run(number)
            line = json.dumps(dataclasses.asdict(found) if found else None) + "\n"
            os.write(writer, line.encode(errors="backslashreplace"))
        os._exit(0)
    except BaseException:
        os._exit(97)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Within: TooLong after `CPU_SECONDS`, MemoryError or the end of the process beyond `ADDRESSES`."""
    allowed = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + ADDRESSES, allowed[1]))
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, allowed)


@contextlib.contextmanager
def captured() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """What is printed within, on standard output and on standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def last_frame(error: BaseException) -> str:
    """Where in the package an error was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/ag_jax/" in frame.filename]
    return f"{frames[-1].filename.partition('/ag_jax/')[2]}:{frames[-1].lineno} {frames[-1].name}" if frames else ""

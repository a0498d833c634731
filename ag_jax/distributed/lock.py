"""The lock of a directory that one process at a time may write to, on a disk or in an object store.

The lock is the file `lock.json`, which names its holder; the holder removes it at the end. A process that is killed
leaves the file behind. How such a stale lock is recognised depends on where the holder ran:

* On this machine, since it last booted and in the same container: no running process has the holder's process id and
  start time.
* Anywhere else, or where that cannot be told: the holder rewrites the file every 15 seconds, so the lock is stale if the
  file does not change for two minutes, by the clock of the waiting machine.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from etils import epath

from ag_jax.distributed import hosts, storage

FILE = "lock.json"
BEAT_EVERY = 15.0  # seconds
STALE_AFTER = 120.0  # seconds; files on network file systems may show late
LOOK_EVERY = 1.0  # seconds
SETTLE = 1.0  # seconds that an object store, which has no exclusive creation, is given to show a competitor


@contextlib.contextmanager
def hold(directory: epath.Path) -> Iterator[None]:
    """Context manager that holds the lock of a directory, which is created if missing. Every host calls it; host 0 takes the lock.

    A lock left behind by a process that ended is replaced. If this machine cannot tell whether the holder still runs,
    the call waits up to two minutes to see whether the file changes.

    Raises ValueError, on every host, if another process holds the lock or the directory cannot be written.
    """
    lock = _Lock(directory)
    hosts.from_first(f"the lock of {directory}", lock.take)
    try:
        yield
    finally:
        if hosts.is_first():
            lock.release()


@dataclasses.dataclass(frozen=True)
class Holder:
    """Who holds a lock: number and start time of the process, name of the host, and what tells machines apart."""

    host: str
    machine: str
    pid: int
    process_started: str
    since: str
    token: str

    @classmethod
    def this_process(cls) -> "Holder":
        """This process, from now on."""
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        return cls(socket.gethostname(), _machine(), os.getpid(), _started(os.getpid()), since, secrets.token_hex(8))

    def is_gone(self) -> bool | None:
        """Whether the process has ended; None if that cannot be seen from here."""
        if (self.host, self.machine) != (socket.gethostname(), _machine()):
            return None
        if started := _started(self.pid):
            return started != self.process_started
        try:
            os.kill(self.pid, 0)
        except PermissionError:  # there is one, of another user, and this machine hides its start time
            return None
        except ProcessLookupError:
            pass
        return True


class _Lock:
    """The lock of one directory."""

    def __init__(self, directory: epath.Path):
        self._directory, self._path = directory, directory / FILE
        self._done = threading.Event()

    def take(self) -> None:
        """Create the file. Raises ValueError."""
        try:
            self._made = not self._directory.exists()
            self._directory.mkdir(parents=True, exist_ok=True)
            self._holder = Holder.this_process()
            while not self._create():
                self._remove_remnant()
        except OSError as error:
            raise ValueError(
                f"cannot write to --workdir={self._directory}: {error.strerror or error}. Choose a directory that can be "
                "written"
            ) from error
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Remove the file, if it is still this process's, and the directory if `take` made it and it is empty."""
        self._done.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # every store has its own kinds; what is left is noticed as a remnant
            if self._is_ours():
                self._path.unlink()
            if self._made and not storage.is_remote(self._path):
                os.rmdir(self._directory)  # which leaves a directory that is not empty as it is

    def _create(self) -> bool:
        """Whether the file was not there and now is."""
        text = self._text(beats=0)
        if storage.is_remote(self._path):
            if self._path.exists():
                return False
            self._path.write_text(text)
            time.sleep(SETTLE)
            return self._is_ours()
        try:
            file = open(self._path, "x")  # noqa: SIM115 - the next `try` is for other errors, and closes it
        except FileExistsError:
            return False
        try:
            with file:
                file.write(text)
        except OSError:  # such as a full disk
            self._path.unlink(missing_ok=True)
            raise
        return True

    def _remove_remnant(self) -> None:
        """Remove the file of a holder that is gone. Raises ValueError if the holder is not gone."""
        found = self._read()
        if found is None:  # removed meanwhile
            return
        text, holder = found
        gone = holder.is_gone() if holder else None
        if gone is None:
            gone, holder = self._is_left_alone(text)
        if not gone:
            who = f"process {holder.pid} on {holder.host}, since {holder.since}" if holder else "another process"
            raise ValueError(
                f"--workdir={self._directory} is in use by {who}: wait until that process ends, or choose another "
                "directory"
            )
        with self._before_others():
            if self._read() == found:
                self._path.unlink(missing_ok=True)

    def _is_left_alone(self, text: str) -> tuple[bool, Holder | None]:
        """Whether the file stays as it is, or is removed; and whoever wrote it if not."""
        print(
            f"{self._path} is held from another machine: waiting {STALE_AFTER:.0f} seconds at most to see whether its "
            "process still runs",
            file=sys.stderr,
            flush=True,
        )
        deadline = time.monotonic() + STALE_AFTER
        while time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
            found = self._read()
            if found is None or found[0] != text:
                return found is None, found and found[1]
        return True, None

    @contextlib.contextmanager
    def _before_others(self) -> Iterator[None]:
        """One process of this machine after the other, as none may remove the lock that another has just taken over."""
        if storage.is_remote(self._path):
            yield
            return
        folder = os.open(self._directory, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems cannot
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _read(self) -> tuple[str, Holder | None] | None:
        """The text of the file, and its holder unless the text is damaged; None if there is no file."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return None
        try:
            values = json.loads(text)
            return text, Holder(**{field.name: values[field.name] for field in dataclasses.fields(Holder)})
        except (ValueError, TypeError, KeyError):
            return text, None

    def _is_ours(self) -> bool:
        found = self._read()
        return found is not None and found[1] == self._holder

    def _text(self, beats: int) -> str:
        return json.dumps(dataclasses.asdict(self._holder) | {"beats": beats}) + "\n"

    def _beat(self) -> None:
        beats = 0
        while not self._done.wait(BEAT_EVERY):
            beats += 1
            with contextlib.suppress(Exception):  # such as a full disk, or a store's own; the next beat may succeed
                found = self._read()
                if found and found[1] not in (self._holder, None):
                    self._leave(found[1])
                storage.write_whole(self._path, self._text(beats))

    def _leave(self, holder: Holder) -> None:
        """End a process that lost its lock: it did not run for two minutes, and must not write beside its successor."""
        message = (
            f"this process was not heard of for {STALE_AFTER:.0f} seconds, and {self._directory} was taken over by "
            f"process {holder.pid} on {holder.host}: it ends without writing anything more"
        )
        print(message, file=sys.stderr, flush=True)
        hosts.abandon(1, message)
        hosts.leave_at_once(1)


def _machine() -> str:
    """What differs between two machines of one name, between two starts of one machine, and between its containers."""
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""  # macOS


def _started(pid: int) -> str:
    """When a process was started, empty if there is none of that number: numbers are given again."""
    if not pathlib.Path("/proc/self/stat").exists():  # macOS
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        state, *fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in ("Z", "X") else fields[18]  # a zombie has ended

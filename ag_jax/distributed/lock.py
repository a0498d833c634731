"""Locks that one process at a time holds, on a disk or in an object store: of a run, a file, a piece of shared work.

A lock is a file that names its holder, who removes it at the end. A process that is killed leaves the file behind. How
such a stale lock is recognised depends on where the holder ran:

* On this machine, since it last booted and in the same container: the lock is stale if no running process has the
  holder's process id and start time.
* Anywhere else, or if that cannot be determined: the holder rewrites the file every 15 seconds, so the lock is stale if
  the file does not change for two minutes, by the clock of the waiting machine.
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

from ag_jax.distributed import storage

FILE = "lock.json"  # of a directory
BEAT_EVERY = 15.0  # seconds between two rewrites of the file by its holder
STALE_AFTER = 120.0  # seconds without change; network file systems may show changes late
LOOK_EVERY = 1.0  # seconds between two looks at another holder's file


@contextlib.contextmanager
def hold(path: epath.Path, *, wait: bool = False, what: str = "") -> Iterator[None]:
    """Context manager that holds a lock for all hosts of a run.

    Every host must call it; host 0 takes the lock.

    path: file of the lock. Its directory is created if it is missing, and removed if nothing else was written there.
    wait: wait until no other process holds the lock. Otherwise the call waits only if this machine cannot tell whether
        the holder still runs, for two minutes at most.
    what: flag that names what is locked; by default `--workdir` with the directory of the file.

    Raises ValueError, on every host, if another process holds the lock, and OSError (ValueError on other hosts than the
    first) if the file cannot be written.
    """
    from ag_jax.distributed import hosts  # imported here, because it imports JAX, which preparing a text does without

    claims, lock, is_new = Claims(), _Lock(path), not path.parent.exists()

    def take() -> None:
        is_told = False
        while not claims.take(lock):
            if not wait and claims.runs(path) and (holder := lock.holder()):
                raise ValueError(
                    f"{what or f'--workdir={path.parent}'} is in use by process {holder.pid} on {holder.host}, since "
                    f"{holder.since}: wait until that process ends, or choose another"
                )
            if not is_told:
                limit = "" if wait else f" {STALE_AFTER:.0f} seconds at most, to see whether it still runs"
                hosts.tell(f"waiting for the process that holds {path}{limit}")
                is_told = True
            time.sleep(LOOK_EVERY)

    hosts.from_first(f"the lock {path}", take)
    try:
        yield
    finally:
        if hosts.is_first():
            lock.release()
            if is_new and not storage.is_remote(path):
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(path.parent)


class Claims:
    """Locks that a process takes only if they are free, by which processes share work.

    `with claims(path) as mine:` takes the lock if no other process holds it, and never waits; `mine` is None if it was
    not taken. A lock left behind by a process that ended is replaced. If it is of another machine, it is replaced when
    this object finds its file unchanged since a look more than two minutes ago. Not collective.
    """

    def __init__(self):
        self._watched: dict[epath.Path, _Watched] = {}  # locks of other machines

    @contextlib.contextmanager
    def __call__(self, path: epath.Path) -> Iterator["_Lock | None"]:
        """Context manager that takes a lock if it is free; its value is the lock, or None if it is not.

        Raises OSError if the file cannot be written.
        """
        lock = _Lock(path)
        mine = self.take(lock)
        try:
            yield lock if mine else None
        finally:
            if mine:
                lock.release()

    def runs(self, path: epath.Path) -> bool:
        """Return whether the process that holds a lock is known to run.

        A process of another machine is, if this object has seen its file change between two looks.
        """
        content = _Lock(path).read()
        if content is None:
            return False
        is_gone = content[1].is_gone() if content[1] else None
        return self._watch(path, content[0]).has_changed if is_gone is None else not is_gone

    def take(self, lock: "_Lock") -> bool:
        """Take a lock if it is free; return whether this process now holds it."""
        is_taken = lock.create()
        if not is_taken and (content := lock.read()):
            text, holder = content
            is_gone = holder.is_gone() if holder else None
            if is_gone is None:
                is_gone = time.monotonic() - self._watch(lock.path, text).since > STALE_AFTER
            if is_gone:
                lock.remove(content)
                is_taken = lock.create()
        if is_taken:
            lock.start()
        return is_taken

    def _watch(self, path: epath.Path, text: str) -> "_Watched":
        """Note that the file of a lock of another machine has this text now; return what is known of the file."""
        now, before = time.monotonic(), self._watched.get(path)
        if before is None or before.text != text:
            # A change since a look that is long past says nothing: the holder may have died since.
            has_changed = before is not None and now - before.looked < STALE_AFTER
            before = self._watched[path] = _Watched(text, since=now, looked=now, has_changed=has_changed)
        before.looked = now
        return before


@dataclasses.dataclass
class _Watched:
    """State of another machine's lock file, as this process has seen it.

    text: its text.
    since, looked: when it first and last looked at this text, in seconds of the monotonic clock.
    has_changed: whether it has seen another text less than `STALE_AFTER` seconds before.
    """

    text: str
    since: float
    looked: float
    has_changed: bool


@dataclasses.dataclass(frozen=True)
class Holder:
    """Identity of the process that holds a lock.

    host: name of its machine, as users know it.
    machine: id of its machine's boot and of its container (`_machine`).
    pid: its process id.
    process_started: its start time (`_started`), because process ids are reused.
    since: local time at which it took the lock, for messages.
    token: random number of this hold of the lock.
    """

    host: str
    machine: str
    pid: int
    process_started: str
    since: str
    token: str

    @classmethod
    def this_process(cls) -> "Holder":
        """Return a `Holder` for this process, with a new random token, so that no two holders are equal."""
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        return cls(socket.gethostname(), _machine(), os.getpid(), _started(os.getpid()), since, secrets.token_hex(8))

    def is_gone(self) -> bool | None:
        """Return whether the process that holds the lock has ended; None if this process cannot tell."""
        if (self.host, self.machine) != (socket.gethostname(), _machine()):
            return None
        if started := _started(self.pid):
            return started != self.process_started
        try:
            os.kill(self.pid, 0)
        except PermissionError:  # the process exists, but belongs to another user, and its start time is hidden
            return None
        except ProcessLookupError:
            pass
        return True


def is_held(path: epath.Path) -> bool:
    """Return whether there is a lock whose holder may still run. Not collective."""
    content = _Lock(path).read()
    return content is not None and not (content[1] and content[1].is_gone())


class _Lock:
    """A lock of this process, with the thread that rewrites its file to show that the process still runs.

    path: its file.
    """

    def __init__(self, path: epath.Path):
        self.path, self._holder, self._done = path, Holder.this_process(), threading.Event()

    def create(self) -> bool:
        """Create the file, and its directories if missing; return whether this process now holds the lock.

        An object store creates the file in one step, too. If its answer is lost, the file has this process's token.
        """
        for is_last in (False, True):
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                is_new = storage.create(self.path, self._text(beats=0))
                break
            except FileNotFoundError:  # the last holder has removed the directory meanwhile (`hold`)
                if is_last:
                    raise
        return is_new or (storage.is_remote(self.path) and self._is_ours())

    def confirm(self) -> None:
        """End this process if another one has taken over the lock, before it writes what the lock protects.

        That happens to a process which did not run for minutes, such as on a machine that was suspended.
        """
        if (holder := self.holder()) not in (self._holder, None):
            self._leave(holder)

    def start(self) -> None:
        """Start the thread, once the lock is taken."""
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """End the thread and remove the file, unless another process has taken over the lock."""
        self._done.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # stores raise different types; a file left behind is a stale lock
            if self._is_ours():
                self.path.unlink()

    def remove(self, content: tuple[str, Holder | None]) -> None:
        """Remove the file if it still has this content, which was found to be stale.

        Another process may have found the same file stale. Between the last read of the file and its removal, it could
        replace the file with its own lock, which would then be removed. So only one process of this machine at a time
        removes a file, and at `gs://` only one of all.
        """
        if storage.is_remote(self.path):
            storage.remove_if(self.path, content[0])
            return
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems have no flock
                fcntl.flock(folder, fcntl.LOCK_EX)
            if self.read() == content:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(folder)

    def read(self) -> tuple[str, Holder | None] | None:
        """Return (text of the file, holder that it names or None if damaged), or None if there is no file."""
        try:
            text = storage.read_whole(self.path)
        except FileNotFoundError:
            return None
        try:
            values = json.loads(text)
            return text, Holder(**{field.name: values[field.name] for field in dataclasses.fields(Holder)})
        except (ValueError, TypeError, KeyError):
            return text, None

    def holder(self) -> Holder | None:
        """Return the holder that the file names; None if there is no file, or if it is damaged."""
        return content[1] if (content := self.read()) else None

    def _is_ours(self) -> bool:
        return self.holder() == self._holder

    def _text(self, beats: int) -> str:
        return json.dumps(dataclasses.asdict(self._holder) | {"beats": beats}) + "\n"

    def _beat(self) -> None:
        # Not the monotonic clock, which may stand still while the machine is suspended.
        beats, written = 0, time.time()
        while not self._done.wait(BEAT_EVERY):
            beats += 1
            with contextlib.suppress(Exception):  # such as a full disk or a store's error: the next rewrite may succeed
                content = self.read()
                holder = content[1] if content else None
                # Without a file, another process may have taken the lock over and released it since.
                if holder not in (self._holder, None) or (content is None and time.time() - written > STALE_AFTER):
                    self._leave(holder)
                    return
                storage.write_whole(self.path, self._text(beats))
                written = time.time()

    def _leave(self, holder: Holder | None) -> None:
        """End this process, whose lock another process has taken over, before it writes anything more."""
        from ag_jax.distributed import hosts  # as in `hold`

        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        message = (
            f"this process did not renew its lock {self.path} for {STALE_AFTER:.0f} seconds, and {who} took it over: "
            "it ends without writing anything more; run the same command again"
        )
        print(message, file=sys.stderr, flush=True)
        hosts.abandon(1, message)
        hosts.leave_at_once(1)


def _machine() -> str:
    """Return an id of the machine's boot and of the container in which this process runs; empty on macOS.

    A process id has a meaning only within them, and machines may have the same name.
    """
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _started(pid: int) -> str:
    """Return the start time of a process, or an empty string if no process with the id `pid` runs.

    It tells apart processes that have the same id one after the other.
    """
    if not pathlib.Path("/proc/self/stat").exists():  # macOS
        command = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    try:
        state, *fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in ("Z", "X") else fields[18]  # a zombie has ended

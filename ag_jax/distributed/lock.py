"""Lock of a directory to which only one process at a time may write, on a disk or in an object store.

The lock is the file `lock.json`, which names its holder; the holder removes it at the end. A process that is killed
leaves the file behind. How such a stale lock is recognised depends on where the holder ran:

* On this machine, since it last booted and in the same container: the lock is stale if no running process has the
  holder's process id and start time.
* Anywhere else, or if that cannot be determined: the holder rewrites the file every 15 seconds, so the lock is stale if
  the file does not change for two minutes, by the clock of the waiting machine.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from etils import epath

from ag_jax.distributed import hosts, storage

FILE = "lock.json"
BEAT_EVERY = 15.0  # seconds between two rewrites of the file by its holder
STALE_AFTER = 120.0  # seconds without change; network file systems may show changes late
LOOK_EVERY = 1.0  # seconds between two reads of another holder's file
TRIES = 20  # for the creation of a directory that its last holder may remove at the same moment


@contextlib.contextmanager
def hold(directory: epath.Path, what: str = "") -> Iterator[None]:
    """Context manager that holds the lock of a directory, or raises ValueError if another process holds it.

    what: flag with the file that is locked, if the directory is for the lock alone, and is removed with it.

    The directory is created if missing. Every host must call it; host 0 takes the lock. A lock left behind by a process
    that ended is replaced. If this machine cannot tell whether the holder still runs, the call waits up to two minutes
    to see whether the file changes.

    Raises ValueError, on every host, if another process holds the lock, and OSError (ValueError on other hosts than the
    first) if the directory cannot be written.
    """
    lock = _Lock(directory, what=what)
    hosts.from_first(f"the lock of {directory}", lock.take)
    try:
        yield
    finally:
        if hosts.is_first():
            lock.release()


@contextlib.contextmanager
def hold_in_turn(directory: epath.Path, say: Callable[[str], None]) -> Iterator[None]:
    """Context manager that waits until no other process holds the lock of a directory, and holds it for all hosts.

    Every host must call it; host 0 takes the lock.
    """
    with contextlib.ExitStack() as stack:

        def take() -> None:
            stack.enter_context(in_turn(directory, say))

        hosts.from_first(f"the lock of {directory}", take)
        yield


@contextlib.contextmanager
def in_turn(directory: epath.Path, say: Callable[[str], None]) -> Iterator[None]:
    """Context manager that waits until no other process holds the lock of a directory, and then holds it.

    Not collective. A lock left behind by a process that ended is replaced, as `Claims` does.

    say: prints a line if another process holds the lock.

    Raises OSError if the directory cannot be written.
    """
    claims = Claims()
    for attempt in itertools.count():
        with claims(directory) as mine:
            if mine:
                yield
                return
        if not attempt:
            say(f"waiting for another process, which holds the lock of {directory}")
        time.sleep(LOOK_EVERY)


def is_held(directory: epath.Path) -> bool:
    """Return whether the directory has a lock whose holder may still run.

    Not collective. The holder of a lock of another machine may run as long as the file is there.
    """
    content = _Lock(directory).read() if (directory / FILE).exists() else None
    return content is not None and (content[1] is None or not content[1].is_gone())


class Claims:
    """Locks of directories that a process takes only if they are free, by which processes share work.

    `with claims(directory) as mine:` takes the lock of a directory that nothing else is in, if no other process holds
    it; it never waits. `mine` is true as long as this process holds the lock: from the start, or never, or until
    another process takes it over, because this one did not renew it for two minutes; there is then a line on stderr. A
    lock left behind by a process that ended is replaced, but one of another machine only after this object has been
    asked for it for two minutes in which its file did not change. Not collective.
    """

    def __init__(self):
        self._texts: dict[epath.Path, tuple[str, float]] = {}

    @contextlib.contextmanager
    def __call__(self, directory: epath.Path) -> Iterator[object]:
        """Context manager that takes the lock of a directory if it is free; its value is true while the lock is held.

        Raises OSError if the directory cannot be written.
        """
        lock = _Lock(directory, is_claim=True)
        is_taken = lock.take_if_free(self._is_unchanged)
        try:
            yield is_taken and lock
        finally:
            if is_taken:
                lock.release()

    def _is_unchanged(self, directory: epath.Path, text: str) -> bool:
        """Return whether this object has seen a lock file with the same text for `STALE_AFTER` seconds."""
        text_before, since = self._texts.get(directory, (None, 0.0))  # not "", the text of a file that was just created
        if text_before != text:
            self._texts[directory] = text, time.monotonic()
            return False
        return time.monotonic() - since > STALE_AFTER


@dataclasses.dataclass(frozen=True)
class Holder:
    """Identity of the process that holds a lock.

    host: name of its machine.
    machine: boot and container of its machine (`_machine`).
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


class _Lock:
    """Lock of one directory, taken and released by one process; truthy until another process takes it over.

    directory: the directory.
    is_claim: whether the process goes on without the lock if another one takes it over; otherwise the process ends.
    what: as in `hold`.
    """

    def __init__(self, directory: epath.Path, is_claim: bool = False, what: str = ""):
        self._what, self._is_temporary = what or f"--workdir={directory}", bool(what)
        self._directory, self._path, self._is_claim = directory, directory / FILE, is_claim
        self._done, self._lost = threading.Event(), threading.Event()

    def __bool__(self) -> bool:
        return not self._lost.is_set()

    def take(self) -> None:
        """Create the lock file, and start the thread that rewrites it regularly to show that this process still runs.

        Raises ValueError if another process holds the lock, and OSError if the directory cannot be written.
        """
        self._may_remove = self._is_temporary or not self._directory.exists()
        self._holder = Holder.this_process()
        while not self._create():
            self._remove_if_stale()
        self._start()

    def take_if_free(self, is_unchanged: Callable[[epath.Path, str], bool]) -> bool:
        """Take the lock if no running process holds it; return whether this process now holds it.

        is_unchanged: (directory, text of the lock's file) -> whether the file has had this text for so long that its
            holder must have ended.
        """
        self._may_remove, self._holder = True, Holder.this_process()
        is_taken = self._create()
        if not is_taken and (content := self.read()):
            text, holder = content
            has_ended = holder.is_gone() if holder else None
            if is_unchanged(self._directory, text) if has_ended is None else has_ended:
                self._remove(content)
                is_taken = self._create()
        if is_taken:
            self._start()
        return is_taken

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Remove the lock file, unless another process has taken over the lock.

        Also remove the locked directory if `take` created it and it is empty.
        """
        self._done.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # stores raise different types; a file left behind is a stale lock
            if self._is_ours():
                self._path.unlink()
            if self._may_remove and not storage.is_remote(self._path):
                os.rmdir(self._directory)  # fails, without harm, if the directory is not empty

    def _create(self) -> bool:
        """Create the lock file, and its directory if missing; return whether this process now holds the lock.

        An object store creates the file in one step, too. If its answer is lost, the file has this process's token.

        The last holder may remove the directory meanwhile (`release`). Then the file cannot be created, or `mkdir`
        finds that the directory exists, and right afterwards that it is no directory, and raises FileExistsError.
        """
        for attempt in range(1, TRIES + 1):
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                is_new = storage.create(self._path, self._text(beats=0))
                break
            except (FileExistsError, FileNotFoundError):
                if attempt == TRIES:
                    raise
        return is_new or (storage.is_remote(self._path) and self._is_ours())

    def _remove_if_stale(self) -> None:
        """Remove the lock file if it is stale, or raise ValueError if its holder still runs."""
        content = self.read()
        if content is None:  # its holder released it in the meantime
            return
        text, holder = content
        has_ended = holder.is_gone() if holder else None
        if has_ended is None:
            has_ended, holder = self._wait_for_change(text)
        if not has_ended:
            who = f"process {holder.pid} on {holder.host}, since {holder.since}" if holder else "another process"
            raise ValueError(f"{self._what} is in use by {who}: wait until that process ends, or choose another")
        self._remove(content)

    def _remove(self, content: tuple[str, Holder | None]) -> None:
        """Remove the lock file if it still has this content, which was found to be stale.

        Another process may have found the same file stale. Between the last read of the file and its removal, it could
        replace the file with its own lock, which would then be removed. So only one process of this machine at a time
        removes a file, and at `gs://` only one of all.
        """
        if storage.is_remote(self._path):
            storage.remove_if(self._path, content[0])
            return
        try:
            folder = os.open(self._directory, os.O_RDONLY)
        except FileNotFoundError:  # another process removed the file, and then the directory
            return
        try:
            with contextlib.suppress(OSError):  # some network file systems have no flock
                fcntl.flock(folder, fcntl.LOCK_EX)
            if self.read() == content:
                self._path.unlink(missing_ok=True)
        finally:
            os.close(folder)

    def _wait_for_change(self, text: str) -> tuple[bool, Holder | None]:
        """Wait up to `STALE_AFTER` seconds for the lock file to change; return (has the holder ended, new holder).

        The lock file has changed if its content is no longer `text`. The holder has ended if the file was removed, or
        if its content did not change. Otherwise the file names the new holder, which is None if the file is damaged.
        """
        print(
            f"{self._path} is held from another machine: waiting {STALE_AFTER:.0f} seconds at most to see whether its "
            "process still runs",
            file=sys.stderr,
            flush=True,
        )
        deadline = time.monotonic() + STALE_AFTER
        while time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
            content = self.read()
            if content is None or content[0] != text:
                return content is None, content and content[1]
        return True, None

    def read(self) -> tuple[str, Holder | None] | None:
        """Return (text of the lock file, holder that it names or None if damaged), or None if there is no file."""
        try:
            text = storage.read_whole(self._path)
        except FileNotFoundError:
            return None
        try:
            values = json.loads(text)
            return text, Holder(**{field.name: values[field.name] for field in dataclasses.fields(Holder)})
        except (ValueError, TypeError, KeyError):
            return text, None

    def _is_ours(self) -> bool:
        content = self.read()
        return content is not None and content[1] == self._holder

    def _text(self, beats: int) -> str:
        return json.dumps(dataclasses.asdict(self._holder) | {"beats": beats}) + "\n"

    def _beat(self) -> None:
        # Not the monotonic clock, which may stand still while the machine is suspended.
        beats, written = 0, time.time()
        while not self._done.wait(BEAT_EVERY):
            beats += 1
            with contextlib.suppress(Exception):  # such as a full disk or a store's error: the next rewrite may succeed
                holder = content[1] if (content := self.read()) else None
                # Without a file, another process may have taken the lock over and released it since.
                is_missed = content is None and (self._is_claim or time.time() - written > STALE_AFTER)
                if holder not in (self._holder, None) or is_missed:
                    self._leave(holder)
                    return
                storage.write_whole(self._path, self._text(beats))
                written = time.time()

    def _leave(self, holder: Holder | None) -> None:
        """End this process, or give up its claim, because another process took over its lock.

        The lock was not renewed for two minutes, and `holder` took it, or a process that has released it since.
        """
        self._lost.set()
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        message = (
            f"this process did not renew its lock for {STALE_AFTER:.0f} seconds, and {self._directory} was taken over "
            f"by {who}: it "
        )
        if self._is_claim:
            print(f"{message}leaves this work to that process", file=sys.stderr, flush=True)
            return
        message += "ends without writing anything more"
        print(message, file=sys.stderr, flush=True)
        hosts.abandon(1, message)
        hosts.leave_at_once(1)


def _machine() -> str:
    """Return an id of the machine's boot and of the container in which this process runs; empty on macOS.

    A process id has a meaning only within them, and machines of the same name have different ids.
    """
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""  # macOS


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

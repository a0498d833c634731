"""The entries of the cache, each made by one process while the others wait, on a disk or in an object store.

An entry is a directory that `cache.build_once` writes. With `data.cache_dir` at `gs://` the entries are kept there, and
every machine copies those that it reads to its own disk, because rows are read at random places: a copy can be
memory-mapped, whereas reading each row from the store would take a request and tens of milliseconds.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from etils import epath

from ag_jax.data import cache, checksums
from ag_jax.data.cache import MANIFEST, Entry
from ag_jax.data.config import DataConfig
from ag_jax.data.json_files import reading
from ag_jax.distributed import interruption

# Takes the lock with this path, within a `with` statement, if no other process has it; its value is true if it did.
Claim = Callable[[epath.Path], AbstractContextManager[object]]
Write = Callable[[pathlib.Path], None]
LOOK_EVERY = 1.0  # seconds between two looks for work that other processes have finished
COPIED_TOGETHER = 2**24  # bytes


@contextlib.contextmanager
def unclaimed(path: epath.Path) -> Iterator[object]:
    """Context manager that lets every caller make the entry at `path`, for processes that do not share the work."""
    del path
    yield True


@dataclasses.dataclass(frozen=True)
class Entries:
    """The entries of the cache: directories of prepared data, on a disk and optionally in an object store.

    local: directory on this machine.
    remote: directory in an object store, in which the entries are kept and of which `local` has copies; None without.
    claim: takes work, so that no other process does the same; `unclaimed` where processes do not share work.
    """

    local: pathlib.Path
    remote: epath.Path | None = None
    claim: Claim = unclaimed

    @classmethod
    def of(cls, config: DataConfig, claim: Claim = unclaimed) -> "Entries":
        """Return the entries in `data.cache_dir`, $AG_JAX_CACHE or ~/.cache/ag_jax, the first of these that is set.

        If that is in an object store, local copies go to $AG_JAX_CACHE if it is on a disk, and otherwise to
        ~/.cache/ag_jax.
        """
        roots = [root for root in (config.cache_dir, os.environ.get("AG_JAX_CACHE")) if root]
        remote = epath.Path(roots[0]) if roots and "://" in roots[0] else None
        local = next((root for root in roots if "://" not in root), "~/.cache/ag_jax")
        return cls(pathlib.Path(local).expanduser(), remote, claim)

    @property
    def is_shared(self) -> bool:
        """Whether several processes make the entries together; each makes those that it has claimed."""
        return self.claim is not unclaimed

    def is_complete(self, name: str) -> bool:
        """Return whether an entry was made, here or in the object store."""
        return (self.local / name / MANIFEST).exists() or self._is_in_store(name)

    def open(self, name: str, write: Write, check_large: bool = False) -> Entry:
        """Return an entry; if it is missing or damaged, one process makes it with `write` while the others wait.

        If it is only in the object store, one process of this machine copies it. The arguments are those of
        `cache.build_once`.
        """
        is_told = False
        while not self._is_ready(name):
            with self._claimed(name) as mine:
                if mine:
                    self._remove_partial(name)
                    return self._make(name, write, check_large)
            interruption.check()
            if not is_told:
                print(f"data: waiting for {name}, which another process is making", file=sys.stderr, flush=True)
                is_told = True
            time.sleep(LOOK_EVERY)
        return self._make(name, write, check_large)

    def make_all(self, writers: Mapping[str, Write], is_over: Callable[[], bool], report: Callable[[], None]) -> None:
        """Make the entries of `writers`, together with other processes, until all are complete or no longer needed.

        This process makes missing entries that no other is making, and waits for the others.

        writers: function that writes an entry, by its name.
        is_over: returns whether the entries are no longer needed.
        report: called after each entry, and while other processes work on the last ones.
        """
        missing = list(writers)
        while missing:
            for name in missing:
                if self.is_complete(name):
                    continue
                with self._claimed(name) as mine:
                    # Another process may have made it meanwhile. If it was also removed, `is_over` says so afterwards.
                    if mine and not self.is_complete(name) and not is_over():
                        self._remove_partial(name)
                        self._make(name, writers[name], check_large=False)
                        report()
            if is_over():
                return
            missing = [name for name in missing if not self.is_complete(name)]
            if missing:
                interruption.check()
                report()
                time.sleep(LOOK_EVERY)

    def remove(self, name: str) -> None:
        """Delete an entry that is no longer needed, here and in the object store."""
        shutil.rmtree(self.local / name, ignore_errors=True)
        if self.remote is not None and (self.remote / name).exists():
            (self.remote / name).rmtree()

    def remove_leftovers(self, beginning: str) -> None:
        """Delete partial directories and locks of killed processes, for entries whose names begin with `beginning`.

        What a running process is writing stays.
        """
        names = {path.name.partition(cache.PARTIAL)[0] for path in self.local.glob(f"{beginning}*{cache.PARTIAL}*")}
        for root in {self.local, self.remote or self.local}:
            names.update(path.name.removesuffix(".lock") for path in epath.Path(root).glob(f"{beginning}*.lock"))
        for name in names:
            with self._claimed(name) as mine:
                if mine:
                    self._remove_partial(name)

    def _remove_partial(self, name: str) -> None:
        """Delete partial directories of a claimed entry, which killed processes left; only if processes share the work.

        Otherwise, one on another machine may be writing it, on a network file system whose locks do not show that.
        """
        if self.is_shared:
            cache.remove_partial(self.local / name)

    def remember(self, name: str, value: Any) -> None:
        """Store a JSON value under a name, in place of an earlier one."""
        path, text = epath.Path(self.remote or self.local) / f"{name}.json", json.dumps(value)
        if path.exists() and path.read_text() == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.remote is not None:
            path.write_text(text)
            return
        partial = self.local / f"{name}.json{cache.PARTIAL}{os.getpid()}"
        partial.write_text(text)
        partial.replace(path)

    def recall(self, name: str) -> Any:
        """Return the value stored under a name; None if there is none."""
        path = epath.Path(self.remote or self.local) / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def recall_all(self, beginning: str) -> list[Any]:
        """Return the values stored under all names that begin with `beginning`, in the order of the names."""
        paths = epath.Path(self.remote or self.local).glob(f"{beginning}*.json")
        return [json.loads(path.read_text()) for path in sorted(paths)]

    def _is_ready(self, name: str) -> bool:
        """Return whether an entry was made and is on this machine, and in the object store if there is one."""
        return (self.local / name / MANIFEST).exists() and (self.remote is None or self._is_in_store(name))

    @contextlib.contextmanager
    def _claimed(self, name: str) -> Iterator[object]:
        """Context manager that tries to claim the making of an entry, or only its copy if the object store has it."""
        root = self.local if self.remote is None or self._is_in_store(name) else self.remote
        with contextlib.ExitStack() as stack:
            try:
                mine = stack.enter_context(self.claim(epath.Path(root) / f"{name}.lock"))
            except OSError as error:
                raise cache.explain(error, self.local / name) from error
            yield mine

    def _is_in_store(self, name: str) -> bool:
        return self.remote is not None and (self.remote / name / MANIFEST).exists()

    def _make(self, name: str, write: Write, check_large: bool) -> Entry:
        """Return an entry, copied from the object store or made with `write` if it is missing on this machine."""

        def fill(partial: pathlib.Path) -> None:
            if self.remote and self._is_in_store(name):
                _fetch(self.remote / name, partial)
            else:
                write(partial)

        entry = cache.build_once(self.local / name, fill, check_large=check_large)
        if self.remote is not None and not self._is_in_store(name):
            _publish(entry, self.remote / name)
        return entry


def _fetch(stored: epath.Path, directory: pathlib.Path) -> None:
    """Copy an entry of the object store to an empty directory of this machine.

    A file that differs from its checksum is copied once more, because the copy may be wrong and not the entry.

    Raises ValueError if it still differs, and FileNotFoundError if a file is missing. The entry is not deleted, because
    other machines may be reading it.
    """
    with reading(stored, "delete it when no machine reads it any more, and run the command again"):
        files = json.loads((stored / MANIFEST).read_text())["files"]
        for file, expected in files.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            for attempt in (1, 2):
                _copy(stored / file, epath.Path(directory / file))
                if checksums.of_file(directory / file) == expected["blocks"]:
                    break
                if attempt == 2:
                    raise ValueError(f"the content of {file} was changed")


def _publish(entry: Entry, stored: epath.Path) -> None:
    """Copy an entry to the object store; its manifest last, so that only complete entries have one."""
    for file in [*entry.checksums, MANIFEST]:
        (stored / file).parent.mkdir(parents=True, exist_ok=True)
        _copy(epath.Path(entry.path / file), stored / file)


def _copy(source: epath.Path, target: epath.Path) -> None:
    """Copy a file between a disk and an object store, piece by piece."""
    with source.open("rb") as read, target.open("wb") as write:
        for piece in interruption.checked(iter(lambda: read.read(COPIED_TOGETHER), b"")):
            write.write(piece)

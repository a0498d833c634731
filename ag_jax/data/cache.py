"""The cache of prepared data: directories that are each made once, by one of all processes that need it.

A directory is written under a temporary name and renamed when it is complete, so that what a killed process wrote is
never taken for it. The process that makes it has claimed it (`ag_jax.distributed.lock`); others wait, or make something
else meanwhile. Every directory has a `manifest.json` with the size and the checksums of each file, which are compared
with the files when it is opened.

The names of the directories have a hash of all settings and files that their content depends on (`key`):

    tokenizer-HASH           a tokenizer that was trained on the text
    part-HASH-FIRST-LAST     the token ids of some of the files
    text-HASH                the token ids of both splits
    rows-HASH                the rows of both splits
    files-HASH               sizes and hashes of the files of the text

With `data.cache_dir` at `gs://` the directories are kept there, and every machine copies those that it reads to its own
disk, because rows are read at random places: a copy can be memory-mapped, whereas reading each row from the store would
take a request and tens of milliseconds.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epath

from ag_jax.data import checksums
from ag_jax.data.checksums import Entry
from ag_jax.data.config import DataConfig
from ag_jax.data.json_files import FAULTS, reading
from ag_jax.distributed import interruption, lock, storage, terminal

Write = Callable[[pathlib.Path], object]
VERSION = 6  # increased whenever the same settings give different rows, or other facts about them
PARTIAL = ".partial-"
MANIFEST = "manifest.json"
READ_WHOLE = 2**26  # bytes; larger files are checked block by block, as they are read
LOOK_EVERY = 1.0  # seconds between two looks for work that other processes have finished
COPIED_TOGETHER = 2**24  # bytes


def key(*parts: Any) -> str:
    """Return a hash of settings, for the name of a cached directory."""
    return hashlib.sha256(json.dumps([VERSION, *parts], sort_keys=True).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Cache:
    """The cached directories of this machine, and optionally of an object store.

    local: folder on this machine.
    remote: folder in an object store, in which the directories are kept and of which `local` has copies; None without.
    """

    local: pathlib.Path
    remote: epath.Path | None = None
    _claims: lock.Claims = dataclasses.field(default_factory=lock.Claims)

    @classmethod
    def of(cls, config: DataConfig) -> "Cache":
        """Return the cache in `data.cache_dir`, $AG_JAX_CACHE or ~/.cache/ag_jax, the first of these that is set.

        If that is in an object store, local copies go to $AG_JAX_CACHE if it is on a disk, and otherwise to
        ~/.cache/ag_jax.
        """
        roots = [root for root in (config.cache_dir, os.environ.get("AG_JAX_CACHE")) if root]
        remote = epath.Path(roots[0]) if roots and "://" in roots[0] else None
        local = next((root for root in roots if "://" not in root), "~/.cache/ag_jax")
        return cls(pathlib.Path(local).expanduser(), remote)

    def is_complete(self, name: str) -> bool:
        """Return whether a directory was made, here or in the object store."""
        return (self.local / name / MANIFEST).exists() or self._is_in_store(name)

    def build_once(self, name: str, write: Write, check_large: bool = False) -> Entry:
        """Return a directory as an `Entry`; if it is missing or damaged, one process makes it while the others wait.

        A directory with a damaged file is made anew, with a warning. A directory that only one of this machine and the
        object store has is copied to the other.

        name: name of the directory.
        write: function that writes the files into the (temporary) directory that it is given.
        check_large: compare existing files of more than `READ_WHOLE` bytes with their checksums, too; otherwise the
            caller's readers check the blocks that they read, if they are given the `Entry`.

        Raises ValueError if the directory cannot be written or the disk is full (what was written so far is then
        removed). A signal stops `write` at its next `interruption.check`, and what was written is removed as well.
        """
        is_told = False
        while True:
            if self._is_here(name) and (entry := _read(self.local / name, check_large)[0]):
                return entry
            with self._claimed(name) as claim:
                if claim:
                    return self._make(name, write, check_large, claim)
            interruption.check()
            if not is_told:  # once, because the wait may take hours
                terminal.say(f"data: waiting for {name}, which another process is making")
                is_told = True
            time.sleep(LOOK_EVERY)

    def build_all(
        self, writers: Mapping[str, Write], is_needed: Callable[[str], bool], report: Callable[[], None]
    ) -> None:
        """Make the directories of `writers`, together with other processes, until all that are needed are complete.

        This process makes missing directories that no other is making, and waits for the others.

        writers: function that writes a directory, by its name.
        is_needed: function that returns whether the directory of a name is still needed.
        report: called after each directory, and while other processes work on the last ones.
        """

        def is_missing(name: str) -> bool:
            return not self.is_complete(name) and is_needed(name)

        missing = list(writers)
        while missing := list(filter(is_missing, missing)):
            for name in filter(is_missing, missing):
                with self._claimed(name) as claim:
                    # Another process may have made it meanwhile. If it was also removed, it is needed no longer.
                    if claim and is_missing(name):
                        self._make(name, writers[name], False, claim)
                        report()
            if any(map(is_missing, missing)):
                interruption.check()
                report()
                time.sleep(LOOK_EVERY)

    def remove(self, beginning: str, successor: str) -> None:
        """Delete directories that another one was made of, and what killed processes left of such.

        Does nothing unless the directory `successor` is complete, and while a process makes it anew.

        beginning: the beginning of the names of the directories.
        successor: name of the directory that was made of them.
        """
        roots = [root for root in (self.local, self.remote) if root is not None]
        paths = (path for root in roots for path in epath.Path(root).glob(f"{beginning}*"))
        names = {path.name.partition(PARTIAL)[0].removesuffix(".lock") for path in paths}
        if not names or not self.is_complete(successor):  # a cache that has all may be one that cannot be written
            return
        with self._claimed(successor) as claim_of_successor:
            for name in names if claim_of_successor else ():
                with self._claimed(name) as claim:
                    if claim:
                        self._remove_partial(name)
                        shutil.rmtree(self.local / name, ignore_errors=True)
                        if self.remote is not None and (self.remote / name).exists():
                            (self.remote / name).rmtree()

    def remember(self, name: str, value: Any) -> None:
        """Store a JSON value under a name, in place of an earlier one."""
        path, text = epath.Path(self.remote or self.local) / f"{name}.json", json.dumps(value)
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_whole(path, text)

    def recall(self, pattern: str) -> list[Any]:
        """Return the values stored under all names that match a pattern, in the order of the names."""
        paths = epath.Path(self.remote or self.local).glob(f"{pattern}.json")
        return [json.loads(path.read_text()) for path in sorted(paths)]

    def _is_here(self, name: str) -> bool:
        """Return whether a directory is on this machine, and in the object store if there is one."""
        return (self.local / name).exists() and (self.remote is None or self._is_in_store(name))

    def _is_in_store(self, name: str) -> bool:
        return self.remote is not None and (self.remote / name / MANIFEST).exists()

    @contextlib.contextmanager
    def _claimed(self, name: str) -> Iterator[Any]:
        """Context manager that tries to claim a directory, or only its copy if the object store has it; None if not."""
        root = self.local if self.remote is None or self._is_in_store(name) else self.remote
        with contextlib.ExitStack() as stack:
            try:
                claim = stack.enter_context(self._claims(epath.Path(root) / f"{name}.lock"))
            except OSError as error:
                raise _explained(error, self.local) from error
            yield claim

    def _remove_partial(self, name: str) -> None:
        """Delete what killed processes left of a claimed directory: at full size tens of gigabytes."""
        for partial in self.local.glob(f"{name}{PARTIAL}*"):
            shutil.rmtree(partial, ignore_errors=True)

    def _make(self, name: str, write: Write, check_large: bool, claim: Any) -> Entry:
        """Return a claimed directory, made with `write` or copied from the object store if it is missing or damaged."""
        directory, entry = self.local / name, None
        if directory.exists():
            entry, damage = _read(directory, check_large)
            if entry is None:
                print(f"data: the cache {directory} is damaged ({damage}): making it anew", file=sys.stderr, flush=True)
        if entry is None:
            self._remove_partial(name)
            self._write(directory, write, claim)
            entry, damage = _read(directory, check_large=False)
            if entry is None:
                raise ValueError(
                    f"the cache {directory} is damaged as soon as it is written ({damage}): check the disk, and run "
                    "the command again"
                )
        if self.remote is not None and not self._is_in_store(name):
            _publish(entry, self.remote / name)
        return entry

    def _write(self, directory: pathlib.Path, write: Write, claim: Any) -> None:
        """Write a directory under a temporary name, and rename it, in place of a damaged directory if there is one."""
        partial = directory.with_name(f"{directory.name}{PARTIAL}{secrets.token_hex(4)}")
        # Signals are deferred, because an exception between two renames would leave the cache without the directory.
        with interruption.deferred():
            try:
                partial.mkdir(parents=True)
                if self.remote is not None and self._is_in_store(directory.name):
                    _fetch(self.remote / directory.name, partial)
                else:
                    write(partial)
                    _write_manifest(partial)
                claim.confirm()
                if directory.exists():
                    directory.rename(f"{partial}-damaged")
                partial.rename(directory)
            except OSError as error:
                raise _explained(error, self.local) from error
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                shutil.rmtree(f"{partial}-damaged", ignore_errors=True)
            interruption.check()


def _read(directory: pathlib.Path, check_large: bool) -> tuple[Entry | None, str]:
    """Return (`Entry`, "") for an intact directory of the cache, (None, what is wrong) for a damaged one."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text())
        files = manifest["files"]
        if manifest["checksum"] != _checksum(files):
            return None, f"{MANIFEST} was changed"
        unread = set()
        for name, file in files.items():
            path = directory / name
            if path.stat().st_size != file["size"]:
                return None, f"{name} has {path.stat().st_size} bytes, not {file['size']}"
            if file["size"] > READ_WHOLE and not check_large:
                unread.add(name)
            elif checksums.of_file(path) != file["blocks"]:
                return None, f"the content of {name} was changed"
    except FileNotFoundError as error:
        return None, f"{pathlib.Path(error.filename).name} is missing"
    except FAULTS:
        return None, f"{MANIFEST} cannot be read"
    return Entry(directory, {name: file["blocks"] for name, file in files.items()}, frozenset(unread)), ""


def _write_manifest(directory: pathlib.Path) -> None:
    """Write the sizes and checksums of all files of a directory into the directory's `manifest.json`."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {
        path.relative_to(directory).as_posix(): {"size": path.stat().st_size, "blocks": checksums.of_file(path)}
        for path in paths
    }
    (directory / MANIFEST).write_text(json.dumps({"files": files, "checksum": _checksum(files)}))


def _checksum(files: dict) -> int:
    """Return a checksum of the manifest's entry `files`, which shows whether the manifest itself was changed."""
    return zlib.crc32(json.dumps(files, sort_keys=True).encode())


def _fetch(stored: epath.Path, directory: pathlib.Path) -> None:
    """Copy a directory of the object store to an empty directory of this machine.

    A file that differs from its checksum is copied once more, because the copy may be wrong and not the original.

    Raises ValueError if it still differs, and FileNotFoundError if a file is missing. The original is not deleted,
    because other machines may be reading it.
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
    _copy(stored / MANIFEST, epath.Path(directory / MANIFEST))


def _publish(entry: Entry, stored: epath.Path) -> None:
    """Copy a directory to the object store; its manifest last, so that only complete directories have one."""
    for file in [*entry.checksums, MANIFEST]:
        (stored / file).parent.mkdir(parents=True, exist_ok=True)
        _copy(epath.Path(entry.path / file), stored / file)


def _copy(source: epath.Path, target: epath.Path) -> None:
    """Copy a file between a disk and an object store, piece by piece."""
    with source.open("rb") as read, target.open("wb") as write:
        for piece in interruption.checked(iter(lambda: read.read(COPIED_TOGETHER), b"")):
            write.write(piece)


def _explained(error: OSError, folder: pathlib.Path) -> Exception:
    """Return a ValueError with the remedy if `error` means that the cache cannot be written, else `error` itself.

    Other errors, such as a missing source file, are clearest as they are.
    """
    # One without a number is of Python code, whose message is clear as it is; and what is missing was not full.
    if error.errno is None or isinstance(error, FileNotFoundError):
        return error
    is_in_cache = error.filename is None or pathlib.Path(error.filename).is_relative_to(folder)
    if not is_in_cache and error.errno not in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        return error
    return ValueError(
        f"the cache {folder} cannot be written: {error.strerror or error}; make room there, or set data.cache_dir (or "
        "AG_JAX_CACHE) to a directory that can be written"
    )

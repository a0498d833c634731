"""Cached directories that are written once: under a temporary name, and renamed when they are complete.

An incomplete directory of a process that died is never mistaken for a finished one, and processes that write the same
directory do not disturb each other. Every directory has a `manifest.json` with the size and the checksums of each file,
which are compared with the files when the directory is opened.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator

from ag_jax.data import checksums
from ag_jax.data.checksums import CheckedFile
from ag_jax.data.json_files import FAULTS
from ag_jax.distributed import interruption

PARTIAL = ".partial-"
ABANDONED = 24 * 3600  # seconds without a write, after which the process that wrote a partial directory counts as dead
MANIFEST = "manifest.json"
READ_WHOLE = 2**26  # bytes; larger files are checked block by block, as they are read


@dataclasses.dataclass(frozen=True)
class Entry:
    """A complete directory of the cache, with the checksums of its files.

    path: the directory.
    checksums: CRC-32 of each block of each file, by the file's name below `path`.
    unread: names of the files that were too large to be compared with their checksums when the directory was opened.
    """

    path: pathlib.Path
    checksums: dict[str, list[int]]
    unread: frozenset[str] = frozenset()

    def checked(self, path: pathlib.Path) -> CheckedFile | None:
        """Return a checker of the blocks of a file as they are read; None if the whole file has been checked already.

        Returns None if the whole file was compared with its checksums when the directory was opened.
        """
        name = path.relative_to(self.path).as_posix()
        return CheckedFile(path, self.checksums[name], _advice(self.path)) if name in self.unread else None

    def digest(self, folder: str) -> str:
        """Return a hash of the names and checksums of all files in a folder; equal files give equal hashes."""
        files = {name: values for name, values in self.checksums.items() if name.startswith(f"{folder}/")}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def build_once(directory: pathlib.Path, write: Callable[[pathlib.Path], None], *, check_large: bool = False) -> Entry:
    """Return the cache's `directory` as an `Entry`; if it is missing or damaged, let `write` make it first.

    Several processes may write the same directory at once; the first to finish wins. A directory with a damaged file is
    written again, with a warning. So is a directory without a manifest, because nothing shows that its files are as
    they were written.

    directory: the directory to open, created if missing.
    write: function that writes the files into the (temporary) directory that it is given.
    check_large: compare files of more than `READ_WHOLE` bytes with their checksums, too; otherwise the readers of such
        files compare the blocks that they read (`Entry.checked`).

    Raises ValueError if the directory cannot be written or the disk is full (what was written so far is then removed).
    A signal stops `write` at its next `interruption.check`, and what was written so far is removed as well.
    """
    if directory.exists():
        entry, damage = _open(directory, check_large)
        if entry:
            return entry
        print(f"data: the cache {directory} is damaged ({damage}): making it anew", file=sys.stderr, flush=True)
    partial = directory.with_name(f"{directory.name}{PARTIAL}{secrets.token_hex(4)}")
    # Signals are deferred, because an exception between two renames would leave the cache without the directory.
    with interruption.deferred():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(directory)
            partial.mkdir()
            with _locked(partial):  # shows that its writer is alive
                write(partial)
                _write_manifest(partial)
                _put_into_place(partial, directory, check_large)
        except OSError as error:
            raise explain(error, directory) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        interruption.check()
    entry, damage = _open(directory, check_large=False)
    if entry is None:
        raise ValueError(
            f"the cache {directory} is damaged as soon as it is written ({damage}): check the disk, and run the "
            "command again"
        )
    return entry


def _put_into_place(partial: pathlib.Path, directory: pathlib.Path, check_large: bool) -> None:
    """Rename the complete directory `partial` to `directory`, in place of a damaged directory if there is one.

    Does nothing if another process has put an intact directory into place meanwhile.
    """
    with _locked(directory.parent):
        if directory.exists():
            if _open(directory, check_large)[0]:
                return
            old = directory.with_name(f"{directory.name}{PARTIAL}{secrets.token_hex(4)}")
            directory.rename(old)
            partial.rename(directory)
            shutil.rmtree(old, ignore_errors=True)
            return
        try:
            partial.rename(directory)
        except OSError:
            if not directory.exists():  # without locks, another process may still have been faster
                raise


@contextlib.contextmanager
def _locked(directory: pathlib.Path) -> Iterator[None]:
    """Hold a lock on a directory within the context; hold none on network file systems that have no locks."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open(directory: pathlib.Path, check_large: bool) -> tuple[Entry | None, str]:
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


def _advice(directory: pathlib.Path) -> str:
    """Return what to do about a damaged file of a directory, for an error message."""
    return f"delete the folder {directory} and run the same command again, which makes it anew"


def _remove_abandoned(directory: pathlib.Path) -> None:
    """Remove partial copies of `directory` to which no process has written for `ABANDONED` seconds."""
    for partial in directory.parent.glob(f"{directory.name}{PARTIAL}*"):
        with contextlib.suppress(OSError):  # another process may remove it meanwhile
            last_write = max(path.stat().st_mtime for path in (partial, *partial.rglob("*")))
            if time.time() - last_write > ABANDONED:
                shutil.rmtree(partial, ignore_errors=True)


def remove_partial(directory: pathlib.Path) -> None:
    """Delete partial copies of `directory` whose writers were killed, for a process that alone may write it now.

    At full size such a copy has tens of gigabytes, for which the disk may have no room beside the new one. A copy whose
    writer is alive stays; so does any copy on a network file system without locks, until it is `ABANDONED`.
    """
    for partial in directory.parent.glob(f"{directory.name}{PARTIAL}*"):
        with contextlib.suppress(OSError):  # its writer has the lock, or another process removes it meanwhile
            descriptor = os.open(partial, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(partial, ignore_errors=True)
            finally:
                os.close(descriptor)


def explain(error: OSError, directory: pathlib.Path) -> Exception:
    """Return a ValueError with the remedy if `error` means that the cache cannot be written, else `error` itself.

    Other errors, such as a missing source file, are clearest as they are.
    """
    if error.errno is None:  # raised by Python code, whose message is clear as it is
        return error
    in_cache = error.filename is None or pathlib.Path(error.filename).is_relative_to(directory.parent)
    if not in_cache and error.errno not in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        return error
    return ValueError(
        f"the cache {directory.parent} cannot be written: {error.strerror or error}; make room there, or set "
        "data.cache_dir (or AG_JAX_CACHE) to a directory that can be written"
    )

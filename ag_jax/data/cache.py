"""Directories that are made once and kept: written under another name, and renamed when they are complete.

One that a dying process left behind is never taken for whole, and processes that make the same one do not disturb each other.
Each has a `manifest.json` with the size and the checksums of every file, which is compared when the directory is opened.
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

from ag_jax import interruption
from ag_jax.data import checksums
from ag_jax.data.checksums import CheckedFile

PARTIAL = ".partial-"
ABANDONED = 24 * 3600  # seconds without a write, after which a partial directory is taken for a dead process's
MANIFEST = "manifest.json"
READ_WHOLE = 2**26  # bytes; larger files are checked block by block, as they are read


@dataclasses.dataclass(frozen=True)
class Entry:
    """A finished directory of the cache.

    checksums: of the blocks of each file, by the file's name below `path`; unread: names of the files that were too large to be
    checked when the directory was opened.
    """

    path: pathlib.Path
    checksums: dict[str, list[int]]
    unread: frozenset[str] = frozenset()

    def checked(self, path: pathlib.Path) -> CheckedFile | None:
        """For a file that is still to be checked, block by block, what does that; None for one that has been."""
        name = path.relative_to(self.path).as_posix()
        return CheckedFile(path, self.checksums[name], _advice(self.path)) if name in self.unread else None

    def digest(self, folder: str) -> str:
        """A hash of the files in a folder: equal for equal files."""
        files = {name: values for name, values in self.checksums.items() if name.startswith(f"{folder}/")}
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]


def build_once(directory: pathlib.Path, write: Callable[[pathlib.Path], None], *, whole: bool = False) -> Entry:
    """Have `write` fill `directory`, unless it is there. Several processes may try; the first to finish wins.

    A directory with a damaged file is made anew, with a warning; without a manifest nothing says that its files are as they
    were written, so the same goes for one that has none. Files of more than `READ_WHOLE` bytes are compared with their
    checksums only if `whole` is set; otherwise their readers compare what they read (`Entry.checked`).

    Raises ValueError if the place cannot be written or is full (what was written so far is then removed). A signal stops
    `write` at its next `interruption.check`, and what was written so far is removed as well.
    """
    if directory.exists():
        entry, damage = _open(directory, whole)
        if entry:
            return entry
        print(f"data: the cache {directory} is damaged ({damage}): making it anew", file=sys.stderr, flush=True)
    partial = directory.with_name(f"{directory.name}{PARTIAL}{secrets.token_hex(4)}")
    with interruption.deferred():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(directory)
            partial.mkdir()
            write(partial)
            _write_manifest(partial)
            _put_into_place(partial, directory, whole)
        except OSError as error:
            raise _explain(error, directory) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        interruption.check()
    entry, damage = _open(directory, whole=False)
    if entry is None:
        raise ValueError(f"the cache {directory} is damaged as soon as it is written ({damage}): check the disk")
    return entry


def _put_into_place(partial: pathlib.Path, directory: pathlib.Path, whole: bool) -> None:
    """Rename the complete directory, unless another process was faster; a damaged one makes room for it."""
    with _locked(directory.parent):
        if directory.exists():
            if _open(directory, whole)[0]:
                return
            old = directory.with_name(f"{directory.name}{PARTIAL}{secrets.token_hex(4)}")
            directory.rename(old)
            partial.rename(directory)
            shutil.rmtree(old, ignore_errors=True)
            return
        with contextlib.suppress(OSError):  # where there are no locks, another process may be faster even now
            partial.rename(directory)
        if not directory.exists():
            raise OSError(errno.EIO, "the finished directory could not be renamed")


@contextlib.contextmanager
def _locked(directory: pathlib.Path) -> Iterator[None]:
    """Hold a lock on a directory; some network file systems have none."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _open(directory: pathlib.Path, whole: bool) -> tuple[Entry | None, str]:
    """A finished directory; or None, and what is wrong with it."""
    try:
        recorded = json.loads((directory / MANIFEST).read_text())
        files = recorded["files"]
        if recorded["checksum"] != _checksum(files):
            return None, f"{MANIFEST} was changed"
        unread = set()
        for name, file in files.items():
            path = directory / name
            if path.stat().st_size != file["size"]:
                return None, f"{name} has {path.stat().st_size} bytes, not {file['size']}"
            if file["size"] > READ_WHOLE and not whole:
                unread.add(name)
            elif checksums.of_file(path) != file["blocks"]:
                return None, f"the content of {name} was changed"
    except FileNotFoundError as error:
        return None, f"{pathlib.Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # of JSON, too
        return None, f"{MANIFEST} cannot be read"
    return Entry(directory, {name: file["blocks"] for name, file in files.items()}, frozenset(unread)), ""


def _write_manifest(directory: pathlib.Path) -> None:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {
        path.relative_to(directory).as_posix(): {"size": path.stat().st_size, "blocks": checksums.of_file(path)}
        for path in paths
    }
    (directory / MANIFEST).write_text(json.dumps({"files": files, "checksum": _checksum(files)}))


def _checksum(files: dict) -> int:
    return zlib.crc32(json.dumps(files, sort_keys=True).encode())


def _advice(directory: pathlib.Path) -> str:
    return f"delete the folder {directory} and run the same command again, which makes it anew"


def _remove_abandoned(directory: pathlib.Path) -> None:
    for partial in directory.parent.glob(f"{directory.name}{PARTIAL}*"):
        with contextlib.suppress(OSError):  # it may vanish meanwhile
            written = max(path.stat().st_mtime for path in (partial, *partial.rglob("*")))
            if time.time() - written > ABANDONED:
                shutil.rmtree(partial, ignore_errors=True)


def _explain(error: OSError, directory: pathlib.Path) -> Exception:
    """The error itself, unless it is the cache that could not be written: a missing source says so best itself."""
    in_cache = error.filename is None or pathlib.Path(error.filename).is_relative_to(directory.parent)
    if not in_cache and error.errno not in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        return error
    return ValueError(
        f"the cache {directory.parent} cannot be written: {error.strerror or error}; make room there, or set data.cache_dir "
        "(or AG_JAX_CACHE) to a directory that can be written"
    )

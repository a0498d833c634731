"""Directories that are made once and kept: written under another name, and renamed when they are complete.

One that a dying process left behind is never taken for whole, and processes that make the same one do not disturb each other.
"""

import contextlib
import errno
import json
import pathlib
import secrets
import shutil
import time
from collections.abc import Callable

PARTIAL = ".partial-"
ABANDONED = 24 * 3600  # seconds without a write, after which a partial directory is taken for a dead process's


def build_once(directory: pathlib.Path, write: Callable[[pathlib.Path], None]) -> None:
    """Have `write` fill `directory`, unless it is there. Several processes may try; the first to finish wins.

    Raises ValueError if the place cannot be written or is full (what was written so far is then removed), or if a file of
    the finished directory has been damaged since.
    """
    if directory.exists():
        _check(directory)
        return
    partial = directory.with_name(f"{directory.name}{PARTIAL}{secrets.token_hex(4)}")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(directory)
        partial.mkdir()
        write(partial)
        _record_sizes(partial)
        with contextlib.suppress(OSError):  # another process was faster: its directory is as good
            partial.rename(directory)
        if not directory.exists():
            raise OSError(errno.EIO, "the finished directory could not be renamed")
    except OSError as error:
        raise _explain(error, directory) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(directory: pathlib.Path) -> None:
    """Raise ValueError if a file of a finished directory is missing or has another size than when it was written."""
    try:
        sizes = json.loads((directory / "sizes.json").read_text())
        changed = [name for name, size in sizes.items() if (directory / name).stat().st_size != size]
    except (OSError, json.JSONDecodeError) as error:
        changed = [str(error)]
    if changed:
        raise ValueError(f"the cache {directory} is damaged ({', '.join(changed)}): delete this directory to have it remade")


def _record_sizes(directory: pathlib.Path) -> None:
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    sizes = {str(file.relative_to(directory)): file.stat().st_size for file in files}
    (directory / "sizes.json").write_text(json.dumps(sizes, indent=1))


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

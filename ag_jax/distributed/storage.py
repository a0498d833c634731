"""Files of run directories, on a disk or in an object store such as `gs://`.

An object store can neither append to a file nor rename it atomically, but a file written there appears completely or
not at all.

Paths are opened by etils, which leaves object stores to packages of fsspec: gcsfs for `gs://`, in the form of
`bucket.Bucket`, and s3fs for `s3://`.
"""

import os
import pathlib
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

import fsspec
from etils import epath

T = TypeVar("T")

UPLOAD_EVERY = 30.0  # seconds between two uploads of a growing file, apart from those of `flush`

os.environ.setdefault("EPATH_USE_TF", "false")  # etils would use TensorFlow where it is installed
for _protocol in ("gs", "gcs"):
    fsspec.register_implementation(_protocol, "ag_jax.distributed.bucket.Bucket", clobber=True)


class StoreError(OSError):
    """Error of an object store, whose message says in one line what failed, where, and what helps."""


class StoreUnavailableError(StoreError):
    """Error of an object store that does not answer, or not now: the same command may succeed later."""


def is_remote(path: epath.PathLike) -> bool:
    """Return whether a path is in an object store."""
    return "://" in str(epath.Path(path))


def link(path: epath.PathLike) -> str:
    """Return the address by which a terminal or a browser opens a file; a path in an object store stays as it is."""
    return str(path) if is_remote(path) else pathlib.Path(path).absolute().as_uri()


def shown(path: epath.PathLike) -> str:
    """Return a path as a user of the working directory would type it: relative to it, if it is below."""
    try:
        return pathlib.Path(path).relative_to(pathlib.Path.cwd()).as_posix()
    except ValueError:
        return str(path)


def directory(name: epath.PathLike) -> epath.Path:
    """Return the absolute path of a directory that a user names, after a check that its object store can be used.

    Raises ValueError if its object store needs a package that is missing, if its bucket does not exist, or if an object
    has this name, and OSError if the store cannot be read.
    """
    path = epath.Path(name)
    if not is_remote(path):
        return path.expanduser().resolve()
    try:
        files = _files(path)
        if hasattr(files, "check_bucket"):
            files.check_bucket(str(path))
        else:
            path.exists()
    except ImportError as error:
        raise ValueError(
            f"{name} needs a package that is not installed ({error}): "
            "pip install 'ag_jax[gcs]' for gs://, s3fs for s3://"
        ) from error
    except (ValueError, OSError):
        raise
    except Exception as error:  # stores raise different types
        raise ValueError(
            f"{name} cannot be reached ({type(error).__name__}: {error}): check the name and your credentials "
            "(for gs://: gcloud auth application-default login)"
        ) from error
    return path


def _files(path: epath.Path) -> fsspec.AbstractFileSystem:
    """Return fsspec's file system for a path in an object store."""
    return fsspec.core.url_to_fs(str(path))[0]


def read_whole(path: epath.Path) -> str:
    """Read a text file as it was at one moment, even if another process replaces it meanwhile.

    `read_text` reads a file of an object store in two requests, the first of which is about its length.
    """
    return _files(path).cat_file(str(path)).decode() if is_remote(path) else path.read_text()


def create(path: epath.Path, text: str) -> bool:
    """Write a file only if there is none at this path; return whether it was written.

    Of several processes that create the same file, one succeeds. An object store whose answer is lost may have written
    the file although the result is False.
    """
    if is_remote(path):
        try:
            _files(path).pipe_file(str(path), text.encode(), mode="create")
        except FileExistsError:
            return False
        return True
    try:
        file = open(path, "x")  # noqa: SIM115 - closed below, where other errors are handled
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:  # such as a full disk
        path.unlink(missing_ok=True)
        raise
    return True


def remove_if(path: epath.Path, text: str) -> None:
    """Remove a file of an object store if it has this content; otherwise do nothing.

    At `gs://`, a file that another process writes meanwhile stays.
    """
    if hasattr(files := _files(path), "remove_if"):
        files.remove_if(str(path), text.encode())
    elif path.exists() and path.read_text() == text:
        path.unlink(missing_ok=True)


def write_whole(path: epath.Path, content: str | bytes) -> None:
    """Write a file atomically: readers, also after a crash, find the whole old content or the whole new content.

    Several processes or threads may write the same file; the last one determines its content.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        path.write_bytes(data)
        return
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_where_possible(write: Callable[[epath.Path], T], directory: epath.Path, *, may_write: bool = True) -> T:
    """Write files into `directory`, or elsewhere if that is impossible or not allowed; return the result of `write`.

    So a result that took long to compute is not lost. The directories tried are `directory` (if `may_write`),
    `ag-jax-output/NAME` in the current directory, and a new temporary directory. If `directory` cannot be written, a
    line on standard error names the one used instead. Raises the error of the first directory, on a disk an OSError,
    if none can be written.

    write: writes the files into the directory that it is given.
    may_write: whether `directory` may be written at all; False for a directory that another program made.
    """
    places = [directory] if may_write else []
    places += [epath.Path("ag-jax-output") / directory.name, None]
    problems = []
    for place in places:
        place = place or epath.Path(tempfile.mkdtemp(prefix="ag-jax-output-"))
        try:
            place.mkdir(parents=True, exist_ok=True)
            written = write(place)
        except Exception as error:
            if not isinstance(error, OSError) and not is_remote(place):  # stores raise different types
                raise
            problems.append(error)
        else:
            if problems and may_write:
                print(
                    f"cannot write to {directory} ({problems[0]}): the files are in {place}",
                    file=sys.stderr,
                    flush=True,
                )
            return written
    raise problems[0]


class GrowingFile:
    """Text file to which text is appended, on a disk or in an object store.

    On a disk, text is written when `add` returns. An object store can only rewrite the whole file, so it is uploaded by
    `flush`, and by `add` at most every `UPLOAD_EVERY` seconds.
    """

    def __init__(self, path: epath.Path, text: str):
        """Write the file with the initial content `text`, in place of any older file."""
        self._path, self._remote = path, is_remote(path)
        self._parts, self._uploaded, self._uploaded_at = [text], 0, 0.0
        write_whole(path, text)

    def add(self, text: str) -> None:
        """Append text at the end of the file."""
        if not self._remote:
            with self._path.open("a") as file:
                file.write(text)
            return
        self._parts.append(text)
        if time.monotonic() - self._uploaded_at > UPLOAD_EVERY:
            self.flush()

    def flush(self) -> None:
        """Upload the text that was added since the last upload; on a disk, do nothing."""
        if self._remote and len(self._parts) > self._uploaded:
            self._path.write_text("".join(self._parts))
            self._uploaded, self._uploaded_at = len(self._parts), time.monotonic()


class LocalCopy:
    """Temporary directory for a library that writes only to disks; `flush` uploads the files to an object store."""

    def __init__(self, remote: epath.Path):
        self._remote = remote
        self.path = epath.Path(tempfile.mkdtemp(prefix="ag_jax-"))

    def flush(self) -> None:
        """Copy every file of the temporary directory to the remote one."""
        self._remote.mkdir(parents=True, exist_ok=True)
        for file in self.path.iterdir():
            if not file.is_dir():
                (self._remote / file.name).write_bytes(file.read_bytes())

    def close(self) -> None:
        """Copy every file of the temporary directory to the remote one; remove the directory even if that fails."""
        try:
            self.flush()
        finally:
            shutil.rmtree(self.path, ignore_errors=True)

"""Files of run directories, on a disk or in an object store such as `gs://`.

An object store cannot append to a file nor rename one at once, but a file that is written there appears whole or not at all.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

from etils import epath

T = TypeVar("T")

UPLOAD_EVERY = 30.0  # seconds between two uploads of a file that grows, but for `flush`


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is in an object store."""
    return "://" in str(epath.Path(path))


def directory(name: epath.PathLike) -> epath.Path:
    """The path of a directory as a user gives it, absolute.

    Raises ValueError if its store needs a package that is missing, or does not let us in.
    """
    path = epath.Path(name)
    if not is_remote(path):
        return path.expanduser().resolve()
    try:
        path.exists()
    except ImportError as error:
        raise ValueError(
            f"{name} needs a package that is not installed ({error}): pip install 'ag_jax[gcs]' for gs://, s3fs for s3://"
        ) from error
    except Exception as error:  # each store has its own kinds
        raise ValueError(
            f"{name} cannot be reached ({type(error).__name__}: {error}): check the name and your credentials (for gs://: "
            "gcloud auth application-default login)"
        ) from error
    return path


def write_whole(path: epath.Path, text: str) -> None:
    """Write a file so that whoever reads it, now or after a crash, finds all of it or what was there before."""
    if is_remote(path):
        path.write_text(text)
        return
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


def write_where_possible(write: Callable[[epath.Path], T], directory: epath.Path, *, is_ours: bool = True) -> T:
    """Return `write(place)` for the first place that can be written, so that a result that took long to compute is not lost.

    The places are `directory`, if it `is_ours` to write to, `ag-jax-output/NAME` in the current directory, and a new temporary
    directory. Says on stderr where a result went that could not be written to `directory`. Raises OSError if no place can be
    written.
    """
    places = [directory] if is_ours else []
    places += [epath.Path("ag-jax-output") / directory.name, None]
    problems = []
    for place in places:
        place = place or epath.Path(tempfile.mkdtemp(prefix="ag-jax-output-"))
        try:
            place.mkdir(parents=True, exist_ok=True)
            written = write(place)
        except Exception as error:
            if not isinstance(error, OSError) and not is_remote(place):  # each store has its own kinds
                raise
            problems.append(error)
        else:
            if problems and is_ours:
                print(
                    f"cannot write to {directory} ({problems[0]}): the files are in {place}",
                    file=sys.stderr,
                    flush=True,
                )
            return written
    raise problems[0]


class GrowingFile:
    """A text file to which lines are added.

    On a disk a line is there when `add` returns; in an object store, where all of the file has to be written anew, now and
    then and when `flush` returns.
    """

    def __init__(self, path: epath.Path, text: str):
        """Begin with `text`."""
        self._path, self._remote = path, is_remote(path)
        self._parts, self._uploaded, self._at = [text], 0, 0.0
        write_whole(path, text)

    def add(self, text: str) -> None:
        """Add text at the end."""
        if not self._remote:
            with self._path.open("a") as file:
                file.write(text)
            return
        self._parts.append(text)
        if time.monotonic() - self._at > UPLOAD_EVERY:
            self.flush()

    def flush(self) -> None:
        """Return when everything is there."""
        if self._remote and len(self._parts) > self._uploaded:
            self._path.write_text("".join(self._parts))
            self._uploaded, self._at = len(self._parts), time.monotonic()


class LocalCopy:
    """A directory on this machine for a library that writes to disks alone; `flush` copies what it holds to `remote`."""

    def __init__(self, remote: epath.Path):
        self._remote = remote
        self.path = epath.Path(tempfile.mkdtemp(prefix="ag_jax-"))

    def flush(self) -> None:
        """Copy every file."""
        self._remote.mkdir(parents=True, exist_ok=True)
        for file in self.path.iterdir():
            if not file.is_dir():
                (self._remote / file.name).write_bytes(file.read_bytes())

    def close(self) -> None:
        """Copy every file, and remove the directory."""
        self.flush()
        shutil.rmtree(self.path, ignore_errors=True)

"""Find files by their paths, and open them; compressed files and archives are read as they are, not unpacked on disk.

A name may have a further ending .gz, .xz, .bz2 or .zst, as in books.jsonl.zst (.zst needs pyarrow). Archives end in
.tar, and compressed ones also in .tgz, .tbz2, .txz and .tzst. Endings are not case-sensitive.
"""

import bz2
import contextlib
import functools
import glob
import gzip
import io
import logging
import lzma
import os
import pathlib
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import IO, Any, TypeVar

from ag_jax.data.records.remote import RemoteStream

Item = TypeVar("Item")
# Reads an open file, or a member of an archive: its content, its name, and its location for error messages.
Reader = Callable[[IO[bytes], str, str], Iterable[Item]]
ARCHIVE = ".tar"
_SHORT_FORMS = {".tgz": ".tar.gz", ".tbz2": ".tar.bz2", ".txz": ".tar.xz", ".tzst": ".tar.zst"}
_DAMAGE = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)


def kind(name: str) -> tuple[str, str]:
    """Return (format, compression) of a file name as its endings, such as (".csv", ".gz"); "" for a missing one."""
    path = pathlib.PurePath(name.lower())
    path = path.with_suffix(_SHORT_FORMS.get(path.suffix, path.suffix))
    compression = path.suffix if path.suffix in DECOMPRESSORS else ""
    return (path.with_suffix("") if compression else path).suffix, compression


def read(file: Any, reader: Reader[Item], is_wanted: Callable[[str], bool]) -> Iterator[Item]:
    """Yield what a reader yields of a file or, if the file is an archive, of each of its members whose name is wanted.

    file: a `pathlib.Path` or a `remote.RemoteFile`.
    reader: function of the decompressed content, the name and the location.
    is_wanted: function that tells by its name whether a member of an archive is read. Hidden members, links, and
        archives within the archive never are, which a warning says.

    Raises ValueError, with the name of the file, if it turns out to be damaged.
    """
    with decompressed(file) as stream:
        if kind(file.name)[0] == ARCHIVE:
            yield from _members(stream, str(file), reader, is_wanted)
        else:
            yield from reader(stream, file.name, str(file))


def _members(stream: IO[bytes], place: str, reader: Reader[Item], is_wanted: Callable[[str], bool]) -> Iterator[Item]:
    """Yield what a reader yields of the wanted members of an archive; the arguments are as in `read`."""
    left_out = 0
    with tarfile.open(fileobj=stream, mode="r|*") as archive:  # as a stream: nothing is unpacked on disk
        for member in archive:
            name = pathlib.PurePosixPath(member.name).name
            if member.isfile() and is_wanted(name) and kind(name)[0] != ARCHIVE and not name.startswith("."):
                location = f"{member.name} of {place}"
                with _plain(archive.extractfile(member), name, location) as content:
                    yield from reader(content, name, location)
            else:
                left_out += not member.isdir()
    while stream.read(2**20):  # read on, because a compressed archive has its checksum at the end
        pass
    if _is_plain(stream):
        stream.seek(-tarfile.BLOCKSIZE, os.SEEK_END)
        if any(stream.read()):  # tarfile accepts an archive that was cut off between two members
            # `damaged` adds the name of the archive and the remedy.
            raise tarfile.ReadError("expected a block of zeros at the end, got other bytes: the archive was cut off")
    if left_out:
        warn_once(f"{place}: left out {left_out} members that are links, hidden, or have other endings")


@contextlib.contextmanager
def decompressed(file: Any) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed if its name says so, for a `with` statement.

    Raises ValueError, with the name of the file, if it turns out to be damaged as it is read.
    """
    with file.open("rb") as stream, _plain(stream, file.name, str(file)) as plain:
        yield plain


@contextlib.contextmanager
def _plain(stream: Any, name: str, place: str) -> Iterator[IO[bytes]]:
    """Context manager that gives a file's decompressed content; damaged content is a ValueError with `place`."""
    compression = kind(name)[1]
    try:
        if compression and not stream.peek(1):  # gzip would take it for the content of an empty file
            raise EOFError("expected compressed content, got an empty file")
        yield DECOMPRESSORS[compression](stream) if compression else stream
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk or the network failed, not the content
            error.filename = error.filename or place
            raise
        raise damaged(place, error) from error


def damaged(place: str, error: Exception) -> ValueError:
    """Return the error for a file that cannot be decoded, with a message of one line."""
    return ValueError(f"{place} is damaged or not what its name says ({' '.join(str(error).split())}); copy it anew")


def _is_plain(stream: IO[bytes]) -> bool:
    """Return whether an open file is itself a file on a disk or in an object store, which has random access.

    Compressed files and members of an archive have none.
    """
    return isinstance(stream, io.BufferedReader) and isinstance(stream.raw, (io.FileIO, RemoteStream))


@contextlib.contextmanager
def with_random_access(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """Context manager that gives `stream` itself if it has random access, else a temporary copy that has it."""
    if _is_plain(stream):
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        yield copy


def load_pyarrow(place: str) -> ModuleType:
    """Import and return pyarrow. Raises ValueError with the remedy if it is not installed."""
    try:
        import pyarrow  # imported here, because it takes long and is rarely needed
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{place} needs pyarrow, which is not installed: pip install 'ag_jax[parquet]'") from error
    return pyarrow


def _unzstd(stream: IO[bytes]) -> IO[bytes]:
    """Return the decompressed content of an open .zst file."""
    return io.BufferedReader(load_pyarrow("a .zst file").CompressedInputStream(stream, "zstd"))


DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".bz2": bz2.open,
    ".zst": _unzstd,
}


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning, but only the first time, because every source is read more than once."""
    logging.getLogger(__name__).warning(message)


def listed(names: Iterable[Any], most: int = 10) -> str:
    """Return names joined by commas, of which at most the first `most` are named, for messages."""
    texts = list(map(str, names))
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more or "nothing"


def stamp(file: pathlib.Path) -> tuple[int, int]:
    """Return size and modification time (ns) of a file."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def watched(file: pathlib.Path) -> Callable[[], bool]:
    """Return a function that tells whether a file's size or modification time has changed since this call."""
    before = stamp(file)
    return lambda: stamp(file) != before


def matches(path: str) -> list[str]:
    """Return a path that exists as the only item, or the sorted matches of a glob; an empty list if there are none.

    Raises ValueError if links would make ** recurse for ever.
    """
    pattern = os.path.expanduser(path)
    if os.path.lexists(pattern):
        return [pattern]
    before, recursive, _ = pattern.partition("**")
    if recursive:
        for directory in glob.glob(before) if before else ["."]:
            _check_circles(directory)
    return sorted(glob.glob(pattern, recursive=True))


def walk(folder: pathlib.Path, is_wanted: Callable[[str], bool]) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Return (files in and below a folder whose names are wanted, what is left out of it), sorted by path.

    Links to directories are not followed, but are left out. Hidden files and folders do not count.

    Raises ValueError for a wanted name that is a broken link, a pipe or a device.
    """
    paths, links = [], []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]  # the walk goes into these
        paths += [pathlib.Path(place, name) for name in names if not name.startswith(".")]
        links += [path for name in folders if (path := pathlib.Path(place, name)).is_symlink()]
    files = [path for path in sorted(paths) if is_wanted(path.name) and not is_directory(path)]
    return files, sorted([*links, *(set(paths) - set(files))])


def is_directory(path: pathlib.Path) -> bool:
    """Return whether a path is a directory. Raises ValueError if it is neither a directory nor a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if not path.is_symlink():
            raise
        # No FileNotFoundError, which would mean that the whole text is on another machine.
        raise ValueError(f"{path} is a link that leads to no file ({error.strerror}): mend or remove it") from error
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise ValueError(
            f"{path} is a pipe or a device, which can be read only once, but files are read several times: write it to "
            "a file first, as in COMMAND > text.txt, and give that"
        )
    return stat.S_ISDIR(mode)


def check_distinct(paths: Sequence[str]) -> None:
    """Raise ValueError if a directory has a file both as it is and compressed, whose text would be read twice."""
    plain: dict[str, str] = {}
    for path in paths:
        other = plain.setdefault(path.removesuffix(kind(path)[1]), path)
        if other != path:
            raise ValueError(
                f"{other} and {path} have the same name and different compressions, so the same text may be there "
                "twice: remove or rename one of them, or name the files one by one"
            )


def _raise(error: OSError):
    """Raise an error of `os.walk`, which would otherwise leave out a folder that cannot be read."""
    raise error


def _check_circles(directory: str, above: tuple[str, ...] = ()) -> None:
    """Raise ValueError if `directory`, or a directory below, is a link to a directory that contains this link.

    above: resolved paths of the directories that contain `directory`.
    """
    place = os.path.realpath(directory)
    if place in above:
        raise ValueError(
            f"{directory} is a link to a directory that it lies in, so that ** never ends: remove the link, or give "
            "the directory itself, in which links to directories are not followed"
        )
    for name in os.listdir(directory):
        below = os.path.join(directory, name)
        if not name.startswith(".") and os.path.isdir(below):  # as ** matches them
            _check_circles(below, (*above, place))

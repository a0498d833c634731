"""Read the files of annotated texts, also in archives, with the location of each line for error messages.

A path is a file, or a folder. Of a folder, all files below it are read whose names have one of the endings of the
format; also the members of archives (.tar, and compressed ones such as .tar.xz). Every file may be compressed, with a
further ending such as .gz. Lines may end in CR LF, and a file may begin with a byte order mark.
"""

import codecs
import os
import pathlib
from collections.abc import Hashable, Iterator, Sequence

from ag_jax.data.records import files, formats
from ag_jax.data.records.files import Item, Reader


def read(path: str | os.PathLike, endings: Sequence[str], reader: Reader[Item]) -> Iterator[Item]:
    """Yield what a reader yields of a file, or of all files with given endings below a folder, sorted by path.

    path: the file or folder.
    endings: what names in a folder or archive end in, without the ending of a compression.
    reader: function of the content, the name and the location of a file, as in `ag_jax.data.records.files.read`.

    Raises FileNotFoundError if there is no such path, or no such file in the folder, and ValueError, with the name of
    the file, for damaged files.
    """
    base = _base(path)
    has_files = False
    for file in _files(base, endings):
        members = files.read(
            file,
            lambda stream, name, place: [(place, list(reader(stream, name, place)))],
            lambda name: _has_ending(name, endings),
        )
        for _, items in sorted(members, key=lambda member: member[0]):  # those of an archive, by their names
            has_files = True
            yield from items
    if not has_files:
        raise FileNotFoundError(
            f"expected a file, or a folder with files that end in {' or '.join(endings)}, got {base}; check the path"
        )


def lines(path: str | os.PathLike, endings: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (location, lines without line ends) of a file, or of all files with given endings below a folder."""
    return read(
        path,
        endings,
        lambda stream, _, place: [(place, [line.rstrip("\r\n") for _, line in formats.lines(stream, place)])],
    )


def check_new(item: Hashable, name: str, place: str, places: dict[Hashable, str]) -> None:
    """Raise ValueError if an item was read before, because the queries made of it would count twice.

    item: what must be new, such as the text of a file or the name of a document.
    name: what it is, for the error message.
    place: where it is.
    places: {item: its place} of the items read so far, to which this one is added.
    """
    if item in places:
        raise ValueError(f"{place}: {name} was already read at {places[item]}; remove one of both")
    places[item] = place


def has_any(path: str | os.PathLike, endings: Sequence[str]) -> bool:
    """Return whether any file at or below a path, also inside archives, has a name with one of the endings.

    Raises ValueError, with the name of the file, for damaged archives.
    """

    def is_wanted(name: str) -> bool:
        return _has_ending(name, endings)

    return any(
        is_wanted(name)
        for file in _files(_base(path), endings)
        for name in files.read(file, lambda _, name, __: [name], is_wanted)
    )


def begins_with(path: str | os.PathLike, text: str) -> bool:
    """Return whether a path is a file, and no archive, whose first characters after white space are `text`."""
    base = _base(path)
    if not base.is_file() or _is_archive(base.name):
        return False
    with files.decompressed(base) as stream:
        return stream.read(2**10).removeprefix(codecs.BOM_UTF8).lstrip().startswith(text.encode())


def below(place: str, path: str | os.PathLike) -> str:
    """Return the location of a file that `read` yields, relative to the folder `path`, or the name of the file `path`.

    A member of an archive is below the archive. The result does not depend on where the folder is.
    """
    base = str(_base(path))
    member, separator, file = place.rpartition(f" of {base}")
    file = (file if separator else place.removeprefix(base)).strip("/") or pathlib.Path(base).name
    return f"{file}/{member}" if separator else file


def _base(path: str | os.PathLike) -> pathlib.Path:
    """Return a path with ~ expanded, and `.` made absolute, so that the paths of all files below begin with it."""
    base = pathlib.Path(path).expanduser()
    return pathlib.Path.cwd() if base == pathlib.Path() else base  # files below "." do not begin with it


def _files(base: pathlib.Path, endings: Sequence[str]) -> list[pathlib.Path]:
    """Return a file itself, or the archives and the files with given endings below a folder."""
    if not base.is_dir():
        return [base] if base.is_file() else []
    return files.walk(base, lambda name: _is_archive(name) or _has_ending(name, endings))[0]


def _has_ending(name: str, endings: Sequence[str]) -> bool:
    return name.removesuffix(files.kind(name)[1]).endswith(tuple(endings))


def _is_archive(name: str) -> bool:
    return files.kind(name)[0] == files.ARCHIVE

"""Read the files of annotated texts, also in archives, with the location of each line for error messages.

A path is a file, or a folder. Of a folder, all files below it are read whose names have one of the endings of the
format; also the members of archives (.tar, and compressed ones such as .tar.xz). Every file may be compressed, with a
further ending such as .gz. Lines may end in CR LF, and a file may begin with a byte order mark.
"""

import codecs
import contextlib
import os
import pathlib
import tarfile
from collections.abc import Iterator, Sequence

from ag_jax.data.text import fields
from ag_jax.data.text import files as text_files


def texts(path: str | os.PathLike, endings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (location, content) of a file, or of all files with given endings below a folder, sorted by path.

    path: the file or folder.
    endings: what names in a folder or archive end in, without the ending of a compression.

    Raises FileNotFoundError if there is no such path, or no such file in the folder, and ValueError, with the name of
    the file, for damaged files and for what is not UTF-8.
    """
    base = _base(path)
    has_files = False
    for file in [base] if base.is_file() else sorted(file for file in base.rglob("*") if file.is_file()):
        if _is_archive(file):
            members = _members(file, endings)
        elif file == base or _has_ending(file.name, endings):
            with text_files.decompressed(file) as stream:
                members = iter([(str(file), decoded(fields.whole(stream, str(file)), str(file)))])
        else:
            continue
        for member in members:
            has_files = True
            yield member
    if not has_files:
        raise FileNotFoundError(
            f"expected a file, or a folder with files that end in {' or '.join(endings)}, got {base}; check the path"
        )


def check_new(text: str, place: str, places: dict[str, str]) -> None:
    """Raise ValueError if an earlier file has the same text, because the queries made of it would count twice.

    places: {text: its file} of the texts read so far, to which this one is added.
    """
    if (first_place := places.setdefault(text, place)) != place:
        raise ValueError(f"{place} has the same content as {first_place}: remove one of both")


def has_any(path: str | os.PathLike, endings: Sequence[str]) -> bool:
    """Return whether any file at or below a path, also inside archives, has a name with one of the endings.

    Raises ValueError, with the name of the file, for damaged archives.
    """
    base = _base(path)
    paths = sorted(file for file in [base, *base.rglob("*")] if file.is_file())
    names = (name for file in paths for name in (_names(file) if _is_archive(file) else [file.name]))
    return any(_has_ending(name, endings) for name in names)


def begins_with(path: str | os.PathLike, text: str) -> bool:
    """Return whether a path is a file, and no archive, whose first characters after white space are `text`."""
    base = _base(path)
    if not base.is_file() or _is_archive(base):
        return False
    with text_files.decompressed(base) as stream:
        return stream.read(2**10).removeprefix(codecs.BOM_UTF8).lstrip().startswith(text.encode())


def below(place: str, path: str | os.PathLike) -> str:
    """Return a location that `texts` yields, relative to the folder `path`; the file's name if `path` is a file.

    A member of an archive is below the archive. The result does not depend on where the folder is.
    """
    base = str(_base(path))
    member, separator, file = place.rpartition(f" of {base}")
    file = (file if separator else place.removeprefix(base)).strip("/") or pathlib.Path(base).name
    return f"{file}/{member}" if separator else file


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its line end) for each line of a text.

    Lines end at line feeds only, because words may contain other line separators of Unicode.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        yield number, line.rstrip("\r")


def decoded(content: bytes, place: str) -> str:
    """Return the content of a file as text, without a byte order mark. Raises ValueError if it is not UTF-8 text."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{place}, line {line}: expected text in UTF-8, got other bytes ({error.reason}); convert the file"
        ) from error
    if "\0" in text:
        raise ValueError(f"{place}: expected text in UTF-8, got binary content; choose another file, or copy it anew")
    return text


def _base(path: str | os.PathLike) -> pathlib.Path:
    """Return a path with ~ expanded, and `.` made absolute, so that the paths of all files below begin with it."""
    base = pathlib.Path(path).expanduser()
    return pathlib.Path.cwd() if base == pathlib.Path() else base  # files below "." do not begin with it


def _has_ending(name: str, endings: Sequence[str]) -> bool:
    name = pathlib.PurePosixPath(name).name  # members of an archive may begin with "./"
    if not name:  # the folder itself
        return False
    compression = text_files.kind(name)[1]
    return not name.startswith(".") and name.removesuffix(compression).endswith(tuple(endings))


def _is_archive(file: pathlib.Path) -> bool:
    return text_files.kind(file.name)[0] == ".tar"


def _members(file: pathlib.Path, endings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (location, content) of the members of an archive whose names have one of the endings, sorted by name."""
    content: dict[str, bytes] = {}
    with _open_archive(file) as archive:
        for member in archive:
            extracted = archive.extractfile(member) if _has_ending(member.name, endings) else None
            if extracted:
                content[member.name] = fields.whole(extracted, f"{member.name} of {file}")
    for name in sorted(content):
        yield f"{name} of {file}", decoded(content[name], f"{name} of {file}")


def _names(file: pathlib.Path) -> list[str]:
    """Return the names of the files in an archive."""
    with _open_archive(file) as archive:
        return [member.name for member in archive if member.isfile()]


@contextlib.contextmanager
def _open_archive(file: pathlib.Path) -> Iterator[tarfile.TarFile]:
    """Open a tar archive as a stream, without unpacking it on disk; damage raises ValueError with its name."""
    with text_files.decompressed(file) as stream:
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                yield archive
        except tarfile.TarError as error:
            raise fields.damaged(str(file), error) from error

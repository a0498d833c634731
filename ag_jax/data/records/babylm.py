"""Read the text of the BabyLM challenge: six files of plain text in a folder.

    babylm:FOLDER        the training text: NAME.train.txt (2026) or NAME.train (up to 2025) of each NAME in `SOURCES`
    babylm:FOLDER:dev    the held-out text: NAME.dev.txt or NAME.dev

The files are read in the order of `SOURCES`, which is that of their names. They hold a sentence, an utterance or a
paragraph in each line. A heading "= = = TITLE = = =", with which articles and books begin, begins a document. A new
document also begins after every `LONGEST` lines without a heading, so that the documents that are held out for
validation come from all six files.
"""

import pathlib
import re
from collections.abc import Iterator, Sequence

from ag_jax.data.records import files as record_files
from ag_jax.data.records import stored

SOURCES = ("bnc_spoken", "childes", "gutenberg", "open_subtitles", "simple_wiki", "switchboard")
SPLITS = ("train", "dev")
LONGEST = 1000  # lines of a document
_PREFIX = "babylm:"
_HEADING = re.compile(r"\s*= = = .*= = =\s*")


def is_folder(part: str) -> bool:
    """Return whether a part of a source names a folder of the BabyLM challenge, by the prefix `babylm:`."""
    return part.startswith(_PREFIX)


def folder(part: str) -> tuple[pathlib.Path, str]:
    """Return (folder, split) of "babylm:FOLDER[:SPLIT]"; the split is "train" if none is given."""
    name = part.removeprefix(_PREFIX)
    path, _, split = name.rpartition(":")
    if split not in SPLITS:
        path, split = name, "train"
    if not path:
        raise ValueError(f"expected babylm:FOLDER or babylm:FOLDER:dev, as in babylm:train_10M, got {part!r}")
    return pathlib.Path(path).expanduser(), split


def has_split(path: str, split: str) -> bool:
    """Return whether a folder has a file of one of the six sources for a split, "train" or "dev"."""
    place = pathlib.Path(path).expanduser()
    return any((place / f"{name}.{split}{ending}").is_file() for name in SOURCES for ending in ("", ".txt"))


def absolute(part: str) -> str:
    """Return "babylm:FOLDER:SPLIT" with the folder's absolute path, which is valid in every working directory."""
    place, split = folder(part)
    return f"{_PREFIX}{place.absolute()}:{split}"


class Folder(stored.Files):
    """The six files of "babylm:FOLDER[:SPLIT]"."""

    def paths(self) -> list[pathlib.Path]:
        """Return the six files, in the order of `SOURCES`.

        Warns of other files of the same split. Raises FileNotFoundError if one of the six is missing, and ValueError if
        it is there under both of its names.
        """
        place, split = folder(self.part)
        names = sorted(path.name for path in place.iterdir())
        files = []
        for source in SOURCES:
            candidates = [f"{source}.{split}.txt", f"{source}.{split}"]
            present = [name for name in candidates if name in names]
            if len(present) != 1:
                raise (ValueError if present else FileNotFoundError)(
                    f"{place}: expected {' or '.join(candidates)}, one of the six files of the BabyLM challenge, got "
                    f"{'both' if present else record_files.listed(names)}; to read other texts, leave out babylm:"
                )
            files.append(place / present[0])
        others = [name for name in names if name.endswith((f".{split}.txt", f".{split}")) and place / name not in files]
        if others:
            record_files.warn_once(f"{place}: left out {', '.join(others)}, which is none of {', '.join(SOURCES)}")
        return files

    def name(self, file: pathlib.Path) -> str:
        """Return the name of a file in the folder."""
        return file.name

    def documents(self, file: pathlib.Path, text_field: str, pointers: Sequence[str] = ()) -> Iterator[str]:
        """Yield the documents of one of the six files. Raises ValueError, with its name, if it is empty or no text."""
        lines: list[str] = []
        for text in super().documents(file, text_field):
            for line in text.splitlines(keepends=True):
                if lines and (len(lines) == LONGEST or _HEADING.fullmatch(line)):
                    yield "".join(lines)
                    lines = []
                lines.append(line)
        if not lines:
            raise ValueError(f"{file} is empty: expected text; unpack the data of the BabyLM challenge again")
        yield "".join(lines)

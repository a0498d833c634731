"""Check by file names that the files matched by a source glob and by a target glob are translations of one another.

The n-th file of the one glob goes with the n-th file of the other. Where both have as many lines, nothing else tells if
one side lacks a file, or if the names are sorted in another order, as in `news.dev.en, news.en` and `news.de,
news.dev.de`. So names must differ in the same way in all pairs of files.
"""

import itertools
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

from ag_jax.data.records import files, sources

_WILDCARD = re.compile(r"\*\*/|\*+|\?|\[!?\]?[^\]]*\]")


def check_names(settings: Mapping[str, str], aligned: Sequence[tuple[pathlib.Path, pathlib.Path]]) -> None:
    """Raise ValueError unless the source and target file names differ in the same way, as en and de, in every pair.

    Only the text for which the wildcards of a glob stand is compared.

    settings: for the setting of each side, the files or globs that it names, with commas between several.
    aligned: the files of both sides that go together.

    Files that are given by their names, on one side or both, are not compared.
    """
    first: dict[tuple[int, int], tuple[tuple[str, str], str]] = {}
    matched = map(_wildcards, settings.values())
    for (one, other), (part, text), (other_part, other_text) in zip(aligned, *matched, strict=False):
        if text is None or other_text is None:
            continue
        difference, names = _difference(text, other_text), f"{one} with {other}"
        expected, first_names = first.setdefault((part, other_part), (difference, names))
        if difference != expected:
            raise ValueError(
                f"the files of {' and '.join(settings)} do not go together by their names: in their order, "
                f"{first_names}, but {names}. Add the files that are missing, or name all files of both sides, with "
                "commas"
            )


def _wildcards(value: str) -> list[tuple[int, str | None]]:
    """Return (index of its path or glob in `value`, text that the wildcards match or None) for each file of `value`.

    value: paths and globs, separated by commas.

    The text is what the wildcards of the glob stand for in the file's path, None for a file that is given by its name.
    """
    texts: list[tuple[int, str | None]] = []
    for number, part in enumerate(sources.parts(value)):
        plain = map(re.escape, _WILDCARD.split(os.path.expanduser(part)))
        pattern = re.compile("(.*)".join(plain), re.DOTALL)
        for path in dict.fromkeys(files.matches(part)):  # as `sources.files` does
            match = pattern.fullmatch(path)
            texts.append((number, "/".join(match.groups()) if match and match.groups() else None))
    return texts


def _difference(one: str, other: str) -> tuple[str, str]:
    """Return two texts without their common prefix and suffix."""
    start = _common(one, other)
    one, other = one[start:], other[start:]
    end = _common(one[::-1], other[::-1])
    return one[: len(one) - end], other[: len(other) - end]


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts, in characters."""
    return sum(1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(one, other, strict=False)))

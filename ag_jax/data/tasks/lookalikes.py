"""Find names that look alike but differ in code points, as by composed letters or other kinds of spaces."""

import itertools
import unicodedata
from collections.abc import Iterable


def check(names: Iterable[str], place: str) -> None:
    """Raise ValueError if two different labels look alike, because each would be a class of its own.

    place: where the names come from, for the error message.
    """
    spellings: dict[str, str] = {}
    for name in names:
        if difference := find(name, [spellings.setdefault(_normalised(name), name)]):
            raise ValueError(
                f"{place}: expected names of which no two look alike, got {difference}; write both in one way"
            )


def find(name: str, names: Iterable[str]) -> str:
    """Return how a name differs, in code points, from the first of `names` that looks alike; "" if none does."""
    for other in names:
        if other != name and _normalised(other) == _normalised(name):
            begin = len([*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(other, name, strict=False))])
            return f"{other!r} with {_code_points(other[begin:])} and {name!r} with {_code_points(name[begin:])}"
    return ""


def _normalised(name: str) -> str:
    """Return a name in a normal form, Unicode's NFC with single spaces, that is equal for names that look alike."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def _code_points(text: str) -> str:
    return " ".join(f"U+{ord(letter):04X}" for letter in text[:8]) or "nothing"

"""Divide documents into a development part, on which attention heads are chosen, and a test part.

The parts of a data set are recognised by the names of files and folders, such as `development/`, `gap-test.tsv` and
`en_ewt-ud-dev.conllu`. If there are no such parts, or not for all files, 20 % of all documents are for development:
those whose names have the smallest MD5 digests, which depends on no order of files.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from ag_jax.data.probes import files

Part = Literal["development", "test", "train"]
SHARE = 0.2  # of the documents, for development
TRAIN = "documents of the training part"
_PARTS: dict[str, Part] = {
    "development": "development",
    "dev": "development",
    "validation": "development",
    "test": "test",
    "train": "train",
}


def official(place: str) -> Part | None:
    """Return the part, `development`, `test` or `train`, that the path of a file names; None if it names none.

    If the path names several parts, the last one counts.
    """
    words = [word for word in re.split(r"[^a-z]+", place.lower()) if word in _PARTS]
    return _PARTS[words[-1]] if words else None


def by_digest(names: Iterable[str]) -> frozenset[str]:
    """Return the names of the 20 % of documents that are for development, chosen by MD5 digests of their names.

    It is at least one name, but none if there is only one document.
    """
    ordered = sorted(set(names), key=lambda name: hashlib.md5(name.encode(), usedforsecurity=False).hexdigest())
    count = max(1, round(SHARE * len(ordered))) if len(ordered) > 1 else 0
    return frozenset(ordered[:count])


def divide(documents: Sequence[tuple[str, str]], base: str | os.PathLike) -> list[Part]:
    """Return the part of each document, `development`, `test` or `train`, by its file or by a digest of its name.

    documents: name and file of each document; equal names are the same document.
    base: the path that was given; folders above a data set say nothing about its parts.

    The parts are the official ones if every file has one, and there is a file for development and one for the test;
    otherwise those of `by_digest`, with the training documents among them.
    """
    parts = [official(files.below(place, base)) for _, place in documents]
    if {"development", "test"} <= set(parts) and None not in parts:
        return [part for part in parts if part]
    development = by_digest(name for name, _ in documents)
    return ["development" if name in development else "test" for name, _ in documents]

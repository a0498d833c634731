"""The dependencies probe: whether an attention head attends from a word to its syntactic head.

See Clark et al. 2019, section 4.2.

Trees are read from files in the format CoNLL-U of Universal Dependencies: ten columns with tabs in between, a blank
line after each sentence, comments that begin with #. Ranges such as `1-2`, which are written as one word, and empty
nodes such as `1.1` are skipped.
"""

import collections
import os
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from ag_jax.data.probes import files, splits, windows
from ag_jax.data.probes.queries import Probe, Query, Window, fixed_offsets
from ag_jax.data.probes.windows import Lengths

ENDINGS = (".conllu",)
COLUMNS = 10
FORM, HEAD, RELATION = 1, 6, 7
OFFSETS = (-3, -2, -1, 1, 2)  # of the baselines
TOO_LONG = "words of sentences longer than a window"
TRAIN = "sentences of the training part"


class Sentence(NamedTuple):
    """A sentence with its dependency tree.

    document: name of the document, or of the sentence where no document has begun.
    place: the file.
    words: the words.
    heads: index of the head of each word; -1 for the root.
    relations: relation of each word to its head.
    """

    document: str
    place: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def dependencies(
    path: str | os.PathLike, *, subtypes: bool = True, lengths: Lengths | None = None, window: int = 128
) -> Probe:
    """Return the dependencies probe: whether attention heads attend from each word to its syntactic head.

    There is a query for every word, also for punctuation and for roots.

    path: a file in the format CoNLL-U, or a folder of files that end in `.conllu`.
    subtypes: whether relations keep their subtypes, as in `nsubj:pass`; otherwise `nsubj`.
    lengths: returns the number of tokens of each of some words; None counts words.
    window: the most tokens of a sentence, without special tokens; longer ones are left out.

    The kinds are the relations. Roots have no answer, so they are never right (Clark et al. count them, too). The
    baselines are those of fixed distance: `offset -1` is the word before.

    Raises FileNotFoundError and ValueError as `read` does.
    """
    sentences = list(read(path))
    parts = splits.divide([(sentence.document, sentence.place) for sentence in sentences], path)
    dropped: collections.Counter[str] = collections.Counter()
    texts: list[Window] = []
    queries: list[Query] = []
    development: list[bool] = []
    for sentence, part in zip(sentences, parts, strict=True):
        tokens = windows.count_tokens(sentence.words, lengths)
        if part == "train" or tokens.sum() > window:
            dropped.update({TRAIN: 1} if part == "train" else {TOO_LONG: len(sentence.words)})
            continue
        for at, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if not tokens[at]:
                dropped[windows.NO_TOKENS] += 1
                continue
            # A root has no answer: a query of it is never right.
            kind = relation if subtypes else relation.partition(":")[0]
            queries.append(Query(len(texts), at, at, (), (), (head,) if head >= 0 else (), kind))
            development.append(part == "development")
        texts.append(Window(sentence.document, sentence.words))
    baselines = fixed_offsets(queries, OFFSETS)
    return Probe("dependencies", tuple(texts), tuple(queries), np.asarray(development, bool), baselines, dict(dropped))


def read(path: str | os.PathLike) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file, or of all files in a folder whose names end in `ENDINGS`.

    A document begins with a comment `newdoc id = NAME`, or `newdoc`. A document or sentence without a name is named by
    its file, below the path that was given, and its line.

    Raises FileNotFoundError if there is no such file, and ValueError, with the file and the line, for what is not in
    the format or is not a tree, and for two files with the same content.
    """
    places: dict[Hashable, str] = {}
    for place, lines in files.lines(path, ENDINGS):
        files.check_new(tuple(lines), "the same content", place, places)
        document, file = "", files.below(place, path)
        rows: list[list[str]] = []
        first = 0
        # The appended blank line ends the last sentence.
        for number, line in enumerate([*lines, ""], 1):
            if line.startswith("#") and not rows:
                key, _, value = line.removeprefix("#").partition("=")
                if key.split() in (["newdoc"], ["newdoc", "id"]):
                    document = value.strip() or f"{file}, line {number}"
            elif line.strip():
                first = first if rows else number
                rows.extend(_row(line, len(rows) + 1, f"{place}, line {number}"))
            elif rows:
                # Without documents, intervals resample sentences.
                yield _sentence(rows, document or f"{file}, line {first}", place, f"{place}, line {first}")
                rows = []


def _row(line: str, expected: int, where: str) -> list[list[str]]:
    """Return the columns of a CoNLL-U line, in a list of one; [] for multiword ranges and empty nodes."""
    columns = line.split("\t")
    if len(columns) != COLUMNS:
        raise ValueError(
            f"{where}: expected {COLUMNS} columns with tabs in between, got {len(columns)}; mend the line, or the "
            "blank line between sentences"
        )
    if "-" in columns[0] or "." in columns[0]:
        return []
    if columns[0] != str(expected):
        raise ValueError(f"{where}: expected the number {expected} in the first column, got {columns[0]!r}; mend it")
    return [columns]


def _sentence(rows: list[list[str]], document: str, place: str, where: str) -> Sentence:
    """Return the sentence whose words have the CoNLL-U columns `rows`.

    Raises ValueError if the heads are not a tree.
    """
    heads = []
    for row in rows:
        head = row[HEAD]
        if not head.isascii() or not head.isdigit() or int(head) > len(rows) or head == row[0]:
            raise ValueError(
                f"{where}: word {row[0]} ({row[FORM]}): expected the number of another word of this sentence as its "
                f"head, or 0, got {head!r}; mend it"
            )
        heads.append(int(head) - 1)
    for word in range(len(heads)):
        node = word
        # A path of as many steps as there are words either reaches the root (-1) or runs in a circle.
        for _ in heads:
            node = heads[node] if node >= 0 else node
        if node >= 0:
            raise ValueError(f"{where}: the heads of word {word + 1} run in a circle: expected a tree; mend them")
    return Sentence(
        document, place, tuple(row[FORM] for row in rows), tuple(heads), tuple(row[RELATION] for row in rows)
    )

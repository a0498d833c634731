"""The GAP probe: whether an attention head attends from an ambiguous pronoun to the right one of two names.

GAP (Webster et al. 2018) has texts of Wikipedia, with as many feminine as masculine pronouns.

A file is a table with tabs, without quotes, of the columns ID, Text, Pronoun, Pronoun-offset, A, A-offset, A-coref, B,
B-offset, B-coref and URL: a pronoun, and two names, A and B, of which one or neither is its antecedent. Offsets count
characters.

A text is cut into words by a plain rule (`WORD`): a word is a run of letters and digits, also with an apostrophe
inside, as in O'Neill and wouldn't; but the endings 's, 'd, 'll, 'm, 're and 've are words of their own, as in she'd,
and so is any other character but white space.
"""

import collections
import functools
import os
import re
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from ag_jax.data.json_files import reading
from ag_jax.data.probes import files, splits, windows
from ag_jax.data.probes.queries import Probe, Query, Window
from ag_jax.data.probes.windows import Lengths, Stretch
from ag_jax.data.records import formats
from ag_jax.data.records.formats import Record

ENDINGS = ("-development.tsv", "-test.tsv")
_ENDING = r"['’](?:s|d|ll|m|re|ve)\b"
WORD = re.compile(rf"[^\W_]+(?:(?!{_ENDING})['’][^\W_]+)*|{_ENDING}|\S")
FEMININE = frozenset("she her hers".split())
MASCULINE = frozenset("he him his".split())
INSIDE = "texts in which a name or pronoun begins or ends inside a word"
APART = "texts in which the names and the pronoun do not fit in a window"
NO_TOKENS = "texts whose pronoun has no tokens"


class Row(NamedTuple):
    """An example of GAP, split into words: a text with a pronoun and the two names to which it may refer.

    name: the ID.
    place: the file.
    words: the text.
    pronoun: index of the pronoun.
    names: the words of A and of B.
    is_right: whether A, and whether B, is the antecedent.
    nearest: 1 if B begins nearer to the beginning of the pronoun than A does, counted in characters, otherwise 0.
    gender: feminine or masculine.
    """

    name: str
    place: str
    words: tuple[str, ...]
    pronoun: int
    names: tuple[Stretch, Stretch]
    is_right: tuple[bool, bool]
    nearest: int
    gender: str


def gap(path: str | os.PathLike, *, lengths: Lengths | None = None, window: int = 128) -> Probe:
    """Return the GAP probe: whether attention heads attend from a pronoun to the right one of two names.

    path: a folder with `gap-development.tsv` and `gap-test.tsv`, or a single file. The validation file is not read.
    lengths: returns the number of tokens of each of some words; None counts words.
    window: the most tokens of a text, without special tokens. Longer texts are cut, first at the end.

    The candidates are A and B, all words of each. If neither is the antecedent, nothing is right. The names may also be
    behind the pronoun. The kinds are the genders of the pronouns. The baseline is `nearest`, the name that
    begins nearest to the pronoun.

    Raises FileNotFoundError and ValueError as `read` does.
    """
    dropped: collections.Counter[str] = collections.Counter()
    rows = list(read(path, dropped))
    parts = splits.divide([(row.name, row.place) for row in rows], path)
    texts: list[Window] = []
    queries: list[Query] = []
    nearest: list[float] = []
    development: list[bool] = []
    for row, part in zip(rows, parts, strict=True):
        tokens = windows.count_tokens(row.words, lengths)
        # From the first to the last of the pronoun and the names.
        required = Stretch(
            min(row.pronoun, *(name.begin for name in row.names)),
            max(row.pronoun + 1, *(name.end for name in row.names)),
        )
        stretch = windows.around(tokens, required, window)
        if not stretch or not tokens[row.pronoun]:
            dropped[NO_TOKENS if stretch else APART] += 1
            continue
        queries.append(_query(row, len(texts), stretch.begin))
        nearest.append(float(row.is_right[row.nearest]))
        texts.append(Window(row.name, row.words[stretch.begin : stretch.end]))
        development.append(part == "development")
    baselines = {"nearest": np.asarray(nearest)}
    return Probe("gap", tuple(texts), tuple(queries), np.asarray(development, bool), baselines, dict(dropped))


def read(path: str | os.PathLike, dropped: collections.Counter[str]) -> Iterator[Row]:
    """Yield the examples of GAP files, except those counted in `dropped`, in which a name or pronoun is part of a word.

    path: a file, or a folder with files whose names end in `ENDINGS`.

    dropped: is increased by the rows whose names or pronoun are not whole words.

    Raises FileNotFoundError if there is no such file, and ValueError, with the file and the line, for what is not in
    the format, and for two files with the same content.
    """
    places: dict[Hashable, str] = {}
    table = functools.partial(formats.table, delimiter="\t", quoted=False)
    for place, located in files.read(path, ENDINGS, lambda stream, _, place: [(place, list(table(stream, place)))]):
        files.check_new(repr([record for _, record in located]), "the same content", place, places)
        for where, record in located:
            with reading(where, "mend the row, or the header"):
                row = _row(formats.require(record, where), place)
            if row:
                yield row
            else:
                dropped[INSIDE] += 1


def _row(record: Record, place: str) -> Row | None:
    """Return a record of GAP split into words; None if a name or the pronoun begins or ends inside a word."""
    text = record["Text"]
    matches = list(WORD.finditer(text))
    begins = {match.start(): index for index, match in enumerate(matches)}
    ends = {match.end(): index + 1 for index, match in enumerate(matches)}
    stretches: list[Stretch] = []
    for name in ("Pronoun", "A", "B"):
        value, offset = record[name], record[f"{name}-offset"]
        if not value or not offset.isdecimal() or not text.startswith(value, int(offset)):
            raise ValueError(f"expected {name}={value!r} at character {offset} of the text")
        # A space at the end of a name belongs to no word.
        begin, end = begins.get(int(offset)), ends.get(int(offset) + len(value.rstrip()))
        if begin is None or end is None:
            return None
        stretches.append(Stretch(begin, end))
    verdicts = record["A-coref"].upper(), record["B-coref"].upper()
    if not set(verdicts) <= {"TRUE", "FALSE"}:
        raise ValueError(f"expected TRUE or FALSE in A-coref and B-coref, got {verdicts}")
    pronoun = record["Pronoun"].lower()
    if pronoun not in FEMININE | MASCULINE:
        raise ValueError(f"expected one of {', '.join(sorted(FEMININE | MASCULINE))} as Pronoun, got {pronoun!r}")
    distances = [abs(int(record[f"{name}-offset"]) - int(record["Pronoun-offset"])) for name in "AB"]
    return Row(
        record["ID"],
        place,
        tuple(match[0] for match in matches),
        stretches[0].begin,
        (stretches[1], stretches[2]),
        (verdicts[0] == "TRUE", verdicts[1] == "TRUE"),
        int(distances[1] < distances[0]),
        "feminine" if pronoun in FEMININE else "masculine",
    )


def _query(row: Row, number: int, first: int) -> Query:
    """Return the query from the pronoun of a GAP example; its window keeps the words from index `first` on."""
    candidates = tuple(tuple(range(begin - first, end - first)) for begin, end in row.names)
    right = tuple(index for index, is_right in enumerate(row.is_right) if is_right)
    answers = sorted(word for index in right for word in candidates[index])
    at = row.pronoun - first
    return Query(number, at, at, candidates, right, tuple(answers), row.gender)

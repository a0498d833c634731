"""Read coreference annotation in the format of CoNLL-2012 (Pradhan et al. 2012), which LitBank uses, too.

    #begin document (bc/cctv/00/cctv_0001); part 000
    bc/cctv/00/cctv_0001  0  0  The     DT  (TOP(S(NP*  -  -  -  Speaker  *  -      (3
    bc/cctv/00/cctv_0001  0  1  senate  NN          *)  -  -  -  Speaker  *  -      3)
    <blank line after each sentence>
    #end document

A line is a word. Its columns are separated by tabs, in which case a column may be empty, or else by white space:
document, part, number in the sentence, word, part of speech, parse, four more of which the last is the speaker, named
entities, any number of predicates' arguments, and coreference in the last column. Their number may differ between the
sentences of a document, because a sentence has a column of arguments for each of its predicates.

The coreference of a word is a list, with | in between, of `(3` for a mention of entity 3 that begins here, `3)` for
one that ends here, and `(3)` for one of this word alone; "", "_" and "-" stand for none. Mentions may be nested or
cross each other. If two mentions of one entity are open, `3)` ends the one that began last.
"""

import bisect
import collections
import functools
import os
import re
from collections.abc import Hashable, Sequence

from ag_jax.data.conll import without_comments
from ag_jax.data.probes import files
from ag_jax.data.probes.mentions import Document, Mention, Reading, in_reading_order

ENDINGS = ("_gold_conll", ".conll")  # of files in a folder; CoNLL-2012 also has automatic annotation, `_auto_conll`
ACROSS = "mentions across the end of a sentence"
NONE = frozenset(["", "_", "-"])
WORD, TAG, PARSE, COREFERENCE = 3, 4, 5, -1  # columns
FEWEST = 12  # columns: of a sentence without predicates
_BEGIN = re.compile(r"#begin document\s+(?:\((.*)\)|(\S.*?))\s*(?:;\s*part\s+(\d+))?\s*")
_BRACKET = re.compile(r"(\()?([^()|\s]+)(\))?")


def read(path: str | os.PathLike) -> Reading:
    """Read the documents of a CoNLL-2012 file, or of all files in a folder whose names end in `ENDINGS`.

    Raises FileNotFoundError if there is no such file, and ValueError, with the file and the line, for what is not in
    the format, and for a document that occurs twice.
    """
    documents: list[Document] = []
    dropped: collections.Counter[str] = collections.Counter()
    places: dict[Hashable, str] = {}
    for place, lines in files.lines(path, ENDINGS):
        file_documents = _documents(lines, place, dropped)
        if not file_documents:
            raise ValueError(f"{place}: expected a line `#begin document (NAME); part 000`, got none; see CoNLL-2012")
        for document in file_documents:
            key = document.name, document.part
            files.check_new(key, f"document {document.name}, part {document.part},", place, places)
        documents.extend(file_documents)
    return Reading(tuple(documents), dict(dropped))


def _documents(lines: Sequence[str], place: str, dropped: collections.Counter[str]) -> list[Document]:
    """Return the documents in the lines of a CoNLL-2012 file; mentions that are left out are counted in `dropped`."""
    documents: list[Document] = []
    open_document: _OpenDocument | None = None
    number = 0
    for number, line in without_comments(lines):
        where = f"{place}, line {number}"
        if line.startswith("#begin document"):
            if open_document:
                raise ValueError(f"{where}: expected `#end document` of {open_document.name} first; add it")
            open_document = _OpenDocument(line, place, where)
        elif line.startswith("#end document"):
            if not open_document:
                raise ValueError(f"{where}: this document has no `#begin document`; add it, or remove this line")
            documents.append(open_document.close(dropped))
            open_document = None
        elif line.strip():
            if not open_document:
                raise ValueError(f"{where}: expected `#begin document (NAME); part 000` before the words; add it")
            open_document.add(line, where, number)
        elif open_document:
            open_document.end_sentence()
    if open_document:
        raise ValueError(
            f"{place}, line {number}: the file ends inside of document {open_document.name}, expected `#end document`; "
            "copy the file anew"
        )
    return documents


class _OpenDocument:
    """A document of a CoNLL-2012 file, with the words and mentions of the lines read so far."""

    def __init__(self, line: str, place: str, where: str):
        match = _BEGIN.fullmatch(line)
        if not match:
            raise ValueError(f"{where}: expected `#begin document (NAME); part 000`, got {line!r}; mend the line")
        self.name = match[1] or match[2]
        self.part = int(match[3] or 0)
        self.place = place
        self.rows: list[list[str]] = []
        self.starts: list[int] = []
        self.mentions: list[Mention] = []
        self.open_mentions: dict[str, list[tuple[int, int]]] = {}  # entity to (first word, line) of its open mentions
        self.is_between = True  # two sentences

    def end_sentence(self) -> None:
        """End the current sentence, so that the next word begins another one."""
        self.is_between = True

    def add(self, line: str, where: str, number: int) -> None:
        """Add the word of a line of the file, and begin or end the mentions that its coreference column marks."""
        columns = line.split("\t") if "\t" in line else line.split()
        expected = FEWEST if self.is_between else len(self.rows[-1])
        if len(columns) < FEWEST or (len(columns) != expected and not self.is_between):
            least = f"at least {FEWEST} columns" if self.is_between else f"{expected} columns as in the line before"
            raise ValueError(
                f"{where}: expected {least}, separated by tabs or by white space, got {len(columns)}; mend the line, "
                "or the blank lines between sentences"
            )
        if not columns[WORD].strip():
            raise ValueError(f"{where}: expected a word in column {WORD + 1}, got an empty column; mend the line")
        if self.is_between:
            self.starts.append(len(self.rows))
            self.is_between = False
        cell = columns[COREFERENCE].strip()
        for bracket in () if cell in NONE else cell.split("|"):
            self._add_bracket(bracket, len(self.rows), where, number)
        self.rows.append(columns)

    def _add_bracket(self, bracket: str, word: int, where: str, number: int) -> None:
        """Begin or end a mention, or both, at the word with index `word`, as the bracket `(3`, `3)` or `(3)` says."""
        match = _BRACKET.fullmatch(bracket)
        if not match or not (match[1] or match[3]):
            raise ValueError(
                f"{where}: expected coreference such as (3, 3), (3) or (3|(5) in the last column, got {bracket!r}; "
                "mend it"
            )
        entity = match[2]
        if match[1]:
            self.open_mentions.setdefault(entity, []).append((word, number))
        if match[3]:
            if not self.open_mentions.get(entity):
                raise ValueError(
                    f"{where}: document {self.name}: a mention of entity {entity} ends here, but none is open; add "
                    f"({entity} at its first word, or remove {entity})"
                )
            begin, _ = self.open_mentions[entity].pop()
            self.mentions.append(Mention(begin, word + 1, entity))

    def close(self, dropped: collections.Counter[str]) -> Document:
        """Return the finished document; mentions that cross the end of a sentence are counted in `dropped` instead."""
        for entity, starts in self.open_mentions.items():
            if starts:
                raise ValueError(
                    f"{self.place}, line {starts[-1][1]}: document {self.name}: a mention of entity {entity} begins "
                    f"here and does not end; add {entity}) at its last word, or remove ({entity}"
                )
        sentence = functools.partial(bisect.bisect_right, self.starts)
        mentions = [mention for mention in self.mentions if sentence(mention.begin) == sentence(mention.end - 1)]
        if len(mentions) < len(self.mentions):
            dropped[ACROSS] += len(self.mentions) - len(mentions)
        return Document(
            self.name,
            tuple(row[WORD] for row in self.rows),
            tuple(self.starts),
            in_reading_order(mentions),
            self.part,
            self.place,
            _column(self.rows, TAG),
            _column(self.rows, PARSE),
        )


def _column(rows: Sequence[Sequence[str]], column: int) -> tuple[str, ...] | None:
    """Return the values in one column of a document's words; None if the column is empty for all words."""
    values = tuple(row[column] for row in rows)
    return None if NONE.issuperset(values) else values

"""Read CoNLL-U, the format of Universal Dependencies: sentences with their trees, and documents with pointers.

A file has ten columns with tabs in between, a blank line after each sentence, and comments that begin with #. Ranges
such as `1-2`, which are written as one word, have a line of their own before their words. Empty nodes such as `1.1` are
skipped. A document begins with a comment `newdoc id = NAME`, or `newdoc`.
"""

import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ag_jax.data.records import annotated

COLUMNS = 10
_KEPT = operator.itemgetter(1, 3, 6, 7, 9)
FORM, UPOS, HEAD, RELATION, MISC = range(5)  # what `Sentence.words` keeps of the columns
# A part of `Entity=`: the mention that begins, that ends, or that does both.
_BRACKET = re.compile(r"(\()?([^()]+)(\))?")
_PART = re.compile(r"(.*)\[(\d+)/\d+\]")  # of a mention that is not continuous


class Range(NamedTuple):
    """Words that are written as one: numbers of the first and the last, from 1, and columns of its line."""

    first: int
    last: int
    surface: str
    misc: str


class Sentence(NamedTuple):
    """A sentence of a CoNLL-U file.

    line: number of the line of its first word.
    words: the columns `FORM`, `UPOS`, `HEAD`, `RELATION` and `MISC` of each word.
    ranges: words that are written as one.
    newdoc: (name, line) of the comment that begins a document before this sentence; None if none does.
    entity: the order of the parts of `Entity=`, as the last such comment of the file says; "" if none does.
    """

    line: int
    words: list[tuple[str, ...]]
    ranges: list[Range]
    newdoc: tuple[str, int] | None
    entity: str


def sentences(lines: Iterable[tuple[int, str]], place: str) -> Iterator[Sentence]:
    """Yield the sentences of a CoNLL-U file.

    lines: (line number, line) of each line, with or without its line end.
    place: the file, for error messages.

    Raises ValueError, with the line, for what is not in the format.
    """
    words: list[tuple[str, ...]] = []
    ranges: list[Range] = []
    first, newdoc, entity = 0, None, ""
    # The appended blank line ends the last sentence.
    for number, line in itertools.chain(lines, [(0, "")]):
        columns = line.rstrip("\r\n").split("\t")
        if columns[0] == str(len(words) + 1) and len(columns) == COLUMNS:
            first = first if words else number
            words.append(_KEPT(columns))
        elif line.startswith("#") and not words:
            comment = line[1:].strip()
            if comment.startswith(("newdoc", "global.Entity")):  # few do, and a sentence has many
                key, _, value = comment.partition("=")
                if key.split() in (["newdoc"], ["newdoc", "id"]):
                    newdoc = value.strip(), number
                elif key.strip() == "global.Entity":
                    entity = value.strip()
        elif not line.strip():
            if words:
                yield Sentence(first, words, ranges, newdoc, entity)
                words, ranges, newdoc = [], [], None
            elif ranges:  # it would be read as the surface of the next sentence's words
                raise ValueError(
                    f"{place}: expected words after the range {ranges[0].first}-{ranges[0].last} "
                    f"({ranges[0].surface}), got a blank line; mend it"
                )
        else:
            if len(columns) != COLUMNS:
                raise ValueError(
                    f"{place}, line {number}: expected {COLUMNS} columns with tabs in between, got {len(columns)}; "
                    "mend the line, or the blank line between sentences"
                )
            if match := re.fullmatch(r"(\d+)-(\d+)", columns[0]):
                ranges.append(Range(int(match[1]), int(match[2]), columns[1], columns[9]))
            elif not re.fullmatch(r"\d+\.\d+", columns[0]):
                raise ValueError(
                    f"{place}, line {number}: expected the number {len(words) + 1} in the first column, got "
                    f"{columns[0]!r}; mend it"
                )


def heads(sentence: Sentence, place: str) -> list[int]:
    """Return the index of the head of each word of a sentence; -1 for the root.

    Raises ValueError, with the line, if the heads are not a tree.
    """
    where, words = f"{place}, line {sentence.line}", sentence.words
    found = []
    for number, word in enumerate(words, 1):
        head = word[HEAD]
        at = int(head) if head.isascii() and head.isdigit() else number
        if at > len(words) or at == number:
            raise ValueError(
                f"{where}: word {number} ({word[FORM]}): expected the number of another word of this sentence as its "
                f"head, or 0, got {head!r}; mend it"
            )
        found.append(at - 1)
    # The word from which each word was reached first; one that is met again on the same way is in a circle.
    met = [-1] * len(words)
    for start in range(len(words)):
        at = start
        while at >= 0 and met[at] < 0:
            met[at] = start
            at = found[at]
        if at >= 0 and met[at] == start:
            raise ValueError(f"{where}: the heads of word {start + 1} run in a circle: expected a tree; mend them")
    return found


class Document(NamedTuple):
    """A document of a CoNLL-U file: its sentences, and the file."""

    sentences: Sequence[Sentence]
    place: str


def documents(lines: Iterable[tuple[int, str]], place: str, most: int) -> Iterator[Document]:
    """Yield the documents of a CoNLL-U file; without comments `newdoc`, it is a single one.

    lines, place: as in `sentences`, which also raises the errors.
    most: number of characters after which a document ends with the sentence, because it is in memory.
    """
    together: list[Sentence] = []
    size = 0
    for sentence in sentences(lines, place):
        if together and (sentence.newdoc or size >= most):
            yield Document(together, place)
            together, size = [], 0
        together.append(sentence)
        size += sum(len(word[FORM]) + 1 for word in sentence.words)
    if together:
        yield Document(together, place)


def text_of(document: Document, names: Sequence[str], trees: annotated.Trees) -> annotated.Annotated:
    """Return the annotated text of a document.

    names, trees: as in `annotated.text_of`.

    Words of a range are parts of what is written, as in don't = do + n't; where they are not, as in zum = zu + dem, all
    of them begin with its first character. `head` is the syntactic head, and `antecedent` is made of `Entity=` of
    CorefUD. Any other name is a key of the last column with the number of a word of the sentence, or 0.

    Raises ValueError, with the line, for words without a character, ranges that are none of the sentence, heads that
    are not a tree, and numbers that are not those of words.
    """
    surfaces: list[str] = []
    spaces: list[bool] = []
    units, within, lengths = list[int](), list[int](), list[int]()
    ends, ends_of_units = list[int](), list[int]()
    has_ranges = any(sentence.ranges for sentence in document.sentences)
    for sentence in document.sentences:
        words = sentence.words
        number = 0  # of words so far
        for first, last, surface, misc in [*sentence.ranges, Range(len(words) + 1, 0, "", "")]:
            if not number < first <= last <= len(words) and last:
                raise ValueError(
                    f"{document.place}, line {sentence.line}: expected ranges of the {len(words)} words of this "
                    f"sentence, one behind the other, got {first}-{last}; mend it"
                )
            plain = words[number : first - 1]
            if has_ranges:
                units += range(len(surfaces), len(surfaces) + len(plain))
                within += [0] * len(plain)
                lengths += [len(word[FORM]) for word in plain]
            surfaces += [word[FORM] for word in plain]
            spaces += [word[MISC] == "_" or "SpaceAfter=No" not in word[MISC].split("|") for word in plain]
            if last:
                forms = [word[FORM] for word in words[first - 1 : last]]
                is_cut = "".join(forms) == surface
                sizes = [len(form) if is_cut else len(surface) for form in forms]
                units += [len(surfaces)] * len(forms)
                lengths += sizes
                within += itertools.accumulate(sizes[:-1], initial=0) if is_cut else [0] * len(forms)
                surfaces.append(surface)
                spaces.append("SpaceAfter=No" not in misc.split("|"))
            number = last
        ends.append((ends[-1] if ends else 0) + len(words))
        ends_of_units.append(len(surfaces))
    if not all(surfaces):
        raise ValueError(
            f"{document.place}, line {document.sentences[0].line}: expected words in the second column, got an empty "
            "one in this document; mend it"
        )
    parts_W = (np.array(units), np.array(within), np.array(lengths)) if has_ranges else None
    where = f"{document.place}, line {document.sentences[0].line}"
    columns = annotated.Columns(lambda name: _column(document, name), lambda: _names(document), where)
    return annotated.text_of(surfaces, spaces, np.array(ends), columns, names, trees, parts_W, np.array(ends_of_units))


def _names(document: Document) -> Iterator[str]:
    """Yield the names of the annotations of a document: those of keys have a number for some word."""
    yield "head"
    for part in {part for sentence in document.sentences for word in sentence.words for part in _parts(word)}:
        key, _, value = part.partition("=")
        if key == "Entity" or value.isdecimal():
            yield "antecedent" if key == "Entity" else key


def _parts(word: tuple[str, ...]) -> list[str]:
    """Return the parts `KEY=VALUE` of the last column of a word."""
    return [] if word[MISC] == "_" else word[MISC].split("|")


def _column(document: Document, name: str) -> np.ndarray | None:
    """Return the word to which each word of a document points by an annotation; None if it lacks the annotation."""
    if name in annotated.MADE_OF_HEADS:
        return None
    if name == "antecedent":
        return _antecedents(document)
    if name == annotated.PUNCTUATION:
        words = itertools.chain.from_iterable(sentence.words for sentence in document.sentences)
        return np.array([at if word[UPOS] == "PUNCT" else annotated.NONE for at, word in enumerate(words)], np.int64)
    if name == "head":
        targets = [heads(sentence, document.place) for sentence in document.sentences]
    else:
        targets = [_numbers(sentence, name, document.place) for sentence in document.sentences]
        if not any(targets):
            return None
    sizes = [len(sentence.words) for sentence in document.sentences]
    firsts_W = np.repeat(np.cumsum(sizes) - sizes, sizes)
    targets = [of_sentence or [-1] * size for of_sentence, size in zip(targets, sizes, strict=True)]
    targets_W = np.fromiter(itertools.chain.from_iterable(targets), np.int64, len(firsts_W))
    return np.where(targets_W < 0, annotated.NONE, targets_W + firsts_W)


def _numbers(sentence: Sentence, name: str, place: str) -> list[int]:
    """Return the index of a word of the sentence under a key of the last column, -1 for none; [] if no word has it."""
    targets: list[int] = []
    for number, word in enumerate(sentence.words):
        for part in _parts(word):
            key, _, value = part.partition("=")
            if key != name:
                continue
            if not value.isdecimal() or int(value) > len(sentence.words):
                raise ValueError(
                    f"{place}, line {sentence.line}: word {number + 1} ({word[FORM]}): expected the number of a word "
                    f"of this sentence, or 0, as {name}, got {value!r}; mend it"
                )
            targets = targets or [-1] * len(sentence.words)
            targets[number] = int(value) - 1
    return targets


def _antecedents(document: Document) -> np.ndarray | None:
    """Return the antecedents of the mentions of `Entity=`; None if there is none.

    Of a mention that is not continuous, the first part counts.
    """
    mentions: list[tuple[int, int, str]] = []
    begun: dict[str, list[int]] = {}  # first word of the mentions, by entity, that have not ended
    first = 0
    for sentence in document.sentences:
        order = sentence.entity.split("-")
        place = next((order.index(name) for name in ("eid", "GRP") if name in order), 0)
        for number, word in enumerate(sentence.words, first):
            for value in (part.removeprefix("Entity=") for part in _parts(word) if part.startswith("Entity=")):
                for begins, content, ends in _BRACKET.findall(value):
                    fields = content.split("-")
                    entity = fields[min(place, len(fields) - 1)] if begins else content
                    if begins:
                        begun.setdefault(entity, []).append(number)
                    if ends and not begun.get(entity):
                        raise ValueError(
                            f"{document.place}, line {sentence.line}: word {number - first + 1} ({word[FORM]}): a "
                            f"mention of entity {entity} ends here, but none is open; mend Entity="
                        )
                    if ends:
                        begin, part = begun[entity].pop(), _PART.fullmatch(entity)
                        if part is None or part[2] == "1":
                            mentions.append((begin, number + 1, part[1] if part else entity))
        first += len(sentence.words)
    if unended := [entity for entity, open_mentions in begun.items() if open_mentions]:
        raise ValueError(
            f"{document.place}, line {document.sentences[0].line}: a mention of entity {unended[0]} does not end in "
            "this document; mend Entity="
        )
    return annotated.antecedents(mentions, first) if mentions else None

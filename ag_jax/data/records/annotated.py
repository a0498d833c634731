"""Texts with their words, and the word to which each word points: its syntactic head, its antecedent, or another one.

An annotated text is the words of its file, so text and annotation cannot drift apart. It comes from CoNLL-U (`conllu`)
or from JSON objects with these keys, of which only the first is needed:

    words      the words
    spaces     for each word, whether a space follows it; by default after every word
    sentences  for each sentence, the number of words up to its end; by default all words are one sentence
    NAME       for each word, the number of the word that it points to, from 1; 0 or null if it points to none

Shape letters: S sentences, U units of writing (words, or several words that are written as one), W words.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Pointers = dict[str, np.ndarray]
Trees = dict[int, np.ndarray]  # the heads of the last sentence of each number of words, for `other_tree`
NONE = -1  # in place of the index of the word to which a word points
WORDS = "words"  # key of the words in a JSON object
# Name under which a text has its punctuation marks, each of which points to itself. No column can have such a name.
PUNCTUATION = "upos=PUNCT"


class Columns(NamedTuple):
    """The annotation of a text.

    column: function that returns the word to which each word points, `NONE` for none, by the name of what is annotated;
        None if the text does not have it.
    names: function that returns the names that the text has.
    where: the location of the text, for error messages.
    """

    column: Callable[[str], np.ndarray | None]
    names: Callable[[], Iterable[str]]
    where: str

    def pointers(self, names: Sequence[str], ends_S: np.ndarray, trees: Trees) -> Pointers:
        """Return the pointers of those of some names that the text has, or that can be made from its heads.

        ends_S: number of words up to the end of each sentence.
        trees: heads of earlier sentences, to which those of this text are added.

        Raises ValueError if the heads run in a circle and a name needs the root.
        """
        column, found = functools.cache(self.column), dict[str, np.ndarray | None]()
        for name in names:
            found[name] = column(name)
            if found[name] is None and name in MADE_OF_HEADS and (heads_W := column("head")) is not None:
                found[name] = MADE_OF_HEADS[name](heads_W, ends_S, trees, self.where)
        return {name: targets_W for name, targets_W in found.items() if targets_W is not None}

    def named(self) -> frozenset[str]:
        """Return the names that the text has, with those that are made from its heads."""
        names = frozenset(self.names())
        return names | frozenset(MADE_OF_HEADS) if "head" in names else names


class Annotated(str):
    """A text with its words and sentences; its slices are such texts, too.

    starts_W, stops_W: index of the first character of each word, and of the one after its last; starts ascend.
    ends_S: index of the character after each sentence. A space between sentences belongs to the second one.
    pointers: by name, the index of the word to which each word points, `NONE` if there is none.
    columns: the whole annotation of its file; None for a copy of the text in another process.
    """

    starts_W: np.ndarray
    stops_W: np.ndarray
    ends_S: np.ndarray
    pointers: Pointers
    columns: Columns | None

    def __new__(
        cls,
        text: str,
        starts_W: np.ndarray,
        stops_W: np.ndarray,
        ends_S: np.ndarray,
        pointers: Pointers,
        columns: Columns | None = None,
    ) -> "Annotated":
        """Return a text with its annotation."""
        made = super().__new__(cls, text)
        made.starts_W, made.stops_W, made.ends_S = starts_W, stops_W, ends_S
        made.pointers, made.columns = pointers, columns
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Annotated, (str(self), self.starts_W, self.stops_W, self.ends_S, self.pointers)

    def __getitem__(self, index: Any) -> str:
        """Return a part of the text, which has the words that begin in it, and the pointers between them."""
        text = super().__getitem__(index)
        if not isinstance(index, slice):
            return text
        start, stop, _ = index.indices(len(self))
        first, last = np.searchsorted(self.starts_W, (start, stop)).tolist()
        pointers = {}
        for name, targets_W in self.pointers.items():
            part_W = targets_W[first:last]
            pointers[name] = np.where((part_W >= first) & (part_W < last), part_W - first, NONE)
        inside_S = self.ends_S[(self.ends_S > start) & (self.ends_S < stop)]
        return Annotated(
            text,
            self.starts_W[first:last] - start,
            np.minimum(self.stops_W[first:last], stop) - start,
            np.append(inside_S, stop) - start if text else inside_S,
            pointers,
            self.columns,
        )

    def sentences(self) -> list[str]:
        """Return the sentences as plain texts, which together are the text."""
        text = str(self)
        return [text[start:stop] for start, stop in itertools.pairwise([0, *self.ends_S.tolist()])]


def child_first(heads_W: np.ndarray, ends_S: np.ndarray, trees: Trees, where: str) -> np.ndarray:
    """Return the first word of which each word is the head."""
    del ends_S, trees, where
    children_W = np.full(len(heads_W), len(heads_W))
    has_head_N = np.flatnonzero(heads_W != NONE)
    np.minimum.at(children_W, heads_W[has_head_N], has_head_N)
    return np.where(children_W < len(heads_W), children_W, NONE)


def root(heads_W: np.ndarray, ends_S: np.ndarray, trees: Trees, where: str) -> np.ndarray:
    """Return the root of the tree of each word; a root has none. Raises ValueError if the heads run in a circle."""
    del ends_S, trees
    word_W = np.arange(len(heads_W))
    above_W = np.where(heads_W == NONE, word_W, heads_W)
    for _ in range(len(heads_W).bit_length()):  # each round doubles the number of steps towards the root
        above_W = above_W[above_W]
    if (in_circle_N := np.flatnonzero(heads_W[above_W] != NONE)).size:
        raise ValueError(f"{where}: the heads of word {in_circle_N[0] + 1} run in a circle: expected a tree; mend them")
    return np.where(above_W == word_W, NONE, above_W)


def other_tree(heads_W: np.ndarray, ends_S: np.ndarray, trees: Trees, where: str) -> np.ndarray:
    """Return the heads of the last sentence before each sentence that has as many words, in `trees` or here.

    Sentences without such a sentence have no pointers, and nor have words whose head is in another sentence.
    """
    del where
    other_W = np.full(len(heads_W), NONE)
    for begin, end in itertools.pairwise([0, *ends_S.tolist()]):
        if (tree := trees.get(end - begin)) is not None:
            other_W[begin:end] = np.where(tree == NONE, NONE, tree + begin)
        heads = heads_W[begin:end]
        trees[end - begin] = np.where((heads >= begin) & (heads < end), heads - begin, NONE)
    return other_W


MADE_OF_HEADS: Mapping[str, Callable[[np.ndarray, np.ndarray, Trees, str], np.ndarray]] = {
    "child_first": child_first,
    "root": root,
    "other_tree": other_tree,
}


def antecedents(mentions: Iterable[tuple[int, int, str]], words: int) -> np.ndarray:
    """Return for the first word of each mention the first word of the previous mention of the same entity.

    mentions: (first word, word after the last, entity) of each mention.
    words: number of words.

    Of mentions that begin with the same word, the longest that has a previous mention counts.
    """
    found_W = np.full(words, NONE)
    last: dict[str, int] = {}  # first word of the last mention of each entity
    for begin, _, entity in sorted(mentions, key=lambda mention: (mention[0], -mention[1])):
        if found_W[begin] == NONE and last.get(entity, begin) < begin:
            found_W[begin] = last[entity]
        last[entity] = begin
    return found_W


def text_of(
    surfaces: Sequence[str],
    spaces: Sequence[bool],
    ends_S: np.ndarray,
    columns: Columns,
    names: Sequence[str],
    trees: Trees,
    parts: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    ends_of_units_S: np.ndarray | None = None,
) -> Annotated:
    """Return the annotated text of a document.

    surfaces: its units `U` as they are written.
    spaces: whether a space follows each unit.
    ends_S: number of words up to the end of each sentence.
    columns: its annotation.
    names: names of the pointers that are wanted; those that the document lacks are left out.
    trees: heads of earlier sentences, as in `Columns.pointers`.
    parts: for each word, its unit, its first character in the unit, and its length; None if every unit is a word.
    ends_of_units_S: number of units up to the end of each sentence; None stands for `ends_S`.
    """
    before_U = [False, *spaces[:-1]]
    text = "".join([f" {unit}" if space else unit for unit, space in zip(surfaces, before_U, strict=True)])
    lengths_U = np.fromiter(map(len, surfaces), np.int64, len(surfaces))
    stops_U = np.cumsum(lengths_U + before_U)
    ends_U = ends_S if ends_of_units_S is None else ends_of_units_S
    starts_W, stops_W = stops_U - lengths_U, stops_U
    if parts:
        unit_W, within_W, lengths_W = parts
        starts_W = starts_W[unit_W] + within_W
        stops_W = starts_W + lengths_W
    return Annotated(text, starts_W, stops_W, stops_U[ends_U - 1], columns.pointers(names, ends_S, trees), columns)


def is_annotated(record: Mapping[str, Any], field: str) -> bool:
    """Return whether a JSON object is an annotated text: `field`, or `WORDS` if it lacks this, has a list."""
    return isinstance(record[field] if field in record else record.get(WORDS), list)


def of_json(record: Mapping[str, Any], field: str, where: str, names: Sequence[str], trees: Trees) -> str:
    """Return the annotated text of a JSON object, as in the docstring of this module.

    field: key of the words, unless they are under `WORDS`.
    where: the location of the record.
    names, trees: as in `text_of`.

    Raises ValueError, with the location, for what is not in the format.
    """
    key = field if field in record else WORDS
    words = record[key]
    spaces, ends = record.get("spaces", [True] * len(words)), record.get("sentences", [len(words)])

    def check(is_right: bool, key: str, expected: str) -> None:
        if not is_right:
            raise ValueError(f'{where}: the field "{key}" must be {expected}, got {str(record[key])[:60]}; mend it')

    check(all(isinstance(word, str) and word for word in words), key, "a list of words with at least one character")
    if not words:
        return ""
    is_list = isinstance(spaces, list) and len(spaces) == len(words)
    check(
        is_list and all(isinstance(space, bool) for space in spaces), "spaces", "a list of true or false for each word"
    )
    is_list = isinstance(ends, list) and all(type(end) is int for end in ends)
    check(
        is_list and ends[-1:] == [len(words)] and all(low < high for low, high in itertools.pairwise([0, *ends])),
        "sentences",
        f"a list of ascending numbers of words, up to {len(words)}",
    )

    def column(name: str) -> np.ndarray | None:
        if name not in record:
            return None
        values = record[name]
        check(
            isinstance(values, list)
            and len(values) == len(words)
            and all(value is None or (type(value) is int and 0 <= value <= len(words)) for value in values),
            name,
            f"a list with the number of a word, 1 to {len(words)}, or 0 or null, for each of the {len(words)} words",
        )
        return np.fromiter((value or 0 for value in values), np.int64, len(values)) - 1

    columns = Columns(column, lambda: set(record) - {key, "spaces", "sentences"}, where)
    return text_of(words, spaces, np.array(ends), columns, names, trees)

"""The dependencies probe: whether an attention head attends from a word to its syntactic head.

See Clark et al. 2019, section 4.2.

Trees are read from files in the format CoNLL-U of Universal Dependencies (`ag_jax.data.records.conllu`). The words are
those of the trees: ranges such as `1-2`, which are written as one word, are not looked at.
"""

import collections
import os
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from ag_jax.data.probes import files, splits, windows
from ag_jax.data.probes.queries import Probe, Query, Window, fixed_offsets
from ag_jax.data.probes.windows import Lengths
from ag_jax.data.records import conllu

ENDINGS = (".conllu",)
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
        for sentence in conllu.sentences(enumerate(lines, 1), place):
            if sentence.newdoc:
                name, line = sentence.newdoc
                document = name or f"{file}, line {line}"
            words = tuple(word[conllu.FORM] for word in sentence.words)
            relations = tuple(word[conllu.RELATION] for word in sentence.words)
            # Without documents, intervals resample sentences.
            of_document = document or f"{file}, line {sentence.line}"
            yield Sentence(of_document, place, words, tuple(conllu.heads(sentence, place)), relations)

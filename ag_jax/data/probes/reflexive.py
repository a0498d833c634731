"""The reflexives probe: whether an attention head attends from `herself` to `the girl`, in synthetic sentences.

The sentences have two forms:

    DETERMINER NOUN MODAL VERB REFLEXIVE                          our prince will love himself
    DETERMINER NOUN who|that MODAL VERB MODAL VERB REFLEXIVE      the nun who can sleep would hurt herself

These are the sentences of the Attention Guidance code (`reflexive.txt`), which are those of Lin et al. (2019),
`refl.0`. The files refl.1 to refl.8 have one or two more nouns of the same or the other gender. A line is

    sentence TAB index of the reflexive TAB words of the antecedent TAB words of the other nouns

where all nouns have two words, with their determiners, such as "4 5 9 10" for two nouns.
"""

import collections
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from ag_jax.data.probes import files, splits, windows
from ag_jax.data.probes.queries import Probe, Query, Window, fixed_offsets
from ag_jax.data.probes.windows import Lengths
from ag_jax.data.randomness import Draws

Distractor = Literal["before", "after", "none"]
NAMES = ("reflexive.txt", "refl.0", "refl.0.gz")  # the file of a folder, the first that is there
TOO_LONG = "sentences longer than a window"
SEVERAL_TOKENS = "sentences with a word that is not one token"
FEWEST = 0.01  # of the sentences have words of one token; with fewer, those with words of several tokens are kept
KEPT = f"sentences with words of several tokens, which were kept because fewer than {FEWEST:.0%} have none"

DETERMINERS = "her my our some the your".split()
NOUNS = {
    "masculine": "actor boy brother father husband king lord man monk nephew prince uncle wizard".split(),
    "feminine": "actress aunt girl lady mother niece nun princess queen sister wife witch woman".split(),
}
REFLEXIVES = {"masculine": "himself", "feminine": "herself"}
MODALS = "can could will would".split()
VERBS = "accept clean comfort dress hit hurt kick love remember".split()
CLAUSE_VERBS = "change cry eat move read sleep smile swim wait".split()
RELATIVES = ["that", "who"]
# Texts of the Attention Guidance code, of which one stands beside each sentence. They make the distance between words
# and the ends of the text vary.
DISTRACTORS = tuple(
    tuple(text.split())
    for text in (
        "The people believed .",
        "and as obama says ,",
        "the girl believes that .",
        "and that is what the boy said .",
        "and it is like they say .",
        "and as they say ,",
        "everyone believes that",
        "and",
    )
)
_LINE = re.compile(r"([^\t]+)\t(\d+)\t(\d+(?: \d+)*) ?(?:\t((?:\d+ \d+ ?)*))?")


class Sentence(NamedTuple):
    """A sentence with a reflexive pronoun, its antecedent and the other nouns.

    words: the words.
    at: index of the reflexive.
    antecedent: indices of the words of its antecedent.
    others: the words of each other noun.
    """

    words: tuple[str, ...]
    at: int
    antecedent: tuple[int, ...]
    others: tuple[tuple[int, ...], ...] = ()

    @property
    def nearest(self) -> tuple[int, ...]:
        """The words of the nearest noun before the reflexive; empty if all nouns are behind it."""
        return max((noun for noun in (self.antecedent, *self.others) if noun[-1] < self.at), default=())

    @property
    def gender(self) -> str:
        """The gender of the reflexive pronoun, `masculine` or `feminine`."""
        return next(gender for gender, word in REFLEXIVES.items() if word == self.words[self.at])


def reflexive(
    path: str | os.PathLike | None = None,
    *,
    distractor: Distractor = "before",
    lengths: Lengths | None = None,
    window: int = 128,
    count: int = 10_000,
) -> Probe:
    """Return the probe of attention from a reflexive to its antecedent, with generated sentences if `path` is None.

    path: a file of the format above, or a folder with a file of `NAMES`; None makes the sentences (`generate`).
    distractor: where one of the `DISTRACTORS`, in turn, stands: `before` the sentence as in the released code, `after`
        it as in the paper, or `none`.
    lengths: returns the number of tokens of each of some words. With it, sentences with a word that is not one token
        are left out, as in the code, because words of many tokens get more attention; but if less than the share
        `FEWEST` is left, such as with a small vocabulary, those with words of several tokens are kept, which `dropped`
        says. None keeps all.
    window: the most tokens of a sentence with its distractor, without special tokens.
    count: number of sentences to make; only without `path`.

    The kinds are the genders of the reflexives. If a sentence has other nouns, its nouns are the candidates. Any word
    of an antecedent is correct, as in the code. The baselines are those of fixed distance and `nearest noun`, the
    nearest noun before the reflexive, which is always right in generated sentences and in `refl.0`, and never in
    refl.1 to refl.8.

    Raises FileNotFoundError if there is no such file, and ValueError, with the line, for what is not in the format.
    """
    sentences = list(generate(count) if path is None else read(path))
    is_development = splits.by_digest(" ".join(sentence.words) for sentence in sentences)
    dropped: collections.Counter[str] = collections.Counter()
    texts: list[Window] = []
    queries: list[Query] = []
    development: list[bool] = []
    nearest: list[float] = []
    tokens = _tokens(sentences, lengths)
    are_single = [all(tokens[word] == 1 for word in sentence.words) for sentence in sentences]
    keep_several = sum(are_single) < FEWEST * len(sentences)
    for number, (sentence, is_single) in enumerate(zip(sentences, are_single, strict=True)):
        if not is_single:
            keep = keep_several and all(tokens[word] for word in sentence.words)
            dropped[KEPT if keep else SEVERAL_TOKENS] += 1
            if not keep:
                continue
        beside = () if distractor == "none" else DISTRACTORS[number % len(DISTRACTORS)]
        if sum(tokens[word] for word in (*beside, *sentence.words)) > window:
            dropped[TOO_LONG] += 1
            continue
        words = (*sentence.words, *beside) if distractor == "after" else (*beside, *sentence.words)
        name = " ".join(sentence.words)
        queries.append(_query(sentence, len(texts), len(beside) if distractor == "before" else 0))
        texts.append(Window(name, words))
        development.append(name in is_development)
        nearest.append(float(sentence.nearest == sentence.antecedent))
    # The nouns of the text beside the sentence are never between its nouns and the reflexive.
    baselines = {"nearest noun": np.asarray(nearest), **fixed_offsets(queries)}
    return Probe("reflexives", tuple(texts), tuple(queries), np.asarray(development, bool), baselines, dict(dropped))


def generate(count: int, seed: int = 0) -> Iterator[Sentence]:
    """Yield `count` distinct random sentences with a reflexive pronoun, some of which have a relative clause.

    A draw has a relative clause 1 time in 7.

    With 10,000 sentences, nearly all 5,616 of the shorter form occur, as in `reflexive.txt`, which has 5,570 of them;
    of the 404,352 of the longer form, this file has 4,430.

    Raises ValueError if there are not as many sentences.
    """
    most = len(DETERMINERS) * sum(map(len, NOUNS.values())) * len(MODALS) * len(VERBS)
    most += most * len(RELATIVES) * len(MODALS) * len(CLAUSE_VERBS)
    if not 1 <= count <= most // 2:
        raise ValueError(f"expected 1 to {most // 2:,} sentences, got count={count:,}; ask for fewer")
    distinct: set[tuple[str, ...]] = set()
    number = 0
    while len(distinct) < count:
        sentence = _draw_sentence(Draws(seed, number))
        number += 1
        if sentence.words not in distinct:
            distinct.add(sentence.words)
            yield sentence


def read(path: str | os.PathLike) -> Iterator[Sentence]:
    """Yield the sentences of a file of reflexives, or of the first file of `NAMES` that a folder has."""
    base = pathlib.Path(path).expanduser()
    if base.is_dir():
        paths = [base / name for name in NAMES if (base / name).is_file()]
        if not paths:
            raise FileNotFoundError(f"{base} has no {', '.join(NAMES)}; name the file, or choose another folder")
        base = paths[0]
    for place, lines in files.lines(base, [""]):
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _sentence_of_line(line, f"{place}, line {number}")


def _sentence_of_line(line: str, where: str) -> Sentence:
    """Return the sentence in a line of a file of reflexives, in the format of the module docstring.

    Raises ValueError, with the location `where`, if the line is not of the format.
    """
    match = _LINE.fullmatch(line)
    if not match:
        raise ValueError(
            f"{where}: expected a sentence, the index of its reflexive, those of its antecedent and those of other "
            f"nouns, with tabs in between, got {line[:80]!r}; mend the line"
        )
    words = tuple(match[1].split())
    at, antecedent = int(match[2]), tuple(map(int, match[3].split()))
    indices = [int(index) for index in (match[4] or "").split()]
    others = tuple(zip(indices[::2], indices[1::2], strict=True))
    if max(at, *antecedent, *indices) >= len(words) or words[at] not in REFLEXIVES.values():
        raise ValueError(
            f"{where}: expected indices of {len(words)} words, the first of them of himself or herself, got "
            f"{match[2]}, {match[3]} and {match[4] or 'none'}; mend the line"
        )
    return Sentence(words, at, antecedent, others)


def _draw_sentence(draws: Draws) -> Sentence:
    """Return a random sentence with a reflexive, drawn from the grammar of the module docstring."""

    def one_of(words: list[str]) -> str:
        return words[draws.integer(0, len(words) - 1)]

    is_long = draws.integer(1, 7) == 7
    gender = one_of(list(NOUNS))
    subject = [one_of(DETERMINERS), one_of(NOUNS[gender])]
    clause = [one_of(RELATIVES), one_of(MODALS), one_of(CLAUSE_VERBS)] if is_long else []
    words = (*subject, *clause, one_of(MODALS), one_of(VERBS), REFLEXIVES[gender])
    return Sentence(words, len(words) - 1, (0, 1))


def _tokens(sentences: list[Sentence], lengths: Lengths | None) -> dict[str, int]:
    """Return {word: number of tokens} for all words of the sentences and `DISTRACTORS`; all are 1 without `lengths`."""
    texts = [sentence.words for sentence in sentences]
    words = list(dict.fromkeys(word for text in (*texts, *DISTRACTORS) for word in text))
    return dict(zip(words, windows.count_tokens(words, lengths).tolist(), strict=True))


def _query(sentence: Sentence, number: int, shift: int) -> Query:
    """Return the query from the reflexive of a sentence that stands behind `shift` words in window `number`."""
    groups = sorted([sentence.antecedent, *sentence.others]) if sentence.others else []
    return Query(
        window=number,
        at=sentence.at + shift,
        begin=sentence.at + shift,
        candidates=tuple(tuple(word + shift for word in group) for group in groups),
        right=(groups.index(sentence.antecedent),) if groups else (),
        answers=tuple(word + shift for word in sentence.antecedent),
        kind=sentence.gender,
    )

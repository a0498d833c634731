"""Queries to attention heads: a word in a text, and the words to which a head should attend from it.

A *probe* asks, for many words of many texts, at which other word each attention head looks most. A head answers a query
correctly if that word is one of the query's answers (Clark et al. 2019, section 4).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

From = Literal["mean", "first"]  # attention from a word of several tokens
To = Literal["sum", "mean"]  # attention to a word of several tokens
Mode = Literal["mentions", "words", "positions"]  # among what a head chooses
ALL = "all"  # in reports, the kind that stands for the queries of every kind


@dataclasses.dataclass(frozen=True)
class Window:
    """A text that a model reads at once: a document, or a part of one.

    document: name of the document, of which windows are parts; confidence intervals resample documents.
    words: the text, as words.
    spaces: whether a space follows each word; None stands for a space after every word.
    """

    document: str
    words: tuple[str, ...]
    spaces: tuple[bool, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Query:
    """A query to attention heads: the word from which they attend, and the words to which they should attend.

    window: index of the window.
    at: index of the word in the window, for a mention its head word.
    begin: index of the mention's first word, `at` for a single word. In the mode `words` of a probe with `before`, a
        head chooses only among words before this one.
    candidates: the groups of words among which the mode `mentions` chooses, each the head word of a mention, or all
        words of a name; empty if the probe has no mentions.
    right: indices of the candidates that are correct.
    answers: the words that count as correct in the modes `words` and `positions`; empty if no word is correct, such as
        for the root of a tree, or for a pronoun that stands for neither of two names.
    kind: category by which scores are reported, such as `pronominal`, or a dependency relation.
    """

    window: int
    at: int
    begin: int
    candidates: tuple[tuple[int, ...], ...]
    right: tuple[int, ...]
    answers: tuple[int, ...]
    kind: str


def fixed_offsets(queries: Sequence[Query], offsets: Iterable[int] | None = None) -> dict[str, np.ndarray]:
    """Return the baselines of fixed distance, {`offset -1`: scores `(queries,)`}: 1 where that word is an answer.

    offsets: distances from the word of a query; None for all distances at which a query has an answer.
    """
    distances = [{answer - query.at for answer in query.answers} for query in queries]
    offsets = sorted(set().union(*distances)) if offsets is None else offsets
    return {f"offset {offset:+}": np.asarray([float(offset in each) for each in distances]) for offset in offsets}


@dataclasses.dataclass(frozen=True)
class Probe:
    """A probe of attention heads: the texts and queries made from a data set, with the scores of baselines.

    name: such as `coreference`, for error messages.
    windows: the texts.
    queries: the questions to every head.
    development: whether each query belongs to the part on which heads are chosen, `(queries,)` booleans.
    baselines: name to the score of each query in [0, 1], `(queries,)`, of rules that read no attention. Names that
        begin with `offset` are rules of fixed distance, of which the best is chosen like a head.
    dropped: reason to the number of what was left out, such as mentions without an antecedent in their window.
    before: whether a head chooses only among words before the query's `begin` in the mode `words`.
    """

    name: str
    windows: tuple[Window, ...]
    queries: tuple[Query, ...]
    development: np.ndarray
    baselines: Mapping[str, np.ndarray]
    dropped: Mapping[str, int]
    before: bool = False

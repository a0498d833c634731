"""Queries whether attention heads attend from anaphors to antecedents, made from the mentions of a document.

In the shapes, M is a mention of a window as an anaphor, and C is a mention as a candidate.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from ag_jax.data.probes import baselines, constituents, rules
from ag_jax.data.probes.baselines import Mentions
from ag_jax.data.probes.mentions import Document, Mention
from ag_jax.data.probes.queries import Query
from ag_jax.data.probes.rules import Features, HeadWord, Kind
from ag_jax.data.probes.windows import Stretch

Direction = Literal["before", "both"]
CUT = "mentions across the end of a window"
ALONE = "anaphors without an antecedent in their window"
NO_TOKENS = "anaphors whose head word has no tokens"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of coreference queries: how head words are found, and on which side antecedents are searched.

    head_word: `rule` takes the head word by a rule of words, `last` the last word, `parse` that of the constituent.
    direction: `before` takes antecedents before the mention, `both` also mentions of its entity after it.
    """

    head_word: HeadWord = "rule"
    direction: Direction = "before"


class DocumentQueries(NamedTuple):
    """The coreference queries of a document, the scores of the baselines on them, and counts of dropped mentions.

    queries: with the windows counted from the first one of the document.
    scores: for each baseline, the score of each query, `(queries,)`.
    dropped: reason to number.
    """

    queries: list[Query]
    scores: dict[str, np.ndarray]
    dropped: dict[str, int]


class _MentionTable(NamedTuple):
    """The mentions of a document as columns, such as head words, types and texts, with an entry for each mention.

    mentions: the mentions.
    heads: index of each head word in the document, `(mentions,)`.
    kinds: the type of each.
    texts, words, features: as in `Mentions`.
    is_anaphor: whether an earlier mention in the document has the entity, `(mentions,)`.
    is_repeated: whether any other mention in the document has the entity, `(mentions,)`.
    """

    mentions: Sequence[Mention]
    heads: np.ndarray
    kinds: list[Kind]
    texts: list[str]
    words: list[str]
    features: list[Features]
    is_anaphor: np.ndarray
    is_repeated: np.ndarray


def ask(document: Document, stretches: Sequence[Stretch], settings: Settings, tokens: np.ndarray) -> DocumentQueries:
    """Return a query for each mention of a document with an antecedent in its window, and the baselines' scores.

    stretches: the windows, one after the other, which together are the whole document.
    tokens: number of tokens of each word, `(words,)`; mentions whose head word has none are not asked about.

    A mention counts if it lies in one window, and an anaphor needs an antecedent in its window: a mention of its entity
    that does not overlap with it.

    Raises ValueError if `head_word` is `parse` and the document has no parses.
    """
    table = _mention_table(document, settings.head_word)
    dropped = {CUT: 0, ALONE: 0, NO_TOKENS: 0}
    queries: list[Query] = []
    scores: dict[str, list[np.ndarray]] = {name: [np.zeros(0)] for name in baselines.NAMES}
    needs_antecedent = table.is_anaphor if settings.direction == "before" else table.is_repeated
    for window, inside in enumerate(_members(document.mentions, stretches, dropped)):
        mentions = [document.mentions[index] for index in inside]
        is_candidate_MC, is_antecedent_MC = _relations(mentions, settings.direction)
        has_antecedent_M = is_antecedent_MC.any(1)
        has_tokens_M = tokens[table.heads[inside]] > 0
        dropped[ALONE] += int((needs_antecedent[inside] & ~has_antecedent_M).sum())
        dropped[NO_TOKENS] += int((has_antecedent_M & ~has_tokens_M).sum())
        anaphors = np.flatnonzero(has_antecedent_M & has_tokens_M)
        if not len(anaphors):
            continue
        window_scores = baselines.scores(_of_window(table, inside), is_candidate_MC, is_antecedent_MC)
        for name, scores_M in window_scores.items():
            scores[name].append(scores_M[anaphors])
        first = stretches[window].begin
        heads = (table.heads[inside] - first).tolist()
        for row in anaphors.tolist():
            candidates = [heads[index] for index in np.flatnonzero(is_candidate_MC[row]).tolist()]
            antecedents = {heads[index] for index in np.flatnonzero(is_antecedent_MC[row]).tolist()}
            places = sorted(set(candidates))  # mentions with the same head word are one candidate
            right = tuple(index for index, place in enumerate(places) if place in antecedents)
            groups, answers = tuple((place,) for place in places), tuple(sorted(antecedents))
            begin, kind = mentions[row].begin - first, table.kinds[inside[row]]
            queries.append(Query(window, heads[row], begin, groups, right, answers, kind))
    return DocumentQueries(queries, {name: np.concatenate(parts) for name, parts in scores.items()}, dropped)


def _members(mentions: Sequence[Mention], stretches: Sequence[Stretch], dropped: dict[str, int]) -> list[list[int]]:
    """Return the indices of the mentions in each window; mentions across a window's end are counted in `dropped`."""
    ends = [end for _, end in stretches]
    members: list[list[int]] = [[] for _ in stretches]
    window_of = np.searchsorted(ends, [mention.begin for mention in mentions], "right")
    for index, (mention, window) in enumerate(zip(mentions, window_of.tolist(), strict=True)):
        if mention.end <= ends[window]:
            members[window].append(index)
        else:
            dropped[CUT] += 1
    return members


def _relations(mentions: Sequence[Mention], direction: Direction) -> tuple[np.ndarray, np.ndarray]:
    """Return two boolean arrays `(M, C)`: whether mention C is a candidate for M, and whether it is an antecedent."""
    begins = np.asarray([each.begin for each in mentions], np.int64)
    ends = np.asarray([each.end for each in mentions], np.int64)
    numbers: dict[str, int] = {}
    entities = np.asarray([numbers.setdefault(each.entity, len(numbers)) for each in mentions], np.int64)
    is_candidate_MC = ends[None, :] <= begins[:, None]
    if direction == "both":
        is_candidate_MC |= begins[None, :] >= ends[:, None]
    return is_candidate_MC, is_candidate_MC & (entities[None, :] == entities[:, None])


def _of_window(table: _MentionTable, inside: Sequence[int]) -> Mentions:
    """Return a window's mentions, those at the indices `inside` of the table, in the form that the baselines take."""
    return Mentions(
        table.heads[inside],
        [table.texts[index] for index in inside],
        [table.words[index] for index in inside],
        [table.features[index] for index in inside],
    )


def _mention_table(document: Document, head_word: HeadWord) -> _MentionTable:
    """Return the mentions of a document with their head words, types, features, and whether their entity recurs."""
    mentions = document.mentions
    starts = frozenset(document.starts)
    spans = [document.words[each.begin : each.end] for each in mentions]
    heads = _heads(document, head_word)
    kinds = []
    for mention, span, head in zip(mentions, spans, heads, strict=True):
        tags = document.tags[mention.begin : mention.end] if document.tags else None
        kinds.append(rules.kind(span, head, mention.begin in starts, tags))
    counts: dict[str, int] = {}
    earlier = []
    for mention in mentions:
        earlier.append(counts.get(mention.entity, 0))
        counts[mention.entity] = earlier[-1] + 1
    return _MentionTable(
        mentions,
        np.asarray([each.begin + head for each, head in zip(mentions, heads, strict=True)], np.int64),
        kinds,
        [" ".join(span).lower() for span in spans],
        [span[head].lower() for span, head in zip(spans, heads, strict=True)],
        [rules.features(span, head) for span, head in zip(spans, heads, strict=True)],
        np.asarray(earlier, np.int64) > 0,
        np.asarray([counts[each.entity] > 1 for each in mentions], bool),
    )


def _heads(document: Document, head_word: HeadWord) -> list[int]:
    """Return, for each mention, the index of its head word, counted from the first word of the mention."""
    if head_word == "parse":
        return constituents.heads(document)
    if head_word == "last":
        return [mention.end - mention.begin - 1 for mention in document.mentions]
    return [rules.head(document.words[mention.begin : mention.end]) for mention in document.mentions]

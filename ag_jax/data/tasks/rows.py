"""Rows of token ids with their labels, not yet of equal length.

<s> first </s>                     one text
<s> first </s></s> second </s>     a pair, with RoBERTa's two separators; [CLS] first [SEP] second [SEP] with BERT's one
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ag_jax.data.tokenizers import SpecialTokens, Tokenizer

Row = dict[str, Any]
SHORTEST = 12  # tokens of a row: a pair with RoBERTa's separators and four tokens a text


@dataclasses.dataclass(frozen=True)
class Features:
    """Rows of one task, each a dict of the fields of a batch without the axis B and with a length of its own.

    owner: index of each row's example; only windows of a long context share one.
    truncated: examples of which something was cut. cut_words: words of tagging among it. lost: questions of which no row
        holds the answer in whole, so that it cannot be learned.
    pad: the id of padding.
    characters: span only, one int32 [L, 3] a row: first and last + 1 character of the context that a token stands for, -1
        for one outside; and 1 in the window in which the token has the most context, 0 in others.
    """

    rows: list[Row]
    owner: np.ndarray
    truncated: int
    pad: int
    cut_words: int = 0
    lost: int = 0
    characters: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


@dataclasses.dataclass(frozen=True)
class Shape:
    """How rows are built.

    specials: the special tokens.
    max_length: the most tokens of a row.
    segments: the model's token types; with 2, the second text of a pair has number 1.
    training: leave out windows of a context that hold no answer, where every question has one.
    stride: tokens from one window of a context to the next, half a window at most.
    """

    specials: SpecialTokens
    max_length: int
    segments: int
    training: bool = False
    stride: int = 128

    def __post_init__(self):
        if self.stride < 1:
            raise ValueError(f"stride must be at least 1 token, got {self.stride}")
        if self.max_length < SHORTEST:
            raise ValueError(
                f"max_length must be at least {SHORTEST}, got {self.max_length}: a pair of texts needs room"
            )

    def room(self, pair: bool) -> int:
        """Tokens of text that fit into a row."""
        return self.max_length - 2 - (self.specials.pair_separators if pair else 0)

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> Row:
        """The fields tokens, sequences and segments of one text or a pair, which must fit."""
        special = self.specials
        ids = [special.begin, *first]
        if second is not None:
            ids += [special.end] * special.pair_separators
        begin = len(ids)
        ids += [*(second or ()), special.end]
        tokens = np.asarray(ids, np.int32)
        segments = np.zeros(len(ids), np.int8)
        if second is not None and self.segments > 1:
            segments[begin:] = 1
        return {"tokens": tokens, "sequences": np.ones(len(ids), np.int8), "segments": segments}


def longest_first(first: Sequence[int], second: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """A pair cut to `room` tokens: the end of the longer one goes first, of the second one where they are equally long."""
    lengths = [len(first), len(second)]
    over = max(sum(lengths) - room, 0)
    longer = int(lengths[1] >= lengths[0])
    lengths[longer] -= min(over, abs(lengths[0] - lengths[1]))
    over = max(sum(lengths) - room, 0)
    lengths[0] -= over // 2
    lengths[1] -= over - over // 2
    return first[: lengths[0]], second[: lengths[1]]


def first_gives_way(
    first: Sequence[int], second: Sequence[int], room: int, limit: int
) -> tuple[Sequence[int], Sequence[int]]:
    """RACE: the last `limit` tokens of a question with its answer, which stands at the end, and what still fits of the text."""
    second = second[max(len(second) - min(limit, room), 0) :]
    return first[: room - len(second)], second


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, list[int]]:
    """Ids of each text, every one encoded once."""
    unique = list(dict.fromkeys(texts))
    return dict(zip(unique, tokenizer.encode_batch(unique), strict=True))

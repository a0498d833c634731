"""Rows of token ids with labels, made from a task's examples, before they are padded to equal length.

<s> first </s>                     one text
<s> first </s></s> second </s>     a pair, with RoBERTa's two separators; [CLS] first [SEP] second [SEP] with BERT's one
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ag_jax.data.tokenizers import SpecialTokens, Tokenizer

FeatureRow = dict[str, Any]
SHORTEST = 12  # the least max_length: a pair with RoBERTa's separators and four tokens a text


@dataclasses.dataclass(frozen=True)
class Features:
    """The examples of one split of a task as rows of token ids with labels, before padding.

    rows: the fields of a batch for each row, without the batch axis, and as long as the row is before padding.
    owner: index of each row's example; only windows of the same long context share an example.
    truncated: number of examples that were truncated.
    pad: token id of padding.
    cut_words: tagging only, number of words lost by truncation.
    lost: span only, number of questions whose answer is not wholly in any row, so that it cannot be learned.
    characters: span only, int32 [L, 3] for each row: a token's first and last + 1 character in the context, -1 for
        tokens outside the context; and 1 in the window in which the token has the most context, 0 in other windows.
    """

    rows: list[FeatureRow]
    owner: np.ndarray
    truncated: int
    pad: int
    cut_words: int = 0
    lost: int = 0
    characters: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)


@dataclasses.dataclass(frozen=True)
class RowSettings:
    """Settings by which texts become rows of token ids: maximum length, token types and windows.

    specials: the tokenizer's special tokens.
    max_length: the most tokens of a row.
    token_types: the number of the model's token types, see `SpecialTokens.type_of_second`.
    training: leave out windows without a target: those without the answer, in tasks where every question has an
        answer, and all windows of a question whose answer fits in none.
    stride: tokens from one window of a context to the next, at most half a window.

    Raises ValueError if `max_length` is below `SHORTEST`.
    """

    specials: SpecialTokens
    max_length: int
    token_types: int
    training: bool = False
    stride: int = 128

    def __post_init__(self):
        if self.max_length < SHORTEST:
            raise ValueError(
                f"max_length must be at least {SHORTEST}, got {self.max_length}: a pair of texts needs room"
            )

    def room(self, pair: bool) -> int:
        """Return the number of tokens that fit into a row besides the special tokens of one text or of a pair."""
        return self.max_length - 2 - (self.specials.pair_separators if pair else 0)

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> FeatureRow:
        """Return one text or a pair, short enough for a row, as {field: array}, with special tokens added.

        The fields are those of a batch: `tokens`, `segment_ids` (1 everywhere) and `token_type_ids`.
        """
        special = self.specials
        ids = [special.begin, *first]
        if second is not None:
            ids += [special.end] * special.pair_separators
        begin = len(ids)
        ids += [*(second or ()), special.end]
        tokens = np.asarray(ids, np.int32)
        token_types = np.zeros(len(ids), np.int8)
        if second is not None:
            token_types[begin:] = kind = special.type_of_second(self.token_types)
            if 0 < self.token_types <= kind:
                raise ValueError(
                    f"the tokenizer gives the second text of a pair the token type {kind}, but the model has only "
                    f"{self.token_types} (type_vocab_size in config.json): for type 0, leave token_type_ids out of "
                    "model_input_names in tokenizer_config.json, and import the model again"
                )
        return {"tokens": tokens, "segment_ids": np.ones(len(ids), np.int8), "token_type_ids": token_types}


def longest_first(first: Sequence[int], second: Sequence[int], room: int) -> tuple[Sequence[int], Sequence[int]]:
    """Truncate a pair to `room` tokens, removing one token at a time from the end of the longer text.

    If both are equally long, the second text is truncated first.
    """
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
    """Truncate a pair to `room` tokens, first the second text to `limit` tokens and then the first text to the rest.

    Of the second text the end is kept, and of the first one the beginning. This is for RACE, where the second text is a
    question with its answer at the end.
    """
    second = second[max(len(second) - min(limit, room), 0) :]
    return first[: room - len(second)], second


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, list[int]]:
    """Return {text: token ids}; each distinct text is tokenised once."""
    unique = list(dict.fromkeys(texts))
    return dict(zip(unique, tokenizer.encode_batch(unique), strict=True))

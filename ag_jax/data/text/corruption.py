"""Mask the tokens of a batch for masked language modelling, as a pure function of (seed, epoch, example).

Of the chosen tokens, 80 % become the mask token, 10 % a random token, and 10 % stay as they are (BERT; the shares are
settings), or all are replaced by draws from the unigram distribution of the text.

Every maskable token of a row gets a random key, and the tokens with the smallest keys are chosen. Their number is
floor(rate * n + u) for fairseq's fixed count without replacement, or the number of keys below `rate` for independent
Bernoulli choices, as in the Attention Guidance code. With spans, a token gets the smallest of the keys of the tokens at
which the spans that cover it begin. Whole words have the keys of their first tokens, and a word that does not fit into
the number is passed over, as in BERT's second release.

Shape letters: B batch, L length, M masked positions, V vocabulary, W words of a row.
"""

import functools
import math
from typing import NamedTuple, cast

import numpy as np

from ag_jax.data import order, randomness
from ag_jax.data.config import LARGEST_LENGTH, MaskingConfig
from ag_jax.data.text.unigram import Unigram
from ag_jax.data.tokenizers import Tokenizer

# The purpose of a random number; part of its key, so that no two purposes share numbers.
_ROW_STREAM, _COUNT_STREAM, _CHOICE_STREAM, _ACTION_STREAM, _TOKEN_STREAM, _UNIGRAM_STREAM, _SPAN_STREAM = range(7)
_LOW = np.uint64(LARGEST_LENGTH - 1)  # the bits of a key that hold its position


class Corrupted(NamedTuple):
    """A masked batch, with M slots for the masked positions of a row; unused slots have position, label and weight 0.

    tokens_BL: token ids after corruption.
    positions_BM: masked positions, int32, ascending.
    labels_BM: original token ids at these positions, int32.
    weights_BM: 1 in used slots, 0 in unused ones, float32.
    """

    tokens_BL: np.ndarray
    positions_BM: np.ndarray
    labels_BM: np.ndarray
    weights_BM: np.ndarray


def max_masked(config: MaskingConfig, sequence_length: int) -> int:
    """Return M, the number of slots for masked positions in a row: a static bound for rows of `sequence_length` tokens.

    For a fixed count it is that count, the mean rounded up. For Bernoulli choices of tokens it is the mean plus four
    standard deviations; in a row with more chosen tokens (3 rows in 100,000), some of them, picked at random, stay
    unmasked. Tokens of a word are chosen together, so the variance for whole words is higher by the factor
    sum(n^2) / sum(n), for words of n tokens. For them the bound has twice as many standard deviations of single tokens,
    which are four for a factor of 4: then 10 rows in 100,000 have more, at a rate of .15. (The factor of English is 1.1
    to 1.4 with vocabularies of 30,000 tokens and more, and up to 3.3 with one of 1,000.) What stays unmasked are whole
    words, long ones more often.
    """
    rate = config.highest_rate
    mean = rate * sequence_length
    if config.count == "fixed":  # floor(mean + u) with u < 1
        return min(math.floor(mean) + 1, sequence_length)
    deviations = 8 if config.unit == "word" else 4
    return min(math.ceil(mean + deviations * math.sqrt(mean * (1 - rate))), sequence_length)


def mask(
    config: MaskingConfig,
    tokens_BL: np.ndarray,
    lengths_B: np.ndarray,
    example_B: np.ndarray,
    epoch_B: np.ndarray,
    seed: int,
    tokenizer: Tokenizer,
    unigram: Unigram | None = None,
    step: int = 0,
) -> Corrupted:
    """Choose tokens of a batch for prediction, replace them, and return the masked batch.

    The default is BERT's masking (Devlin et al. 2019, section 3.1).

    config: choice and replacement of tokens; `MaskingConfig` names the implementations that each option follows.
    tokens_BL: token ids, padded on the right.
    lengths_B: number of tokens of each row, padding not counted.
    example_B: index of each row in the corpus; with the epoch and the seed it determines the mask.
    epoch_B: epoch of each row; with static copies the mask depends only on epoch % copies.
    seed: seed of the masks.
    tokenizer: the tokenizer of the token ids.
    unigram: token frequencies, with `config.replacement="unigram"`.
    step: step of training, counted from 0, which decides between the rates of a config with several; the other random
        numbers do not depend on it.

    Random tokens are uniform over the vocabulary without special tokens (fairseq), or with them for Bernoulli choices
    (the Attention Guidance code). With `config.replacement="unigram"` every chosen token is replaced by a draw from
    `unigram`, which may be the token itself; labels are always the original tokens. A row in which nothing is chosen
    has weights 0.
    """
    copy_B = epoch_B % config.static_copies if config.static_copies else epoch_B
    row_B1 = randomness.words(seed, _ROW_STREAM, copy_B, example_B)[:, None]
    rate = order.at_step(step, config.rate, config.earlier_rates, config.earlier_rates_until)
    positions_BM, is_used_BM = _choose(config, rate, tokens_BL, lengths_B, row_B1, tokenizer)

    labels_BM = np.take_along_axis(tokens_BL, positions_BM, axis=1)
    if config.replacement == "unigram":
        inputs_BM = cast(Unigram, unigram).draw(row_B1, _UNIGRAM_STREAM, positions_BM)
    else:
        inputs_BM = _replacements(config, labels_BM, row_B1, positions_BM, tokenizer)

    corrupted_BL = tokens_BL.copy()
    # Only used slots are written, because unused ones have a position, too: the last one.
    row_N, slot_N = np.nonzero(is_used_BM)
    corrupted_BL[row_N, positions_BM[row_N, slot_N]] = inputs_BM[row_N, slot_N]
    return Corrupted(
        corrupted_BL,
        np.where(is_used_BM, positions_BM, 0).astype(np.int32),
        np.where(is_used_BM, labels_BM, 0).astype(np.int32),
        is_used_BM.astype(np.float32),
    )


def _choose(config, rate, tokens_BL, lengths_B, row_B1, tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return (positions of tokens to mask, whether each slot is used), arrays `BM` (batch, slots for masked tokens).

    rate: share of the tokens to mask.

    Positions ascend. A row with fewer chosen tokens than M has entries at its end that are not in use.
    """
    length = tokens_BL.shape[1]
    slots = max_masked(config, length)
    position_L = np.arange(length)
    # fairseq masks <s> and </s>, too; the paper excludes special tokens.
    maskable_BL = (position_L < lengths_B[:, None]) & _ordinary_V(tokenizer)[tokens_BL]

    keys_BL: np.ndarray = randomness.words(row_B1, _CHOICE_STREAM, position_L) >> np.uint64(1)
    number_B = np.full(len(tokens_BL), slots)
    if config.count == "fixed":
        expected_B = rate * maskable_BL.sum(axis=1)
        number_B = np.floor(expected_B + randomness.units(row_B1, _COUNT_STREAM)[:, 0])
    if config.unit == "word":
        begins_BL = _begins(tokenizer, tokens_BL, maskable_BL)
        is_chosen_BL = _choose_words(config, rate, keys_BL, begins_BL, maskable_BL, number_B, row_B1)
        keys_BL = np.where(is_chosen_BL, position_L.astype(np.uint64), ~_LOW)
        count_B = is_chosen_BL.sum(axis=1)
    else:
        keys_BL = _sortable(config, keys_BL, maskable_BL, row_B1)
        count_B = number_B if config.count == "fixed" else (keys_BL < np.uint64(rate * 2**63)).sum(axis=1)
    smallest_BM = np.sort(np.partition(keys_BL, slots - 1, axis=1)[:, :slots], axis=1)
    is_used_BM = np.arange(slots) < count_B[:, None]
    # Unused slots get the position `length`, which sorts them behind the used ones.
    positions_BM = np.where(is_used_BM, (smallest_BM & _LOW).astype(np.int64), length)
    positions_BM.sort(axis=1)
    return np.minimum(positions_BM, length - 1), positions_BM < length


def _sortable(config, keys_BL, maskable_BL, row_B1) -> np.ndarray:
    """Return keys `BL` without ties, the smallest of which are chosen: each holds its position in its low bits.

    With `config.longest_span`, the keys are those of spans. Tokens that must not be masked have the largest keys.
    With `config.unit="word"`, the columns are words instead of tokens.
    """
    if config.longest_span > 1:
        keys_BL = _span_keys(config.longest_span, keys_BL, maskable_BL, row_B1)
    # The highest bit of `keys_BL` is clear, which leaves room for the larger keys.
    return np.where(maskable_BL, keys_BL & ~_LOW, ~_LOW) | np.arange(keys_BL.shape[1]).astype(np.uint64)


def _begins(tokenizer, tokens_BL, maskable_BL) -> np.ndarray:
    """Return at which tokens a word begins: booleans `BL`. Every token that must not be masked is a word of its own."""
    borders = tokenizer.word_borders
    begins_BL = borders.begins_V[tokens_BL]
    before_BL = tokens_BL[:, :-1]
    begins_BL[:, 1:] = borders.ends_V[before_BL] | (begins_BL[:, 1:] & ~borders.is_space_V[before_BL])
    begins_BL[:, 0] = True
    begins_BL |= ~maskable_BL
    begins_BL[:, 1:] |= ~maskable_BL[:, :-1]
    return begins_BL


def _choose_words(config, rate, keys_BL, begins_BL, maskable_BL, number_B, row_B1) -> np.ndarray:
    """Return which tokens belong to the words that are masked: booleans `BL`.

    rate: probability of each word, with `count="bernoulli"`.
    keys_BL: a random key of each token. A word has that of its first token, or the smallest of the spans that cover it.
    begins_BL: at which tokens a word begins.
    maskable_BL: whether each token may be masked; the same for all tokens of a word.
    number_B: the largest number of tokens to mask.
    row_B1: a random number for each row, for spans.

    Words are chosen in the order of their keys, the smallest first. One that has more tokens than there is still room
    for is passed over.
    """
    length = keys_BL.shape[1]
    word_BL = np.cumsum(begins_BL, axis=1) - 1  # the word of each token
    row_N, first_N = np.nonzero(begins_BL)
    # Rows with fewer words than others end with empty words behind the row.
    first_BW = np.full((len(keys_BL), word_BL[:, -1].max(initial=0) + 2), length)
    first_BW[row_N, word_BL[row_N, first_N]] = first_N
    sizes_BW, first_BW = np.diff(first_BW, axis=1), np.minimum(first_BW[:, :-1], length - 1)
    maskable_BW = np.take_along_axis(maskable_BL, first_BW, axis=1) & (sizes_BW > 0)
    keys_BW = _sortable(config, np.take_along_axis(keys_BL, first_BW, axis=1), maskable_BW, row_B1)
    if config.count == "bernoulli":
        maskable_BW &= keys_BW < np.uint64(rate * 2**63)
    order_BW = (np.sort(keys_BW, axis=1) & _LOW).astype(np.int64)
    # For words that are not to be chosen, there is no room in any row.
    ordered_BW = np.take_along_axis(np.where(maskable_BW, sizes_BW, length + 1), order_BW, axis=1)
    room_B, fits_WB = number_B.astype(np.int64), np.zeros(ordered_BW.shape[::-1], bool)
    for rank in range(maskable_BW.sum(axis=1).max(initial=0)):
        np.less_equal(ordered_BW[:, rank], room_B, out=fits_WB[rank])
        room_B -= np.where(fits_WB[rank], ordered_BW[:, rank], 0)
        if not room_B.any():
            break
    is_chosen_BW = np.zeros(order_BW.shape, bool)
    np.put_along_axis(is_chosen_BW, order_BW, fits_WB.T, axis=1)
    return np.take_along_axis(is_chosen_BW, word_BL, axis=1)


def _span_keys(longest: int, keys_BL, maskable_BL, row_B1) -> np.ndarray:
    """Return keys `BL` such that choosing the smallest keys for masking gives spans of at most `longest` tokens.

    longest: the largest number of tokens of a span.
    keys_BL: a random key of each token; the tokens with the smallest keys are chosen for masking.
    maskable_BL: whether each token may be masked.
    row_B1: a random number for each row, from which the lengths of the row's spans are drawn.

    With whole words, all these tokens are words. A span begins at every token, with the key of that token. It has n
    tokens with p(n) ~ 1 / n, up to `longest`, and ends before the first token that must not be masked. A token gets the
    smallest key of the spans that cover it. So the tokens of a span are chosen together, from the left, until enough
    tokens are chosen.
    """
    # Inverse transform sampling of the number of tokens: p(n) ~ 1 / n.
    shares = 1.0 / np.arange(1, longest + 1)
    borders = np.cumsum(shares / shares.sum())[:-1]
    unit_BL = randomness.units(row_B1, _SPAN_STREAM, np.arange(keys_BL.shape[1]))
    tokens_BL = 1 + np.searchsorted(borders, unit_BL, side="right")
    span_keys_BL, is_run_BL = keys_BL.copy(), maskable_BL
    for offset in range(1, longest):
        # Whether each token and the `offset` tokens before it may all be masked, so that a span can go so far.
        is_run_BL = maskable_BL[:, offset:] & is_run_BL[:, :-1]
        covers_BL = is_run_BL & (tokens_BL[:, :-offset] > offset)
        smaller_BL = np.minimum(span_keys_BL[:, offset:], keys_BL[:, :-offset])
        span_keys_BL[:, offset:] = np.where(covers_BL, smaller_BL, span_keys_BL[:, offset:])
    return span_keys_BL


def _replacements(config, labels_BM, row_B1, positions_BM, tokenizer) -> np.ndarray:
    """Return the token ids that replace the chosen tokens, `BM` (batch, slots for masked tokens).

    The mask token, a random token or the original token `labels_BM`, in the configured shares.
    """
    action_BM = randomness.units(row_B1, _ACTION_STREAM, positions_BM)
    random_BM = _random_tokens(config, row_B1, positions_BM, tokenizer)
    is_mask_BM = action_BM < config.mask_fraction
    is_random_BM = ~is_mask_BM & (action_BM < config.mask_fraction + config.random_fraction)
    return np.where(is_mask_BM, tokenizer.specials.mask, np.where(is_random_BM, random_BM, labels_BM))


def _random_tokens(config, row_B1, positions_BM, tokenizer) -> np.ndarray:
    """Return token ids drawn uniformly from the vocabulary's ordinary tokens, `BM` (batch, slots for masked tokens).

    With `count="bernoulli"`, special tokens are drawn, too.
    """
    if config.count == "bernoulli":
        return randomness.below(tokenizer.vocabulary_size, row_B1, _TOKEN_STREAM, positions_BM)
    ordinary_ids = np.flatnonzero(_ordinary_V(tokenizer))
    return ordinary_ids[randomness.below(len(ordinary_ids), row_B1, _TOKEN_STREAM, positions_BM)]


def _ordinary_V(tokenizer) -> np.ndarray:
    """Return whether each token id of the vocabulary is an ordinary token, not a special one: booleans `V`."""
    return _ordinary(tokenizer.vocabulary_size, tokenizer.special_ids)


@functools.lru_cache(maxsize=8)
def _ordinary(vocabulary_size: int, special_ids: tuple[int, ...]) -> np.ndarray:
    """Return booleans `V`, cached: whether each token id of the vocabulary is not among `special_ids`."""
    is_ordinary_V = np.ones(vocabulary_size, bool)
    is_ordinary_V[list(special_ids)] = False
    return is_ordinary_V

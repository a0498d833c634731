"""Masks by a plain loop, whole words beside BERT's second release, and words drawn by their frequency."""

import functools
import itertools
import random
import re

import numpy as np
import pytest

from ag_jax.data import randomness, tokenizers
from ag_jax.data.config import MaskingConfig, TokenizerConfig
from ag_jax.data.store import Row, Rows
from ag_jax.data.text import corruption
from ag_jax.data.text.unigram import Unigram
from tests.data.conftest import sentence, text, write_rows


def batch(tokenizer, rows, length, seed=0):
    """Random ordinary tokens between <s> and </s>, of random lengths."""
    random = np.random.default_rng(seed)
    lengths_B = random.integers(3, length + 1, rows)
    tokens_BL = random.integers(5, tokenizer.vocabulary_size, (rows, length)).astype(np.int32)
    tokens_BL[:, 0] = tokenizer.specials.begin
    tokens_BL[np.arange(rows), lengths_B - 1] = tokenizer.specials.end
    tokens_BL[np.arange(length) >= lengths_B[:, None]] = tokenizer.specials.pad
    return tokens_BL, lengths_B


def mask(config, tokens_BL, lengths_B, tokenizer, *, example=None, epoch=0, seed=3, **more):
    rows = len(tokens_BL)
    example_B = np.arange(rows) if example is None else np.asarray(example)
    return corruption.mask(config, tokens_BL, lengths_B, example_B, np.full(rows, epoch), seed, tokenizer, **more)


def plain_mask(config, rate, row, length, example, epoch, seed, tokenizer, words):
    """One row, one token after the other; {position: (label, input)}."""
    key = randomness.words(seed, 0, epoch, example)
    candidates = [p for p in range(length) if row[p] not in tokenizer.special_ids]
    # The same 47 bits that decide in the batch, then the position.
    order = {p: (int(randomness.words(key, 2, p)[0]) >> 17, p) for p in candidates}
    if config.count == "fixed":
        count = int(np.floor(rate * len(candidates) + randomness.units(key, 1)[0]))
    else:
        count = sum(bits << 16 < rate * 2**63 for bits, _ in order.values())
    count = min(count, corruption.max_masked(config, len(row)))
    chosen = {}
    for p in sorted(sorted(candidates, key=order.get)[:count]):
        action = randomness.units(key, 3, p)[0]
        if config.replacement == "unigram":  # the word at a random place of the sorted text
            sorted_text = np.repeat(np.arange(tokenizer.vocabulary_size), words.counts_V)
            replaced = sorted_text[int(randomness.units(key, 5, p)[0] * len(sorted_text))]
        elif action < config.mask_fraction:
            replaced = tokenizer.specials.mask
        elif action < config.mask_fraction + config.random_fraction:
            with_specials = config.count == "bernoulli"
            ids = range(tokenizer.vocabulary_size)
            allowed = [id for id in ids if with_specials or id not in tokenizer.special_ids]
            replaced = allowed[int(randomness.below(len(allowed), key, 4, p)[0])]
        else:
            replaced = row[p]
        chosen[p] = (row[p], replaced)
    return chosen


@pytest.mark.parametrize("replacement", ["mask", "unigram"])
@pytest.mark.parametrize(("count", "rate"), [("fixed", 0.15), ("fixed", 0.6), ("bernoulli", 0.15), ("bernoulli", 0.6)])
def test_a_batch_equals_the_plain_loop(tokenizer, count, rate, replacement):
    """The step has an earlier rate; the batch has slots for the highest rate."""
    rates = {"rate": 0.3, "earlier_rates": (0.9, rate), "earlier_rates_until": (4, 5)}
    shares = {"mask_fraction": 0.5, "random_fraction": 0.3} if replacement == "mask" else {}
    config = MaskingConfig(count=count, replacement=replacement, **shares, **rates)
    counts_V = np.random.default_rng(0).integers(0, 9, tokenizer.vocabulary_size)
    counts_V[list(tokenizer.special_ids)] = 0
    words = Unigram(counts_V)
    np.testing.assert_allclose(words.frequencies_V, counts_V / counts_V.sum())
    tokens_BL, lengths_B = batch(tokenizer, 13, 29)
    before = tokens_BL.copy()
    result = mask(config, tokens_BL, lengths_B, tokenizer, epoch=2, step=4, unigram=words)
    np.testing.assert_array_equal(tokens_BL, before)
    assert [array.dtype for array in result] == [np.int32, np.int32, np.int32, np.float32]
    slots = corruption.max_masked(config, 29)
    assert result.positions_BM.shape == (13, slots)
    for b in range(13):
        expected = plain_mask(config, rate, tokens_BL[b], lengths_B[b], b, 2, 3, tokenizer, words)
        unused = [0] * (slots - len(expected))
        assert result.positions_BM[b].tolist() == [*expected, *unused]
        assert result.labels_BM[b].tolist() == [*(label for label, _ in expected.values()), *unused]
        assert result.weights_BM[b].tolist() == [1.0] * len(expected) + unused
        corrupted = tokens_BL[b].copy()
        for position, (_, replaced) in expected.items():
            corrupted[position] = replaced
        np.testing.assert_array_equal(result.tokens_BL[b], corrupted)


@pytest.mark.parametrize("longest", [2, 3, 5])
def test_spans_equal_a_plain_loop(tokenizer, longest):
    """Starts in the order of their keys; each marks its tokens from the left until there are enough."""
    config = MaskingConfig(rate=0.4, longest_span=longest)
    tokens_BL, lengths_B = batch(tokenizer, 17, 29)
    tokens_BL[:, 9] = tokenizer.specials.end  # a border within the row
    result = mask(config, tokens_BL, lengths_B, tokenizer)
    total = sum(1 / n for n in range(1, longest + 1))
    runs = []
    for b, (row, length) in enumerate(zip(tokens_BL, lengths_B, strict=True)):
        key = randomness.words(3, 0, 0, b)
        allowed = [p for p in range(length) if row[p] not in tokenizer.special_ids]
        count = min(int(np.floor(0.4 * len(allowed) + randomness.units(key, 1)[0])), corruption.max_masked(config, 29))
        chosen = set()
        for start in sorted(allowed, key=lambda p: int(randomness.words(key, 2, p)[0])):
            drawn, tokens = randomness.units(key, 6, start)[0] * total, 1
            while tokens < longest and drawn >= sum(1 / n for n in range(1, tokens + 1)):
                tokens += 1
            for p in range(start, start + tokens):
                if p not in allowed or len(chosen) == count:
                    break
                chosen.add(p)
            runs.append(tokens)
        assert set(result.positions_BM[b][result.weights_BM[b] > 0].tolist()) == chosen
    assert set(runs) == set(range(1, longest + 1))


SIZES = {"byte_bpe": 270, "wordpiece": 100, "sentencepiece_unigram": 60}  # so small that most words have several tokens


@functools.cache
def trained(kind):
    return tokenizers.train(TokenizerConfig(kind=kind, vocabulary_size=SIZES[kind]), [text(0, 200)])


def sentences(tokenizer, rows, length):
    """Two sentences a row, each behind a special token, and for each row {positions of a word's tokens}.

    Words and marks are found in the text, and their tokens by the characters that they stand for.
    """
    tokens_BL, words_B = np.full((rows, length), tokenizer.specials.pad, np.int32), []
    for b in range(rows):
        words, end = [], 0
        for part in (sentence(2 * b), sentence(2 * b + 1)):
            [(ids, places)] = tokenizer.locate_batch([part])
            part_words = [[match.end()] for match in re.finditer(r"\w+|[^\w\s]", part)]
            for at, (begin, stop) in enumerate(places):
                begin += begin < stop and part[begin] == " "  # also of a token of the space alone, before the word
                next(word for word in part_words if begin < word[0]).append(end + 1 + at)
            tokens_BL[b, end : end + 1 + len(ids)] = [tokenizer.specials.end, *ids]
            words += [tuple(word[1:]) for word in part_words if word[1:]] + [None]  # a mark may lack its own
            end += 1 + len(ids)
        words_B.append([None, *words[:-1]])  # None: the special tokens
    return tokens_BL, (tokens_BL != tokenizer.specials.pad).sum(axis=1), words_B


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize(
    ("rate", "more", "slots"),
    [
        (0.15, {}, None),
        (0.5, {"longest_span": 3}, None),
        (0.15, {"count": "bernoulli"}, None),
        (0.5, {"count": "bernoulli"}, 9),  # too few for most rows
    ],
)
def test_whole_words_equal_a_plain_loop(kind, rate, more, slots, monkeypatch):
    """Words in the order of the keys of their first tokens; those that do not fit are passed over."""
    if slots:
        monkeypatch.setattr(corruption, "max_masked", lambda config, length: slots)
    config, tokenizer = MaskingConfig(rate=rate, unit="word", **more), trained(kind)
    tokens_BL, lengths_B, words_B = sentences(tokenizer, 40, 100)
    result, passed_over = mask(config, tokens_BL, lengths_B, tokenizer), 0
    for b, words in enumerate(words_B):
        key = randomness.words(3, 0, 0, b)
        room = rate * sum(len(word) for word in words if word) + randomness.units(key, 1)[0]
        room = min(int(room) if config.count == "fixed" else 100, corruption.max_masked(config, 100))
        runs = {}  # each word with the words of its span, by the key of its first token
        for number, word in enumerate(words):
            longest = 1
            if config.longest_span > 1:
                drawn = randomness.units(key, 6, number)[0] * (1 + 1 / 2 + 1 / 3)
                longest = 1 + (drawn >= 1) + (drawn >= 1 + 1 / 2)
            run = words[number : number + longest]
            if word:
                runs[int(randomness.words(key, 2, word[0])[0])] = run[: run.index(None)] if None in run else run
        seen, chosen = set(), set()
        for word_key in sorted(runs):
            if config.count == "bernoulli" and word_key >= rate * 2**64:
                break
            for word in runs[word_key]:
                if word not in seen and len(word) <= room - len(chosen):
                    chosen |= {*word}
                passed_over += word not in seen and not {*word} <= chosen
                seen.add(word)
        assert set(result.positions_BM[b][result.weights_BM[b] > 0].tolist()) == chosen
    assert passed_over or (config.count == "bernoulli" and not slots)


def test_white_space_alone_belongs_to_the_word_after_it():
    """Also to a mark, at which a word would begin otherwise."""
    tokenizer = trained("byte_bpe")
    ids = np.array([tokenizer.encode("we (we)")])
    begins_BL = corruption._begins(tokenizer, ids, np.ones(ids.shape, bool))
    assert "▁" in tokenizer.tokens(ids[0])
    words = np.split(ids[0], np.flatnonzero(begins_BL[0])[1:])
    assert [tokenizer.decode(word).strip() for word in words] == ["we", "(", "we", ")"]


def second_release(words, number, generator):
    """Positions that BERT's second release masks with whole-word masking, of lists of the positions of a word's tokens.

    From its description: words in random order, until `number` tokens are masked; a word that would exceed it is left
    out.
    """
    masked = []
    for word in generator.sample(words, len(words)):
        masked += word if len(masked) + len(word) <= number else []
    return masked


def test_whole_words_are_masked_as_often_as_in_berts_second_release():
    """By the word's length, and the number of tokens of a row, both within four standard errors."""
    tokenizer, generator, length = trained("wordpiece"), random.Random(0), 40
    ids = tokenizer.encode(text(0, 60))
    continues = np.array([piece.startswith("##") for piece in tokenizer.tokens(ids)])
    starts = np.flatnonzero(~continues)[:50]
    rows, specials = [ids[at : at + length] for at in starts], tokenizer.specials
    words_B = [np.split(np.arange(length), np.flatnonzero(~continues[at : at + length])[1:]) for at in starts]
    tokens_BL = np.array([[specials.begin, *row, specials.end] for row in rows])
    ours_B = [
        [{*(positions[weights > 0] - 1)} for positions, weights in zip(*result[1::2], strict=True)]
        for result in (
            mask(MaskingConfig(unit="word"), tokens_BL, np.full(50, length + 2), tokenizer, epoch=epoch)
            for epoch in range(30)
        )
    ]
    # Of [CLS], 40 tokens and [SEP], 15 % are 6.3 in BERT, and of the 40 tokens 6 here.
    theirs_B = [[{*second_release([*map(list, words)], 6, generator)} for words in words_B] for _ in range(30)]
    by_length, by_number = np.zeros((2, 12)), np.zeros((2, 7))
    for release, masked in enumerate((ours_B, theirs_B)):
        for words, chosen in zip(words_B * 30, itertools.chain.from_iterable(masked), strict=True):
            np.add.at(by_length[release], [len(word) for word in words if word[0] in chosen], 1)
            by_number[release, len(chosen)] += 1
    words = 30 * np.bincount([len(word) for words in words_B for word in words], minlength=12)
    for counts, total in ((by_length, words), (by_number, 1500)):
        shares = counts / np.maximum(total, 1)
        errors = np.sqrt(2 * shares.mean(axis=0) * (1 - shares.mean(axis=0)) / np.maximum(total, 1))
        assert (np.abs(shares[0] - shares[1]) <= 4 * errors).all()
    shares = by_length[:, words > 0] / words[words > 0]
    assert shares.shape[1] >= 4 and shares[0, -1] < 0.8 * shares[0, 0]  # long words are left out more often


def test_the_rate_of_whole_words_counts_tokens():
    tokenizer = trained("wordpiece")
    tokens_BL, lengths_B, words_B = sentences(tokenizer, 300, 100)
    tokens_B = lengths_B - 2
    variance = sum(len(word) ** 2 for words in words_B for word in words if word) * 0.15 * 0.85
    for count, deviation in (("fixed", 0.0), ("bernoulli", np.sqrt(variance))):
        masked_B = mask(MaskingConfig(count=count, unit="word"), tokens_BL, lengths_B, tokenizer).weights_BM.sum(axis=1)
        expected = 0.15 * tokens_B.sum()
        assert abs(masked_B.sum() - expected) < 4 * deviation + 0.02 * expected
        assert count == "bernoulli" or (masked_B <= np.floor(0.15 * tokens_B) + 1).all()


def test_most_masked_positions_by_hand():
    assert corruption.max_masked(MaskingConfig(), 128) == 20  # floor(19.2) + 1
    assert corruption.max_masked(MaskingConfig(rate=0.1, earlier_rates=(0.15,), earlier_rates_until=(3,)), 128) == 20
    assert corruption.max_masked(MaskingConfig(rate=0.99), 8) == 8
    # 0.15 * 128 = 19.2; 4 sqrt(19.2 * 0.85) = 16.16
    assert corruption.max_masked(MaskingConfig(count="bernoulli"), 128) == 36
    assert corruption.max_masked(MaskingConfig(count="bernoulli", rate=0.9), 8) == 8
    assert corruption.max_masked(MaskingConfig(unit="word"), 128) == 20
    assert corruption.max_masked(MaskingConfig(count="bernoulli", unit="word"), 128) == 52  # 19.2 + 8 sqrt(19.2 * 0.85)


def test_masks_change_with_epoch_example_and_seed_only_and_static_ones_come_round(tokenizer):
    tokens_BL, lengths_B = batch(tokenizer, 40, 60)

    def positions(config=MaskingConfig(), **key):
        return mask(config, tokens_BL, lengths_B, tokenizer, **key).positions_BM

    first = positions()
    for other in (positions(epoch=1), positions(seed=4), positions(example=np.arange(40) + 40)):
        assert ((first == other) & (first > 0)).mean() < 0.2
    chosen = [7, 2, 9]
    part = mask(MaskingConfig(), tokens_BL[chosen], lengths_B[chosen], tokenizer, example=chosen)
    for one, other in zip(mask(MaskingConfig(), tokens_BL, lengths_B, tokenizer), part, strict=True):
        np.testing.assert_array_equal(one[chosen], other)
    static = MaskingConfig(static_copies=3)
    np.testing.assert_array_equal(positions(static, epoch=1), positions(static, epoch=7))
    assert (positions(static, epoch=1) != positions(static, epoch=2)).any()
    np.testing.assert_array_equal(positions(static, epoch=2), positions(epoch=2))


def test_counts_are_of_all_rows_without_specials(tmp_path, tokenizer):
    rows = [np.array([0, 9, 9, 7, 2]), np.array([0, 9, 5, 2]), np.array([0, 7, 9, 9, 9, 2])]
    write_rows(tmp_path / "rows", map(Row, rows), tokenizer.vocabulary_size)
    read = Rows(tmp_path / "rows")
    words = Unigram.of(read, tokenizer)
    assert {v: int(n) for v, n in enumerate(words.counts_V) if n} == {5: 1, 7: 2, 9: 6}
    assert read.counts(tokenizer.vocabulary_size)[0] == 3, "the shared counts were changed"
    write_rows(tmp_path / "specials", [Row(np.array([0, 2]))], tokenizer.vocabulary_size)
    with pytest.raises(ValueError, match="unigram"):
        Unigram.of(Rows(tmp_path / "specials"), tokenizer)

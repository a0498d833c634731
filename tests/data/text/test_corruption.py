"""Masks by a plain loop, their statistics, and their limits."""

import numpy as np
import pytest
from scipy import stats

from ag_jax.data import randomness
from ag_jax.data.config import MaskingConfig
from ag_jax.data.text import corruption


def batch(tokenizer, rows, length, seed=0):
    """Random ordinary tokens between <s> and </s>, of random lengths."""
    random = np.random.default_rng(seed)
    lengths_B = random.integers(3, length + 1, rows)
    tokens_BL = random.integers(5, tokenizer.vocabulary_size, (rows, length)).astype(np.int32)
    tokens_BL[:, 0] = tokenizer.specials.begin
    tokens_BL[np.arange(rows), lengths_B - 1] = tokenizer.specials.end
    tokens_BL[np.arange(length) >= lengths_B[:, None]] = tokenizer.specials.pad
    return tokens_BL, lengths_B


def mask(config, tokens_BL, lengths_B, tokenizer, *, example=None, epoch=0, seed=3):
    rows = len(tokens_BL)
    example_B = np.arange(rows) if example is None else np.asarray(example)
    return corruption.mask(config, tokens_BL, lengths_B, example_B, np.full(rows, epoch), seed, tokenizer)


def plain_mask(config, row, length, example, epoch, seed, tokenizer):
    """One row, one token after the other; {position: (label, input)}."""
    key = randomness.words(seed, 0, epoch, example)
    candidates = [p for p in range(length) if row[p] not in tokenizer.special_ids]
    # The same 47 bits that decide in the batch, then the position.
    order = {p: (int(randomness.words(key, 2, p)[0]) >> 17, p) for p in candidates}
    if config.count == "fixed":
        count = int(np.floor(config.rate * len(candidates) + randomness.units(key, 1)[0]))
    else:
        count = sum(bits << 16 < config.rate * 2**63 for bits, _ in order.values())
    count = min(count, corruption.max_masked(config, len(row)))
    chosen = {}
    for p in sorted(sorted(candidates, key=order.get)[:count]):
        action = randomness.units(key, 3, p)[0]
        if action < config.mask_fraction:
            replaced = tokenizer.specials.mask
        elif action < config.mask_fraction + config.random_fraction:
            allowed = [
                id for id in range(tokenizer.vocabulary_size)
                if config.count == "bernoulli" or id not in tokenizer.special_ids
            ]  # fmt: skip
            replaced = allowed[int(randomness.below(len(allowed), key, 4, p)[0])]
        else:
            replaced = row[p]
        chosen[p] = (row[p], replaced)
    return chosen


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


def test_spans_make_neighbours(tokenizer):
    """As many masked tokens as without, but in runs."""
    tokens_BL, lengths_B = batch(tokenizer, 400, 60)
    counts, pairs = [], []
    for longest in (1, 3):
        result = mask(MaskingConfig(longest_span=longest), tokens_BL, lengths_B, tokenizer)
        used = result.weights_BM > 0
        counts.append(used.sum())
        pairs.append((np.diff(result.positions_BM, axis=1)[used[:, 1:]] == 1).mean())
    assert counts[0] == counts[1]
    assert pairs[0] < 0.2 and pairs[1] > 0.3


def test_spans_need_a_fixed_count():
    with pytest.raises(ValueError, match="longest_span=3 needs count='fixed', got 'bernoulli'"):
        MaskingConfig(longest_span=3, count="bernoulli")


@pytest.mark.parametrize("count", ["fixed", "bernoulli"])
@pytest.mark.parametrize("rate", [0.15, 0.6])
def test_a_batch_equals_the_plain_loop(tokenizer, count, rate):
    config = MaskingConfig(rate=rate, count=count, mask_fraction=0.5, random_fraction=0.3)
    tokens_BL, lengths_B = batch(tokenizer, 13, 29)
    result = mask(config, tokens_BL, lengths_B, tokenizer, epoch=2)
    for b in range(13):
        expected = plain_mask(config, tokens_BL[b], lengths_B[b], b, 2, 3, tokenizer)
        used = len(expected)
        slots = corruption.max_masked(config, 29)
        assert result.positions_BM[b].tolist() == [*expected, *[0] * (slots - used)]
        assert result.labels_BM[b].tolist() == [*(label for label, _ in expected.values()), *[0] * (slots - used)]
        assert result.weights_BM[b].tolist() == [1.0] * used + [0.0] * (slots - used)
        corrupted = tokens_BL[b].copy()
        for position, (_, replaced) in expected.items():
            corrupted[position] = replaced
        np.testing.assert_array_equal(result.tokens_BL[b], corrupted)


def test_types_and_the_input_is_not_touched(tokenizer):
    tokens_BL, lengths_B = batch(tokenizer, 5, 17)
    before = tokens_BL.copy()
    result = mask(MaskingConfig(), tokens_BL, lengths_B, tokenizer)
    assert [array.dtype for array in result] == [np.int32, np.int32, np.int32, np.float32]
    np.testing.assert_array_equal(tokens_BL, before)


def test_most_masked_positions_by_hand():
    assert corruption.max_masked(MaskingConfig(), 128) == 20  # floor(19.2) + 1
    assert corruption.max_masked(MaskingConfig(rate=0.99), 8) == 8
    # 0.15 * 128 = 19.2; 4 sqrt(19.2 * 0.85) = 16.16
    assert corruption.max_masked(MaskingConfig(count="bernoulli"), 128) == 36
    assert corruption.max_masked(MaskingConfig(count="bernoulli", rate=0.9), 8) == 8


@pytest.mark.parametrize("count", ["fixed", "bernoulli"])
def test_statistics_of_the_corruption(tokenizer, count):
    config = MaskingConfig(count=count)
    tokens_BL, _ = batch(tokenizer, 4000, 64)
    tokens_BL[:, 1:63] = np.random.default_rng(1).integers(5, tokenizer.vocabulary_size, (4000, 62))
    tokens_BL[:, 63] = tokenizer.specials.end
    result = mask(config, tokens_BL, np.full(4000, 64), tokenizer)
    used_BM = result.weights_BM > 0
    total, maskable = int(used_BM.sum()), 4000 * 62
    # Bernoulli's count varies by sqrt(n p q), the fixed count by much less.
    assert abs(total - 0.15 * maskable) < 4 * np.sqrt(maskable * 0.15 * 0.85)

    inputs = np.take_along_axis(result.tokens_BL, result.positions_BM, axis=1)[used_BM]
    labels = result.labels_BM[used_BM]
    masked, kept = inputs == tokenizer.specials.mask, inputs == labels
    for share, expected in ((masked.mean(), 0.8), (kept.mean(), 0.1), ((~masked & ~kept).mean(), 0.1)):
        assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / total)
    # Each position is as likely as any other, and so is each random token.
    assert stats.chisquare(np.bincount(result.positions_BM[used_BM], minlength=64)[1:63]).pvalue > 1e-3
    random_tokens = inputs[~masked & ~kept]
    first = 0 if count == "bernoulli" else 5
    allowed = np.bincount(random_tokens, minlength=tokenizer.vocabulary_size)[first:]
    allowed = np.delete(allowed, tokenizer.specials.mask) if count == "bernoulli" else allowed
    assert stats.chisquare(allowed).pvalue > 1e-3
    if count == "fixed":
        assert np.isin(random_tokens, tokenizer.special_ids).sum() == 0
        assert set(used_BM.sum(axis=1)) == {9, 10}  # floor(9.3 + u)
    else:
        assert np.isin(random_tokens, tokenizer.special_ids).sum() > 0
        variance = used_BM.sum(axis=1).var()
        assert 0.8 < variance / (62 * 0.15 * 0.85) < 1.2


def test_specials_and_padding_are_never_masked(tokenizer):
    tokens_BL, lengths_B = batch(tokenizer, 500, 24)
    result = mask(MaskingConfig(rate=0.9, count="bernoulli"), tokens_BL, lengths_B, tokenizer)
    assert not np.isin(result.labels_BM[result.weights_BM > 0], tokenizer.special_ids).any()
    changed = result.tokens_BL != tokens_BL
    assert not changed[np.isin(tokens_BL, tokenizer.special_ids)].any()


@pytest.mark.parametrize("count", ["fixed", "bernoulli"])
def test_a_row_in_which_nothing_is_masked_has_no_weight(tokenizer, count):
    specials = tokenizer.specials
    tokens_BL = np.full((3, 10), specials.pad, np.int32)
    tokens_BL[0, :2] = specials.begin, specials.end
    tokens_BL[1, :3] = specials.begin, 50, specials.end
    result = mask(MaskingConfig(rate=1e-9, count=count), tokens_BL, np.array([2, 3, 0]), tokenizer)
    np.testing.assert_array_equal(result.tokens_BL, tokens_BL)
    for array in result[1:]:
        assert not array.any()


def test_a_row_does_not_depend_on_its_batch(tokenizer):
    tokens_BL, lengths_B = batch(tokenizer, 12, 19)
    config = MaskingConfig()
    whole = mask(config, tokens_BL, lengths_B, tokenizer)
    chosen = [7, 2, 9]
    part = mask(config, tokens_BL[chosen], lengths_B[chosen], tokenizer, example=chosen)
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one[chosen], other)


def test_dynamic_masks_change_with_epoch_example_and_seed_and_static_ones_come_round(tokenizer):
    tokens_BL, lengths_B = batch(tokenizer, 40, 60)

    def positions(config=MaskingConfig(), **key):
        return mask(config, tokens_BL, lengths_B, tokenizer, **key).positions_BM

    first = positions()
    for other in (positions(epoch=1), positions(seed=4), positions(example=np.arange(40) + 40)):
        assert ((first == other) & (first > 0)).mean() < 0.2
    np.testing.assert_array_equal(first, positions())
    static = MaskingConfig(static_copies=3)
    np.testing.assert_array_equal(positions(static, epoch=1), positions(static, epoch=7))
    assert (positions(static, epoch=1) != positions(static, epoch=2)).any()
    np.testing.assert_array_equal(positions(static, epoch=2), positions(epoch=2))

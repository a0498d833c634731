"""Words drawn by their frequency: exact on a tiny text, fixed for ever, and a function of what they are for."""

import numpy as np
import pytest
from scipy import stats

from ag_jax import config_reader
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig
from ag_jax.data.text import batching, corruption, pipeline, store
from ag_jax.data.text.store import Rows
from ag_jax.data.text.unigram import Unigram
from tests.data.text.test_corruption import batch

UNIGRAM = MaskingConfig(replacement="unigram")


def unigram(tokenizer, seed=0) -> Unigram:
    """Some frequencies, 0 for specials and for every seventh word."""
    counts_V = np.random.default_rng(seed).integers(1, 100, tokenizer.vocabulary_size)
    counts_V[::7] = 0
    counts_V[list(tokenizer.special_ids)] = 0
    return Unigram(counts_V)


def replace(tokens_BL, lengths_B, tokenizer, words, *, config=UNIGRAM, example=None, epoch=0, seed=3):
    rows = len(tokens_BL)
    example_B = np.arange(rows) if example is None else np.asarray(example)
    return corruption.mask(config, tokens_BL, lengths_B, example_B, np.full(rows, epoch), seed, tokenizer, words)


def test_a_word_is_the_one_at_a_place_of_the_sorted_text(monkeypatch):
    words = Unigram(np.array([0, 3, 0, 1, 4, 0]))
    assert words.frequencies_V.tolist() == [0, 3 / 8, 0, 1 / 8, 1 / 2, 0]
    places = np.array([0.0, 0.374, 0.375, 0.499, 0.5, 1 - 2**-53])
    monkeypatch.setattr("ag_jax.data.randomness.units", lambda *key: places)
    assert words.draw(0).tolist() == [1, 1, 3, 3, 4, 4]


def test_draws_never_change():
    words = Unigram(np.array([0, 5, 1, 0, 3, 1]))
    assert words.draw(7, np.arange(12)).tolist() == [4, 1, 1, 1, 2, 2, 5, 1, 1, 2, 1, 4]


def test_draws_follow_the_frequencies():
    words = Unigram(np.array([0, 500, 1, 0, 300, 199]))
    drawn = np.bincount(words.draw(1, 2, np.arange(200_000)), minlength=6)
    assert drawn[0] == drawn[3] == 0
    present = words.counts_V > 0
    assert stats.chisquare(drawn[present], 200_000 * words.frequencies_V[present]).pvalue > 1e-3


def test_counts_are_of_all_rows_without_specials(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(store, "COUNTED_TOGETHER", 4)
    rows = [np.array([0, 9, 9, 7, 2]), np.array([0, 9, 5, 2]), np.array([0, 7, 9, 9, 9, 2])]
    store.write_rows(tmp_path / "rows", [Row(row) for row in rows], tokenizer.vocabulary_size)
    read = Rows(tmp_path / "rows")
    counts_V = read.counts(tokenizer.vocabulary_size)
    assert len(counts_V) == tokenizer.vocabulary_size and counts_V.sum() == 15
    assert {v: int(n) for v, n in enumerate(counts_V) if n} == {0: 3, 2: 3, 5: 1, 7: 2, 9: 6}
    words = Unigram.of(read, tokenizer)
    assert {v: int(n) for v, n in enumerate(words.counts_V) if n} == {5: 1, 7: 2, 9: 6}
    assert read.counts(tokenizer.vocabulary_size)[0] == 3, "the shared counts were changed"


class Row:
    def __init__(self, tokens):
        self.tokens = tokens


def test_rows_of_specials_alone_are_refused(tmp_path, tokenizer):
    store.write_rows(tmp_path / "rows", [Row(np.array([0, 2]))], tokenizer.vocabulary_size)
    with pytest.raises(ValueError, match="no unigram distribution"):
        Unigram.of(Rows(tmp_path / "rows"), tokenizer)


@pytest.mark.parametrize("count", ["fixed", "bernoulli"])
@pytest.mark.parametrize("static_copies", [0, 3])
def test_every_chosen_position_is_replaced_and_no_other(tokenizer, count, static_copies):
    config = MaskingConfig(replacement="unigram", count=count, static_copies=static_copies, rate=0.3)
    plain = MaskingConfig(count=count, static_copies=static_copies, rate=0.3)
    tokens_BL, lengths_B = batch(tokenizer, 300, 29)
    words = unigram(tokenizer)
    result = replace(tokens_BL, lengths_B, tokenizer, words, config=config, epoch=4)
    masked = replace(tokens_BL, lengths_B, tokenizer, None, config=plain, epoch=4)
    for one, other in zip(result[1:], masked[1:], strict=True):  # the same positions, labels and weights
        np.testing.assert_array_equal(one, other)
    chosen_BL = np.zeros(tokens_BL.shape, bool)
    row, slot = np.nonzero(result.weights_BM)
    chosen_BL[row, result.positions_BM[row, slot]] = True
    np.testing.assert_array_equal(result.tokens_BL[~chosen_BL], tokens_BL[~chosen_BL])
    drawn = result.tokens_BL[chosen_BL]
    assert (words.counts_V[drawn] > 0).all()
    assert 0.97 < (drawn != tokens_BL[chosen_BL]).mean() < 1.0  # now and then a word is replaced by itself
    present = words.counts_V > 0
    observed = np.bincount(drawn, minlength=tokenizer.vocabulary_size)[present]
    assert stats.chisquare(observed, len(drawn) * words.frequencies_V[present]).pvalue > 1e-3
    static = replace(tokens_BL, lengths_B, tokenizer, words, config=config, epoch=1).tokens_BL
    assert (static == result.tokens_BL).all() == bool(static_copies)


def test_a_row_does_not_depend_on_its_batch_but_on_epoch_seed_and_example(tokenizer):
    tokens_BL, lengths_B = batch(tokenizer, 40, 60)
    words = unigram(tokenizer)
    whole = replace(tokens_BL, lengths_B, tokenizer, words)
    chosen = [7, 2, 9]
    part = replace(tokens_BL[chosen], lengths_B[chosen], tokenizer, words, example=chosen)
    np.testing.assert_array_equal(whole.tokens_BL[chosen], part.tokens_BL)
    for other in ({"epoch": 1}, {"seed": 4}, {"example": np.arange(40) + 40}):
        assert (replace(tokens_BL, lengths_B, tokenizer, words, **other).tokens_BL != whole.tokens_BL).any()


def test_config():
    with pytest.raises(ValueError, match="data.masking.replacement must be one of mask, unigram, got 'unigrams'"):
        config_reader.check(MaskingConfig(replacement="unigrams"), "data.masking")
    with pytest.raises(ValueError, match="leave them at"):
        MaskingConfig(replacement="unigram", mask_fraction=0.85)


def test_batches_of_both_splits_draw_from_the_training_text(library, tmp_path):
    config = DataConfig(
        source=str(library),
        sequence_length=24,
        cache_dir=str(tmp_path),
        tokenizer=TokenizerConfig(vocabulary_size=320),
        masking=MaskingConfig(replacement="unigram", rate=0.5),
    )
    corpus = pipeline.prepare(config, quiet=True)
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, 8, seed=5)
    words = Unigram.of(corpus.train, corpus.tokenizer)
    np.testing.assert_array_equal(batches.unigram.counts_V, words.counts_V)
    assert not np.isin(np.flatnonzero(words.counts_V), corpus.tokenizer.special_ids).any()
    plain = DataConfig(**{**vars(config), "masking": MaskingConfig(rate=0.5)})
    assert pipeline.Batches(corpus.train, corpus.tokenizer, plain, 8, seed=5).unigram is None
    one, again, validation = batches.at(3), batches.at(3), next(pipeline.validation_batches(corpus, config, 8))
    for drawn in (one, again, validation):
        assert {*drawn} == {*batching.empty_batch(config, 8)}
        changed_BL = drawn["tokens"] != drawn["original"]
        assert 0.3 < changed_BL.sum() / (drawn["segment_ids"] > 0).sum() < 0.5
        assert (words.counts_V[drawn["tokens"][changed_BL]] > 0).all()
    np.testing.assert_array_equal(one["tokens"], again["tokens"])
    rows = np.arange(8)
    expected = batching.make_batch(
        config, corpus.validation, corpus.tokenizer, example_B=rows, epoch_B=0 * rows, seed=0, unigram=words
    )
    np.testing.assert_array_equal(validation["tokens"], expected["tokens"])

"""Impossible settings are refused, with what is possible."""

import pytest

from ag_jax import config_reader
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenizerConfig(kind="byte_bp"), "byte_bpe, wordpiece.*did you mean 'byte_bpe'"),
        (
            lambda: TokenizerConfig(vocabulary_size=260),
            "vocabulary_size must be at least 261 with kind=byte_bpe, got 260",
        ),
        (lambda: TokenizerConfig(lowercase=True), "works with kind='wordpiece' only"),
        (lambda: MaskingConfig(rate=0.0), "rate must be above 0 and below 1, got 0.0"),
        (lambda: MaskingConfig(rate=1.0), "rate must be above 0 and below 1, got 1.0"),
        (lambda: MaskingConfig(mask_fraction=0.95), r"must be at most 1.*0\.95 \+ 0\.1"),
        (lambda: MaskingConfig(random_fraction=-0.1), "random_fraction must be at least 0 and at most 1, got -0.1"),
        (lambda: MaskingConfig(count="bernouli"), "did you mean 'bernoulli'"),
        (lambda: MaskingConfig(static_copies=-1), "static_copies must be at least 1, or none, got -1"),
        (lambda: DataConfig(format="full_sentence"), "did you mean 'full_sentences'"),
        (lambda: DataConfig(sequence_length=7), "data.sequence_length must be at least 8 and at most 65536, got 7"),
        (lambda: DataConfig(validation_fraction=1.0), "validation_fraction must be above 0 and below 1, got 1.0"),
        (lambda: DataConfig(source=""), "source is empty"),
        (
            lambda: DataConfig(pack=True, format="sentence_pair_nsp"),
            "pack=True works with fixed_blocks, full_sentences, doc_sentences only, got format='sentence_pair_nsp'"
            ".*set pack",
        ),
        (lambda: DataConfig(duplicates=2), "duplicates=2 works with segment_pair_nsp"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(make(), "data")


def test_fractions_that_sum_to_one_in_floating_point_are_allowed():
    assert MaskingConfig(mask_fraction=0.9, random_fraction=0.1).random_fraction == 0.1

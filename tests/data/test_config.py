"""Impossible settings are refused, with what is possible."""

import pytest

from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenizerConfig(kind="byte_bp"), "byte_bpe, wordpiece.*did you mean 'byte_bpe'"),
        (lambda: TokenizerConfig(vocabulary_size=260), r"vocabulary_size must lie in 261\.\."),
        (lambda: TokenizerConfig(lowercase=True), "works with kind='wordpiece' only"),
        (lambda: MaskingConfig(rate=0.0), "rate must lie strictly between 0 and 1, got 0.0"),
        (lambda: MaskingConfig(rate=1.0), "rate must lie strictly between 0 and 1"),
        (lambda: MaskingConfig(mask_fraction=0.95), r"must be at most 1.*0\.95 \+ 0\.1"),
        (lambda: MaskingConfig(random_fraction=-0.1), r"random_fraction must lie in 0\.0\.\.1\.0, got -0\.1"),
        (lambda: MaskingConfig(count="bernouli"), "did you mean 'bernoulli'"),
        (lambda: MaskingConfig(static_copies=-1), "static_copies must lie in 0"),
        (lambda: DataConfig(format="full_sentence"), "did you mean 'full_sentences'"),
        (lambda: DataConfig(sequence_length=7), r"sequence_length must lie in 8\.\.65536, got 7"),
        (lambda: DataConfig(validation_fraction=1.0), "validation_fraction must lie strictly between"),
        (lambda: DataConfig(source=""), "source is empty"),
        (
            lambda: DataConfig(pack=True, format="sentence_pair_nsp"),
            "pack=True works with fixed_blocks, full_sentences, doc_sentences only, got format='sentence_pair_nsp'.*set pack",
        ),
        (lambda: DataConfig(duplicates=2), "duplicates=2 works with segment_pair_nsp"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_fractions_that_sum_to_one_in_floating_point_are_allowed():
    assert MaskingConfig(mask_fraction=0.9, random_fraction=0.1).random_fraction == 0.1

"""Impossible settings are refused, with what is possible."""

import pytest

from ag_jax import config_reader
from ag_jax.data.config import DataConfig, MaskingConfig, TokenizerConfig


def parallel(**changes) -> DataConfig:
    return DataConfig(**{"format": "parallel", "source": "a.en", "target": "a.de"} | changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenizerConfig(kind="byte_bp"), "one of byte_bpe, .*got 'byte_bp'"),
        (
            lambda: TokenizerConfig(vocabulary_size=260),
            "vocabulary_size must be at least 261 with kind=byte_bpe, got 260",
        ),
        (lambda: TokenizerConfig(lowercase=True), "works with kind='wordpiece' only"),
        (lambda: MaskingConfig(rate=0.0), "rate must be above 0 and below 1, got 0.0"),
        (lambda: MaskingConfig(rate=1.0), "rate must be above 0 and below 1, got 1.0"),
        (lambda: MaskingConfig(mask_fraction=0.95), r"must be at most 1.*0\.95 \+ 0\.1"),
        (lambda: MaskingConfig(random_fraction=-0.1), "random_fraction must be at least 0 and at most 1, got -0.1"),
        (lambda: MaskingConfig(count="bernouli"), "got 'bernouli'"),
        (lambda: MaskingConfig(static_copies=-1), "static_copies must be at least 1, or none, got -1"),
        (lambda: DataConfig(format="full_sentence"), "got 'full_sentence'"),
        (lambda: DataConfig(sequence_length=7), "data.sequence_length must be at least 8 and at most 65536, got 7"),
        (lambda: DataConfig(validation_fraction=1.0), "validation_fraction must be above 0 and below 1, got 1.0"),
        (
            lambda: DataConfig(pack=True, format="sentence_pair_nsp"),
            "pack=True works with fixed_blocks, full_sentences, doc_sentences, parallel only, got "
            "format='sentence_pair_nsp'.*set pack",
        ),
        (lambda: DataConfig(duplicates=2), "duplicates=2 works with segment_pair_nsp"),
        (lambda: DataConfig(target="a.de"), "data.target has no effect with format='full_sentences': .* got 'a.de'"),
        (lambda: DataConfig(validation_target="a.de"), "data.validation_target has no effect with"),
        (lambda: DataConfig(source_field="en"), "data.source_field has no effect with"),
        (lambda: DataConfig(target_field="de"), "data.target_field has no effect with"),
        (lambda: DataConfig(max_words_ratio=2.0), "data.max_words_ratio has no effect with"),
        (lambda: DataConfig(max_tokens=50), "data.max_tokens has no effect with"),
        (lambda: DataConfig(format="parallel"), "needs texts with their translations, got data.source='sotu': give"),
        (lambda: parallel(source="tfds:wmt14"), "needs texts with their translations, got data.source='tfds:wmt14'"),
        (lambda: parallel(target=""), "data.target is empty; give files, or set it to none"),
        (lambda: parallel(validation_source=""), "data.validation_source is empty"),
        (lambda: parallel(validation_target="v.de"), "data.validation_target='v.de' has no source side: set data.val"),
        (lambda: parallel(text_field="body"), "data.text_field has no effect with format='parallel'.*got 'body'"),
        (
            lambda: parallel(masking=MaskingConfig(rate=0.3)),
            "data.masking has no effect with format='parallel'.*rate=0.3",
        ),
        (lambda: parallel(skip_words=(5,)), "data.skip_words has no effect with format='parallel'"),
        (lambda: DataConfig(skip_words=(-1,)), "data.skip_words must be at least 0, got -1"),
        (lambda: parallel(duplicates=2), "duplicates=2 works with segment_pair_nsp"),
        (lambda: parallel(target=None, target_field=""), "must be two different names, got 'source' and ''"),
        (
            lambda: parallel(target=None, target_field="source"),
            "must be two different names, got 'source' and 'source'",
        ),
        (lambda: parallel(source_field="en"), "'en' and data.target_field='target' are fields of records with both"),
        (
            lambda: parallel(max_tokens=65, sequence_length=64),
            "max_tokens=65 is more than a side of a row holds, data.seq",
        ),
        (lambda: parallel(max_tokens=1), "data.max_tokens must be at least 2 and at most 65536, or none, got 1"),
        (lambda: parallel(max_words_ratio=0.5), "data.max_words_ratio must be at least 1, or none, got 0.5"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        config_reader.check(make(), "data")


def test_fractions_that_sum_to_one_in_floating_point_are_allowed():
    assert MaskingConfig(mask_fraction=0.9, random_fraction=0.1).random_fraction == 0.1


def test_settings_of_pairs_that_are_allowed():
    assert parallel(pack=True, max_tokens=64, sequence_length=64, max_words_ratio=1.0).is_parallel
    assert parallel(validation_source="v.en", validation_target="v.de").is_parallel
    assert parallel(validation_source="v.tsv", source_field="en", target_field="de").validation_target is None
    assert parallel(target=None, source="a.tsv", source_field="en").target is None
    assert not DataConfig().is_parallel

"""The real Multi30k; skipped where it is missing."""

import numpy as np
import pytest

from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.parallel import layouts, pairs, pipeline

LENGTH = 64


@pytest.fixture(scope="module")
def parts(shared) -> layouts.Parts:
    return layouts.find("multi30k", str(shared / "data" / "multi30k"), "en", "de")


def test_it_is_read_whole(parts):
    found = list(parts.train)
    words = [[len(side.split()) for side in pair] for pair in found]
    assert len(found) == 29_000 and np.min(words) > 0
    assert np.sum(words, axis=0).tolist() == [345_020, 322_383]
    others = [
        list(parts.validation),
        *(list(zip(*pairs.read_test_set(test), strict=True)) for test in parts.tests.values()),
    ]
    assert [len(other) for other in others] == [1014, 1000, 1000]
    longest = [max(len(pair[side].split()) for part in (found, *others) for pair in part) for side in (0, 1)]
    assert longest == [41, 39]
    assert found[0].source.startswith("Two young, White males") and found[0].target.startswith("Zwei junge weiße")


@pytest.mark.exhaustive
def test_it_is_packed_to_the_brim(parts, tmp_path):
    config = DataConfig(
        format="parallel",
        source=parts.train.source,
        target=parts.train.target,
        validation_source=parts.validation.source,
        validation_target=parts.validation.target,
        sequence_length=LENGTH,
        pack=True,
        cache_dir=str(tmp_path),
        tokenizer=TokenizerConfig(kind="sentencepiece_unigram", vocabulary_size=8192),
    )
    corpus = pipeline.prepare(config)
    assert corpus.documents == {"train": 29_000, "validation": 1014}
    facts = corpus.facts()
    assert not any(count for name, count in facts.items() if " pairs " in name)
    rates = corpus.train.fill_rates(LENGTH)
    assert rates["source"] > 0.935 and rates["target"] > 0.965
    batch = pipeline.Batches(corpus.train, corpus.tokenizer, config, 32, 0).at(5)
    assert (batch["segment_ids"].max(axis=1) == batch["target_segment_ids"].max(axis=1)).all()

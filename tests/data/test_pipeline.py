"""The format chooses between text and pairs, and both answer the same calls."""

import dataclasses

import numpy as np
import pytest

from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.parallel import toys


@pytest.fixture(scope="module", params=["full_sentences", "parallel"])
def config(request, library, tmp_path_factory) -> DataConfig:
    cache, folder = str(tmp_path_factory.mktemp("cache")), tmp_path_factory.mktemp("toy")
    config = DataConfig(
        source=str(library), sequence_length=32, cache_dir=cache, tokenizer=TokenizerConfig(vocabulary_size=300)
    )
    if request.param == "full_sentences":
        return config
    toys.write(folder, "reverse", {"train": 120})
    files = {side: str(folder / f"train.{side}") for side in ("source", "target")}
    return dataclasses.replace(config, format="parallel", pack=True, validation_fraction=0.2, **files)


def test_a_corpus_its_facts_and_its_files(config):
    corpus = pipeline.prepare(config)
    facts = corpus.facts()
    wanted = [
        f"{split} {name}" for split in ("train", "validation") for name in ("documents", "rows", "tokens", "checksum")
    ]
    assert facts.keys() >= {"tokenizer", *wanted}
    assert (facts["train rows"], facts["train tokens"]) == (len(corpus.train), len(corpus.train.tokens))
    assert pipeline.prepare_tokenizer(config).fingerprint() == facts["tokenizer"] == corpus.tokenizer.fingerprint()
    assert list(pipeline.source_files(config)) == (["source", "target"] if config.is_parallel else ["source"])


def test_batches_have_the_fields_of_the_empty_batch(config):
    corpus, empty = pipeline.prepare(config), pipeline.empty_batch(config, 3)
    assert ("target_labels" in empty) == config.is_parallel == ("masked_labels" not in empty)
    batches = pipeline.batches(corpus, config, 3, seed=1)
    [held_out, *_] = pipeline.validation_batches(corpus, config, 3)
    [iterated] = batches.iterate(2, 3)
    for batch in (batches.at(2), iterated, held_out):
        assert {name: (field.shape, field.dtype) for name, field in batch.items()} == {
            name: (field.shape, field.dtype) for name, field in empty.items()
        }
    np.testing.assert_array_equal(iterated["tokens"], batches.at(2)["tokens"])


def test_the_start_of_targets_is_passed_on(config):
    if not config.is_parallel:
        pytest.skip("only pairs have targets")
    corpus = pipeline.prepare(config)
    batches = pipeline.batches(corpus, config, 3, 1, 99), pipeline.validation_batches(corpus, config, 3, start=99)
    for batch in (batches[0].at(0), next(batches[1])):
        assert batch["target_tokens"][0, 0] == 99

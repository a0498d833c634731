"""The format chooses between text and pairs, and both answer the same calls."""

import dataclasses

import numpy as np
import pytest

from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig
from ag_jax.data.parallel import toys
from tests.data.conftest import small


@pytest.fixture(scope="module", params=["full_sentences", "parallel"])
def config(request, library, tmp_path_factory) -> DataConfig:
    cache, folder = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("toy")
    config = small(library, cache, sequence_length=32)
    if request.param == "full_sentences":
        return config
    toys.write(folder, "reverse", {"train": 120})
    files = {side: str(folder / f"train.{side}") for side in ("source", "target")}
    return dataclasses.replace(config, format="parallel", pack=True, validation_fraction=0.2, **files)


def test_a_corpus_and_its_batches(config):
    corpus = pipeline.prepare(config)
    facts = corpus.facts()
    assert (facts["train rows"], facts["train tokens"]) == (len(corpus.train), len(corpus.train.tokens))
    assert facts["validation rows"] == len(corpus.validation)
    assert {
        f"{split} {name}" for split in ("train", "validation") for name in ("documents", "checksum")
    } <= facts.keys()
    assert pipeline.prepare_tokenizer(config).fingerprint() == facts["tokenizer"] == corpus.tokenizer.fingerprint()
    assert list(pipeline.source_files(config)) == (["source", "target"] if config.is_parallel else ["source"])

    empty = pipeline.empty_batch(config, 3)
    assert ("target_labels" in empty) == config.is_parallel == ("masked_labels" not in empty)
    batches = pipeline.batches(corpus, config, 3, 1, 99)
    held_out = list(pipeline.validation_batches(corpus, config, 3, start=99))
    assert len(held_out) == pipeline.validation_batch_count(corpus, 3) == -(-len(corpus.validation) // 3)
    assert pipeline.validation_batch_count(corpus, 3, most=4) == 2
    [iterated] = batches.iterate(2, 3)
    for batch in (batches.at(2), iterated, held_out[0]):
        shapes = [{name: (field.shape, field.dtype) for name, field in of.items()} for of in (batch, empty)]
        assert shapes[0] == shapes[1]
        assert not config.is_parallel or batch["target_tokens"][0, 0] == 99, "the start of targets is passed on"
    np.testing.assert_array_equal(iterated["tokens"], batches.at(2)["tokens"])

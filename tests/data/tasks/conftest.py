"""A tokenizer of each family, trained on a few words."""

import pytest

from ag_jax.data import tokenizers
from ag_jax.data.config import TokenizerConfig
from tests.data.conftest import text

KINDS = {"byte_bpe": 320, "wordpiece": 120, "sentencepiece_unigram": 90, "sentencepiece_bpe": 90}


@pytest.fixture(scope="session")
def family() -> dict[str, tokenizers.Tokenizer]:
    return {
        kind: tokenizers.train(
            TokenizerConfig(kind=kind, vocabulary_size=size), [text(0, 200), "Grüße, naïve “Überall”!"]
        )
        for kind, size in KINDS.items()
    }


@pytest.fixture(scope="session")
def bpe(family) -> tokenizers.Tokenizer:
    return family["byte_bpe"]

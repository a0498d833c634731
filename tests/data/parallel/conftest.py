"""A toy corpus in files, its config, and what is prepared of it."""

import pathlib

import pytest

from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.corpus import Corpus
from ag_jax.data.parallel import pipeline, toys

LENGTH = 48


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> pathlib.Path:
    """A directory with 211 pairs for training, 23 for validation and 7 for a test."""
    folder = tmp_path_factory.mktemp("toy")
    toys.write(folder, "dictionary", {"train": 211, "validation": 23, "test": 7})
    return folder


@pytest.fixture(scope="session")
def config(folder, tmp_path_factory) -> DataConfig:
    return DataConfig(
        format="parallel",
        source=str(folder / "train.source"),
        target=str(folder / "train.target"),
        validation_source=str(folder / "validation.source"),
        validation_target=str(folder / "validation.target"),
        sequence_length=LENGTH,
        pack=True,
        cache_dir=str(tmp_path_factory.mktemp("cache")),
        tokenizer=TokenizerConfig(vocabulary_size=400),
    )


@pytest.fixture(scope="session")
def corpus(config) -> Corpus:
    return pipeline.prepare(config)


def lines(path: pathlib.Path) -> list[str]:
    """The lines of a file of the toy corpus."""
    return path.read_text().splitlines()

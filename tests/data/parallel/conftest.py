"""A toy corpus in files, its config, and what is prepared of it."""

import pathlib

import pytest

from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.corpus import Corpus
from ag_jax.data.parallel import toys

LENGTH = 48
FILES = {"source": "train.source", "target": "train.target"}
FILES |= {"validation_source": "validation.source", "validation_target": "validation.target"}


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
        **{setting: str(folder / name) for setting, name in FILES.items()},
        sequence_length=LENGTH,
        pack=True,
        cache_dir=str(tmp_path_factory.mktemp("cache")),
        tokenizer=TokenizerConfig(vocabulary_size=400),
    )


@pytest.fixture(scope="session")
def corpus(config) -> Corpus:
    return pipeline.prepare(config)


def pairs(folder: pathlib.Path, split: str = "train") -> list[tuple[str, str]]:
    """The lines of the files of a split of the toy corpus."""
    sides = ((folder / f"{split}.{side}").read_text().splitlines() for side in ("source", "target"))
    return list(zip(*sides, strict=True))

"""Small texts, a small tokenizer and stores of given sentences, for the tests of the data room."""

import io
import json
import pathlib
import tarfile
from collections.abc import Iterable

import numpy as np
import pytest
import sentencepiece

from ag_jax.data import tokenizers
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.store import Block, Row, RowsWriter, TextStore, TextStoreWriter

WORDS = "the cat sat on a mat and dog ran to old house of red brick by river where it rained all day".split()


def sentence(number: int) -> str:
    """A sentence of 5 to 11 words that differs from number to number."""
    words = [WORDS[(number * 7 + 3 * i) % len(WORDS)] for i in range(5 + number % 7)]
    return f"{' '.join(words)} {number}.".capitalize()


def text(first: int, last: int) -> str:
    """Sentences `first` to `last` - 1, three to a line."""
    sentences = [sentence(number) for number in range(first, last)]
    return "\n".join(" ".join(sentences[at : at + 3]) for at in range(0, len(sentences), 3))


def json_lines(texts: Iterable[str]) -> str:
    """A record for each text, with the field `text`."""
    return "\n".join(json.dumps({"text": one}) for one in texts)


def write(folder: pathlib.Path, contents: dict[str, str | bytes]) -> pathlib.Path:
    """Write files by their names below a folder, and return the folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def tar(members: dict[str, bytes]) -> bytes:
    """An archive with members of these names."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def small(source, cache, **settings) -> DataConfig:
    """A config with short sequences and a small vocabulary."""
    defaults = {"sequence_length": 24, "tokenizer": TokenizerConfig(vocabulary_size=320)}
    return DataConfig(source=str(source), cache_dir=str(cache), **(defaults | settings))


def sentencepiece_model(texts: Iterable[str], **options) -> bytes:
    """A model that sentencepiece trains on texts, with its own normalisation."""
    model = io.BytesIO()
    defaults = {"vocab_size": 90, "bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3, "minloglevel": 2}
    symbols = {} if "user_defined_symbols" in options else {"control_symbols": ["<mask>"]}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, **(defaults | symbols | options)
    )
    return model.getvalue()


@pytest.fixture(scope="session")
def tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.train(TokenizerConfig(vocabulary_size=320), [text(0, 200)])


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> pathlib.Path:
    """A directory of eleven documents."""
    directory = tmp_path_factory.mktemp("library")
    for number in range(11):
        (directory / f"{number:02}.txt").write_text(text(40 * number, 40 * number + 30 + number))
    return directory


@pytest.fixture
def make_store(tmp_path):
    """A function that stores documents, each a list of sentences, each a list of ids."""

    return lambda documents: write_store(tmp_path / "store", documents)


def write_store(directory: pathlib.Path, documents: list[list[list[int]]], vocabulary_size: int = 60_000) -> TextStore:
    """Store documents, each a list of sentences, each a list of ids."""
    writer = TextStoreWriter(directory, vocabulary_size)
    for document in documents:
        writer.append(np.concatenate(document), np.array([len(ids) for ids in document]), np.array([len(document)]))
    writer.close()
    return TextStore(directory)


def write_rows(directory: pathlib.Path, rows: Iterable[Row], vocabulary_size: int, **settings) -> None:
    """Store rows, one to a block."""
    writer = RowsWriter(directory, vocabulary_size, **settings)
    for row in rows:
        writer.append(Block.of([row]))
    writer.close()

"""Cached directories of text keep their names, so that those of earlier versions are found."""

import dataclasses

from ag_jax.data import tokenizers
from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.text import pipeline, sources
from tests.data.conftest import text

# Written by the version before text and pairs had common code, for the identities below.
EARLIER = ["files-148a8f78dcd51960", "rows-490104b7d9222020", "text-6fa8d63b3f4589e5", "tokenizer-b3f289926df8a3b3"]
EARLIER_PACKED = [
    "files-c35659147badd44d",
    "rows-1f27a42dfbd3b00b",
    "text-09544a9f7a787568",
    "tokenizer-d394cd88e87de725",
]


def test_directories_of_earlier_versions_are_found(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(text(0, 100))
    (tmp_path / "b.txt").write_text(text(100, 140))
    identities = {
        str(tmp_path / "a.txt"): [["/text/a.txt", 1234, 5678]],
        str(tmp_path / "b.txt"): [["/text/b.txt", 12, 34]],
    }
    monkeypatch.setattr(sources, "identity", identities.get)
    monkeypatch.setattr(tokenizers.Tokenizer, "fingerprint", lambda self: "0123")
    config = DataConfig(
        source=str(tmp_path / "a.txt"),
        cache_dir=str(tmp_path / "one"),
        sequence_length=24,
        tokenizer=TokenizerConfig(vocabulary_size=300),
    )
    packed = dataclasses.replace(
        config,
        validation_source=str(tmp_path / "b.txt"),
        format="doc_sentences",
        pack=True,
        cache_dir=str(tmp_path / "two"),
    )
    for chosen, expected in ((config, EARLIER), (packed, EARLIER_PACKED)):
        pipeline.prepare(chosen, quiet=True)
        pipeline.source_files(chosen, quiet=True)
        folder = tmp_path / chosen.cache_dir
        assert sorted(path.name for path in folder.iterdir()) == expected

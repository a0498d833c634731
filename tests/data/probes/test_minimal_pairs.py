"""Minimal pairs in an archive."""

import json
import tarfile

from ag_jax.data.probes import minimal_pairs


def test_an_archive_has_the_pairs_of_its_files(tmp_path):
    folder = tmp_path / "pairs"
    folder.mkdir()
    (folder / "plural.tsv").write_text("sentence_good\tsentence_bad\nThe dogs run\tThe dogs runs\n")
    pair = {"sentence_good": "He is here", "sentence_bad": "He are here", "UID": "be", "field": "syntax"}
    (folder / "all.jsonl").write_text(json.dumps(pair))
    with tarfile.open(tmp_path / "pairs.tar.xz", "w:xz") as archive:
        archive.add(folder, ".")
    pairs = minimal_pairs.read(str(folder))
    assert {pair.paradigm for pair in pairs} == {"plural", "be"}
    assert minimal_pairs.read(str(tmp_path / "pairs.tar.xz")) == pairs

"""Text in an object store: the same documents, rows and errors as from a disk."""

import dataclasses
import gzip
import io
import json
import re
import tarfile
import uuid

import fsspec
import pytest

from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.data.text import files, pipeline, remote, single_source, sources
from ag_jax.distributed import storage
from tests.bucket import CUT
from tests.data.conftest import text


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def library():
    """Files of every kind by name; one fills several buffers and is cut into several documents."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, for Parquet")
    from pyarrow import parquet

    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": [text(n, n + 9) for n in range(0, 400, 9)]}), table)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as packed:
        add(packed, "in.txt", text(700, 720).encode())
    lines = "\n".join(json.dumps({"text": text(n, n + 4)}) for n in range(400, 480, 4)) + "\n"
    return {
        "a/b.txt": text(0, 30).encode(),
        "a.jsonl": lines.encode(),
        "a/long.txt": text(1000, 30_000).encode(),
        "c.jsonl.gz": gzip.compress(lines.encode()),
        "d.parquet": table.getvalue(),
        "e.tar": archive.getvalue(),
        "left_out.pdf": b"%PDF",
        ".hidden.txt": b"hidden",
        "a/.hidden/b.txt": b"hidden",
    }


@pytest.fixture
def both(tmp_path, monkeypatch, bucket):
    """The same files below a directory and in a bucket; the file system of the bucket."""
    monkeypatch.setattr(files, "LARGEST_DOCUMENT", 2**19)
    monkeypatch.setattr(remote, "READ_TOGETHER", 2**16)
    store = fsspec.filesystem("gs")
    for name, content in library().items():
        path = tmp_path / "books" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        store.pipe(f"gs://bucket/books/{name}", content)
    return tmp_path, store


def test_a_glob_names_files_of_any_ending(both):
    """As on a disk; of a directory that it names, only files with a known ending are read."""
    folder, store = both
    for name, content in (("part-00000", text(0, 9)), ("part-00001", text(9, 20)), ("part-x/a.txt", text(20, 22))):
        (folder / "spark" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "spark" / name).write_text(content)
        store.pipe(f"gs://bucket/spark/{name}", content.encode())
    (folder / "spark" / "part-x" / "odd").write_text("left out")
    store.pipe("gs://bucket/spark/part-x/odd", b"left out")
    for pattern, count in (("part-0*", 2), ("part-*", 3)):
        there = list(sources.documents(f"{folder}/spark/{pattern}"))
        assert len(there) == count and list(sources.documents(f"gs://bucket/spark/{pattern}")) == there


def test_the_documents_are_those_of_the_same_files_on_a_disk(both, caplog):
    folder, _ = both
    there = list(sources.documents(f"{folder}/books"))
    assert len(there) > 60 and list(sources.documents("gs://bucket/books")) == there
    assert "gs://bucket/books: left out 1 files with other endings or linked directories, such as left_out.pdf" in (
        caplog.text
    )
    names = [name for name, _ in sources.files(f"{folder}/books")]
    assert names == ["a/b.txt", "a/long.txt", "a.jsonl", "c.jsonl.gz", "d.parquet", "e.tar"]
    assert [name for name, _ in sources.files("gs://bucket/books")] == names
    for part in ("*.jsonl*", "a/b.txt", "a", "d.parquet"):
        assert list(sources.documents(f"gs://bucket/books/{part}")) == list(sources.documents(f"{folder}/books/{part}"))
    assert sources.weights("gs://bucket/books/a:3,gs://bucket/books/d.parquet:1") == [3, 1]


def test_the_rows_are_those_of_the_same_files_on_a_disk(both, tokenizer):
    folder, _ = both
    tokenizer.save(folder / "tokenizer")
    config = DataConfig(
        source=f"{folder}/books",
        sequence_length=64,
        cache_dir=str(folder / "cache"),
        tokenizer=TokenizerConfig(path=str(folder / "tokenizer")),
    )
    stored = dataclasses.replace(config, source="gs://bucket/books")
    assert pipeline.prepare(stored).facts() == pipeline.prepare(config).facts()
    [(name, size, fingerprint), *_] = pipeline.source_files(stored)["source"]
    assert (name, size) == ("a/b.txt", len(text(0, 30))) and fingerprint.startswith("md5Hash ")


def test_a_change_of_the_text_is_noticed(both):
    _, store = both
    unit = next(iter(sources.units("gs://bucket/books")))
    before = sources.identity("gs://bucket/books")
    assert not unit.has_changed() and sources.identity("gs://bucket/books") == before
    store.pipe(str(unit.path), text(0, 30).swapcase().encode())  # as long as before
    assert unit.has_changed() and sources.identity("gs://bucket/books") != before


def test_the_checksum_of_the_store_comes_before_its_times():
    info = {"type": "file", "size": 3, "mtime": "later", "etag": "b", "crc32c": "AAAAAA=="}
    [found] = remote._files("gs", {"bucket/a.txt": info, "bucket/": info})
    assert found == remote.RemoteFile("gs://bucket/a.txt", 3, "crc32c AAAAAA==")
    with pytest.raises(ValueError, match="neither a checksum nor a time of gs://bucket/a.txt"):
        remote._files("gs", {"bucket/a.txt": {"type": "file", "size": 3}})


def test_what_is_wrong_is_said(both, bucket):
    _, store = both
    with pytest.raises(FileNotFoundError, match="data.source='gs://bucket/nothing' does not exist"):
        list(sources.documents("gs://bucket/nothing"))
    store.pipe("gs://bucket/other/a.pdf", b"%PDF")
    with pytest.raises(FileNotFoundError, match="the directory gs://bucket/other holds no text: .* got a.pdf"):
        list(sources.documents("gs://bucket/other"))
    store.pipe("gs://bucket/empty.txt", b"")
    with pytest.raises(ValueError, match="gs://bucket/empty.txt is empty"):
        list(sources.documents("gs://bucket/empty.txt"))
    store.pipe("gs://bucket/cut.tar", library()["e.tar"][:1024])
    with pytest.raises(ValueError, match="gs://bucket/cut.tar is damaged or not what its name says"):
        list(sources.documents("gs://bucket/cut.tar"))
    with pytest.raises(ValueError, match="needs texts with their translations, got data.target='gs://bucket/a.de'"):
        DataConfig(source="a.en", target="gs://bucket/a.de", format="parallel")

    bucket.plan = lambda asked: 403
    with pytest.raises(
        ValueError, match=r"data.source='gs://bucket/books' cannot be reached .*Forbidden: gs://bucket/b"
    ):
        list(sources.documents("gs://bucket/books"))


def test_a_network_that_fails_is_not_called_damage(both, bucket, monkeypatch):
    monkeypatch.setattr(storage, "_patience", 1.0)
    bucket.plan = lambda asked: CUT if asked.kind == "read" else None
    with pytest.raises(OSError, match="cannot be read .StoreError: .* the store failed for 1 seconds") as raised:
        list(sources.documents("gs://bucket/books/a.jsonl"))
    assert raised.value.filename == "gs://bucket/books/a.jsonl"


def test_the_file_system_is_that_of_the_protocol():
    root = f"memory://{uuid.uuid4()}"
    store = fsspec.filesystem("memory")
    store.pipe(f"{root}/one.txt", b"One. Two.")
    assert list(sources.documents(f"{root}/one.txt")) == list(sources.documents(root)) == ["One. Two."]
    store.rm(root, recursive=True)
    with pytest.raises(ValueError, match=re.escape("data.source='gs9://x' cannot be opened")):
        list(sources.documents("gs9://x"))


def test_addresses_are_no_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part in ("gs://bucket/books", "hf:stanfordnlp/imdb", "tfds:wikipedia", "sotu"):
        assert single_source._place(part) == part
    assert single_source._place("books") == str(tmp_path / "books")

"""Text in an object store: the same documents, rows and errors as from a disk."""

import dataclasses
import gzip
import io
import uuid

import fsspec
import pytest

from ag_jax.data.config import TokenizerConfig
from ag_jax.data.text import files, pipeline, remote, sources
from ag_jax.distributed import storage
from tests.bucket import CUT
from tests.data.conftest import json_lines, small, tar, text, write


def library():
    """Files of every kind by name; one fills several buffers and is cut into several documents."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, for Parquet")
    from pyarrow import parquet

    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"text": [text(n, n + 9) for n in range(0, 400, 9)]}), table)
    lines = json_lines(text(n, n + 4) for n in range(400, 480, 4)).encode()
    return {
        "a/b.txt": text(0, 30).encode(),
        "a.jsonl": lines,
        "a/long.txt": text(1000, 2500).encode(),
        "c.jsonl.gz": gzip.compress(lines),
        "d.parquet": table.getvalue(),
        "e.tar": tar({"in.txt": text(700, 720).encode()}),
        "left_out.pdf": b"%PDF",
        ".hidden.txt": b"hidden",
        "a/.hidden/b.txt": b"hidden",
    }


@pytest.fixture
def both(tmp_path, monkeypatch, bucket):
    """The same files below a directory and in a bucket; the file system of the bucket."""
    monkeypatch.setattr(files, "LARGEST_DOCUMENT", 2**15)
    monkeypatch.setattr(remote, "READ_TOGETHER", 2**12)
    store = fsspec.filesystem("gs")
    for name, content in library().items():
        write(tmp_path / "books", {name: content})
        store.pipe(f"gs://bucket/books/{name}", content)
    return tmp_path, store


def test_the_documents_and_rows_are_those_of_the_same_files_on_a_disk(both, tokenizer, caplog):
    folder, store = both
    there = list(sources.documents(f"{folder}/books"))
    assert len(there) > 60 and list(sources.documents("gs://bucket/books")) == there
    assert "gs://bucket/books: left out 1 files" in caplog.text and "left_out.pdf" in caplog.text
    names = [name for name, _ in sources.files(f"{folder}/books")]
    assert names == ["a/b.txt", "a/long.txt", "a.jsonl", "c.jsonl.gz", "d.parquet", "e.tar"]
    assert [name for name, _ in sources.files("gs://bucket/books")] == names
    # Of a directory that a glob names, only files with a known ending are read; files that it names may have any other.
    for name, content in {"part-0": text(0, 9), "part-1": text(9, 20), "part-x/a.txt": "a", "part-x/odd": "no"}.items():
        write(folder / "books", {name: content})
        store.pipe(f"gs://bucket/books/{name}", content.encode())
    parts = {"*.jsonl*": 40, "a/b.txt": 1, "a": 3, "d.parquet": 45, "part-[0-9]*": 2, "part-*": 3, "part-?": 3}
    for part, count in parts.items():
        found = list(sources.documents(f"gs://bucket/books/{part}"))
        assert found == list(sources.documents(f"{folder}/books/{part}")) and len(found) == count, part
    assert sources.weights("gs://bucket/books/a:3,gs://bucket/books/d.parquet:1") == [3, 1]

    tokenizer.save(folder / "tokenizer")
    config = small(folder / "books", folder / "cache", tokenizer=TokenizerConfig(path=str(folder / "tokenizer")))
    stored = dataclasses.replace(config, source="gs://bucket/books")
    assert pipeline.prepare(stored).facts() == pipeline.prepare(config).facts()
    [(name, size, fingerprint), *_] = pipeline.source_files(stored)["source"]
    assert (name, size) == ("a/b.txt", len(text(0, 30))) and fingerprint.startswith("md5Hash ")
    unit = next(iter(sources.units("gs://bucket/books")))
    before = sources.identity("gs://bucket/books")
    assert not unit.has_changed() and sources.identity("gs://bucket/books") == before
    store.pipe(str(unit.path), text(0, 30).swapcase().encode())  # as long as before
    assert unit.has_changed() and sources.identity("gs://bucket/books") != before


def test_the_checksum_of_the_store_comes_before_its_times():
    info = {"type": "file", "size": 3, "mtime": "later", "etag": "b", "crc32c": "AAAAAA=="}
    [found] = remote._files("gs", {"bucket/a.txt": info, "bucket/": info})
    assert found == remote.RemoteFile("gs://bucket/a.txt", 3, "crc32c AAAAAA==")
    with pytest.raises(ValueError, match="gs://bucket/a.txt"):
        remote._files("gs", {"bucket/a.txt": {"type": "file", "size": 3}})


def test_what_is_wrong_is_named(both, bucket, monkeypatch):
    _, store = both
    contents = {"other/a.pdf": b"%PDF", "empty.txt": b"", "cut.tar": library()["e.tar"][:1024]}
    contents |= {"twice/a.txt": b"a", "twice/a.txt.gz": gzip.compress(b"a")}
    for name, content in contents.items():
        store.pipe(f"gs://bucket/{name}", content)
    for name, error, named in (
        ("nothing", FileNotFoundError, "gs://bucket/nothing"),
        ("other", FileNotFoundError, "gs://bucket/other .*a.pdf"),
        ("empty.txt", ValueError, "gs://bucket/empty.txt is empty"),
        ("cut.tar", ValueError, "gs://bucket/cut.tar is damaged"),
        ("twice", ValueError, "a.txt and .*a.txt.gz"),
    ):
        with pytest.raises(error, match=named):
            list(sources.documents(f"gs://bucket/{name}"))
    with pytest.raises(ValueError, match="gs9://x"):
        list(sources.documents("gs9://x"))
    bucket.plan = lambda asked: 403
    with pytest.raises(ValueError, match="gs://bucket/books.*Forbidden"):
        list(sources.documents("gs://bucket/books"))
    monkeypatch.setattr(storage, "_patience", 1.0)  # a network that fails is not called damage
    bucket.plan = lambda asked: CUT if asked.kind == "read" else None
    with pytest.raises(OSError, match="StoreError") as raised:
        list(sources.documents("gs://bucket/books/a.jsonl"))
    assert raised.value.filename == "gs://bucket/books/a.jsonl"


def test_the_file_system_is_that_of_the_protocol():
    root = f"memory://{uuid.uuid4()}"
    fsspec.filesystem("memory").pipe(f"{root}/one.txt", b"One. Two.")
    assert list(sources.documents(f"{root}/one.txt")) == list(sources.documents(root)) == ["One. Two."]

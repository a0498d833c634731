"""Entries of the cache in an object store, and machines that read them there."""

import dataclasses
import pathlib
import shutil

import numpy as np
import pytest
from etils import epath

from ag_jax.data import entries as cache_entries
from ag_jax.data.cache import MANIFEST
from ag_jax.data.config import DataConfig
from ag_jax.data.entries import Entries
from ag_jax.data.text import pipeline, single_source
from ag_jax.data.text import prepare as text_parts
from ag_jax.distributed import lock
from tests.data.conftest import json_lines, small, text, write


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that moves this process to a machine with another disk, and returns the folder of its cache."""

    def move(name: str) -> pathlib.Path:
        monkeypatch.setenv("AG_JAX_CACHE", str(tmp_path / name))
        return tmp_path / name

    return move


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A text of three parts."""
    for number in range(3):
        documents = [text(2 * at, 2 * at + 2) for at in range(35 * number, 35 * number + 35)]
        write(tmp_path / "text", {f"{number}.jsonl": json_lines(documents)})
    monkeypatch.setattr(text_parts, "PART_SIZE", 1)
    return small(tmp_path / "text", "gs://bucket/cache")


def kinds(directory) -> set[str]:
    return {path.name.split("-")[0] for path in directory.iterdir()}


def test_parts_of_several_machines_meet_in_the_store_and_others_read_them_without_the_text(
    config, bucket, machine, monkeypatch, tmp_path
):
    on_disk = pipeline.prepare(dataclasses.replace(config, cache_dir=str(tmp_path / "disk")))
    made, write_part = [], text_parts.write_part

    def stopped_at_the_second(part, *rest):
        if len(made) == 1 and not stopped:
            stopped.append(part.name)
            raise KeyboardInterrupt
        made.append(part.name)
        return write_part(part, *rest)

    stopped: list = []
    monkeypatch.setattr(text_parts, "write_part", stopped_at_the_second)
    machine("machine1")
    with pytest.raises(KeyboardInterrupt):
        pipeline.prepare(config, claim=lock.Claims())
    machine("machine2")
    corpus, files = pipeline.prepare(config, claim=lock.Claims()), pipeline.source_files(config)
    assert corpus.facts() == on_disk.facts() and len(made) == 3, "parts are fetched, not made again"
    stored = epath.Path(config.cache_dir)
    assert kinds(stored) == {"tokenizer", "text", "rows", "files", "source"}
    [rows] = [manifest.parent for manifest in stored.glob("rows-*/manifest.json")]
    for path in (tmp_path / "disk").glob("rows-*/*/*.bin"):
        assert (rows / path.parent.name / path.name).read_bytes() == path.read_bytes()

    (tmp_path / "text").rename(tmp_path / "gone")
    last, writes = machine("last"), len(bucket.written)
    again = pipeline.prepare(config, claim=lock.Claims())
    assert again.facts() == corpus.facts() and again.sources == corpus.sources
    assert pipeline.source_files(config) == files and len(bucket.written) == writes
    assert kinds(last) == {"tokenizer", "rows", "files"}, "the token ids, which only rows are made of, stay there"
    np.testing.assert_array_equal(again.train.tokens[:], on_disk.train.tokens[:])
    for change in ({"cache_dir": "gs://bucket/another"}, {"validation_fraction": 0.2}):
        with pytest.raises(FileNotFoundError, match="text"):
            pipeline.prepare(dataclasses.replace(config, **change))


def test_texts_of_one_relative_name_are_told_apart(bucket, machine, tmp_path, monkeypatch):
    """Two folders `a` and `b` have a `text` each; other machines lack both."""
    entries = Entries(machine("disk"), epath.Path("gs://bucket/cache"))
    identities = {}

    def identity(folder, source="text"):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        return single_source.identity(entries, source)

    for folder in ("a", "b"):
        write(tmp_path, {f"{folder}/text": folder})
        identities[folder] = identity(folder)
        single_source.remember(DataConfig(source="text"), entries)
        (tmp_path / folder / "text").unlink()
        if folder == "a":
            assert identity("worker") == identities["a"]
            single_source.remember(DataConfig(source="text"), entries)  # this machine has nothing to tell
        assert identity(folder) == identities[folder] and folder in identities[folder][0][0]
    assert identity("a") == identities["a"]
    with pytest.raises(ValueError, match="(a|b)/text or .*(a|b)/text"):
        identity("worker")
    assert identity("worker", f"{tmp_path}/b/text") == identities["b"]


def write_one(directory):
    (directory / "file").write_text("content")


def test_what_is_wrong_in_the_store_is_noticed_copied_again_or_completed(tmp_path, bucket, monkeypatch):
    remote = epath.Path("gs://bucket/cache")
    first, second = Entries(tmp_path / "first", remote), Entries(tmp_path / "second", remote)
    made = first.open("rows", write_one)
    (remote / "rows" / MANIFEST).unlink()  # the upload was cut off
    assert second.open("rows", write_one).digest("") == made.digest("") and (remote / "rows" / MANIFEST).exists()
    for damaged in (b"contend", b"conten"):
        (remote / "rows" / "file").write_bytes(damaged)
        shutil.rmtree(tmp_path / "second")
        with pytest.raises(ValueError, match="rows.*file"):
            second.open("rows", None)
        assert (remote / "rows" / "file").read_bytes() == damaged, "other machines may be reading it"
    (remote / "rows" / "file").write_bytes(b"content")

    honest, wrong = cache_entries._copy, []

    def copy(source, target):
        honest(source, target)
        if not wrong:
            wrong.append(target.write_bytes(bytes(8)))

    monkeypatch.setattr(cache_entries, "_copy", copy)
    assert second.open("rows", None).digest("") == made.digest("") and wrong
    first.remove("rows")
    assert not first.is_complete("rows") and not (tmp_path / "first" / "rows").exists()
    for entries in (first, Entries(tmp_path / "disk")):
        for name, value in (("name-1", [1, "a"]), ("name-1", {"b": None}), ("name-0", 3)):
            entries.remember(name, value)
            assert entries.recall(name) == value and entries.recall("name-2") is None
        assert entries.recall_all("name-") == [3, {"b": None}]


@pytest.mark.parametrize(
    ("cache_dir", "environment", "local", "remote"),
    [
        ("/a", "gs://b", "/a", None),
        ("gs://a", "/b", "/b", "gs://a"),
        (None, "/b", "/b", None),
        (None, "gs://b", "~/.cache/ag_jax", "gs://b"),
        ("gs://a", None, "~/.cache/ag_jax", "gs://a"),
        (None, None, "~/.cache/ag_jax", None),
    ],
)
def test_where_entries_are(cache_dir, environment, local, remote, monkeypatch, bucket):
    monkeypatch.delenv("AG_JAX_CACHE", raising=False)
    if environment:
        monkeypatch.setenv("AG_JAX_CACHE", environment)
    found = Entries.of(DataConfig(cache_dir=cache_dir))
    assert found.local == pathlib.Path(local).expanduser()
    assert found.remote == (None if remote is None else epath.Path(remote))


def opened(entries: Entries, name: str, write, at_once: bool):
    """An entry that is made by `open`, or by `make_all` before that."""
    if at_once:
        entries.make_all({name: write}, lambda: False, lambda: None)
    return entries.open(name, write)


@pytest.mark.parametrize("at_once", [False, True], ids=["open", "make_all"])
def test_a_process_that_claims_an_entry_deletes_what_a_killed_one_left_of_it(tmp_path, at_once):
    left, of_another = tmp_path / "text-ab.partial-01", tmp_path / "text-abc.partial-02"
    for path in (left, of_another):
        write(path, {"tokens.bin": "half"})
    found = []

    def write_and_look(directory):
        found.append(left.exists())
        write_one(directory)

    opened(Entries(tmp_path, claim=lock.Claims()), "text-ab", write_and_look, at_once)
    assert found == [False] and of_another.exists()

    def meanwhile(directory):
        write_one(directory)
        Entries(tmp_path, claim=lock.Claims()).open("text-abc", write_one)
        assert (directory / "file").exists() and not of_another.exists(), "what a running process writes stays"

    assert (Entries(tmp_path).open("text-abc", meanwhile).path / "file").read_text() == "content"


def test_parts_that_a_running_process_writes_are_not_removed(tmp_path):
    """Finished parts, and what killed processes left, are; parts of another text whose key begins alike stay."""
    source = text_parts.Source(DataConfig(), "key", lambda: "key")
    done, left, running = (f"part-key-{start:06}-{start + 2:06}" for start in (0, 2, 4))
    for name in (done, f"{left}.partial-ab", f"{running}.partial-cd", "part-keys-000000-000002"):
        (tmp_path / name).mkdir()
    with lock.Claims()(epath.Path(tmp_path / f"{left}.lock")):
        content = (tmp_path / f"{left}.lock").read_text()
    (tmp_path / f"{left}.lock").write_text(content.replace('"process_started": "', '"process_started": "0'))
    with lock.Claims()(epath.Path(tmp_path / f"{running}.lock")):
        text_parts.remove_parts(source, Entries(tmp_path, claim=lock.Claims()))
        remaining = {f"{running}.partial-cd", f"{running}.lock", "part-keys-000000-000002"}
        assert {path.name for path in tmp_path.iterdir()} == remaining
    text_parts.remove_parts(source, Entries(tmp_path, claim=lock.Claims()))
    assert [path.name for path in tmp_path.iterdir()] == ["part-keys-000000-000002"]

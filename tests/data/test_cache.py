"""A cached directory is there whole or not at all, on a disk and in an object store, and one process makes it."""

import concurrent.futures
import dataclasses
import errno
import hashlib
import multiprocessing
import os
import pathlib
import shutil
import signal
import threading
import time

import numpy as np
import pytest
from etils import epath

from ag_jax.data import cache, checksums, layout, pipeline, tokens
from ag_jax.data.cache import MANIFEST, Cache
from ag_jax.data.checksums import CheckedArray
from ag_jax.data.config import DataConfig
from ag_jax.data.text import documents
from ag_jax.distributed import hosts
from tests.data.conftest import json_lines, small, text
from tests.data.conftest import write as write_files


def write(directory: pathlib.Path):
    (directory / "deep").mkdir()
    (directory / "deep" / "tokens.bin").write_bytes(bytes(range(100)))


def write_slowly(directory: pathlib.Path):
    (directory / "a").write_text("begun")
    time.sleep(60)


@pytest.mark.parametrize(
    ("error", "expected", "named"),
    [
        (OSError(errno.ENOSPC, "No space left"), ValueError, "data.cache_dir"),
        (OSError(errno.EROFS, "Read-only", "/elsewhere"), ValueError, "data.cache_dir"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/elsewhere/a.txt"), FileNotFoundError, "a.txt"),
        (OSError("of Python code"), OSError, "of Python code"),
    ],
)
def test_an_error_leaves_nothing_and_only_faults_of_the_cache_are_blamed_on_it(error, expected, named, tmp_path):
    def fail(directory):
        (directory / "a").write_text("half")
        raise error

    with pytest.raises(expected, match=named):
        Cache(tmp_path).build_once("y", fail)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ValueError, match="file.*data.cache_dir"):
        Cache(tmp_path / "file").build_once("y", write)


def begin_slowly(folder):
    Cache(folder).build_once("y", write_slowly)


def test_a_killed_writer_is_not_taken_for_done_and_its_rest_goes_away(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=begin_slowly, args=(tmp_path,))
    process.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("y.partial-*/a")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    process.close()
    of_another = tmp_path / "yz.partial-01"
    of_another.mkdir()
    assert len(list(tmp_path.glob("y.partial-*"))) == 1
    assert Cache(tmp_path).build_once("y", write).checksums
    assert {path.name for path in tmp_path.iterdir()} == {"y", of_another.name}


@pytest.mark.parametrize("was_damaged", [False, True])
def test_of_three_that_need_a_directory_one_makes_it(tmp_path, was_damaged):
    if was_damaged:
        (tmp_path / "y").mkdir()
        (tmp_path / "y" / "a").write_text("made without a manifest")
    made, is_made = [], threading.Event()

    def write_once(directory):
        made.append(directory)
        is_made.wait(0.5)
        write(directory)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        entries = [pool.submit(Cache(tmp_path).build_once, "y", write_once) for _ in range(3)]
        assert len({entry.result().digest("deep") for entry in entries}) == 1 == len(made)
    assert [path.name for path in tmp_path.iterdir()] == ["y"] and not (tmp_path / "y" / "a").exists()


def test_a_process_that_lost_its_claim_puts_nothing_into_place(tmp_path, monkeypatch):
    class Left(BaseException):
        pass

    def write_slowly(directory):
        write(directory)
        [path] = tmp_path.glob("*.lock")
        path.write_text(path.read_text().replace('"host": "', '"host": "another '))

    monkeypatch.setattr(hosts, "leave_at_once", lambda status: (_ for _ in ()).throw(Left))
    with pytest.raises(Left):
        Cache(tmp_path).build_once("y", write_slowly)
    assert not (tmp_path / "y").exists()


def flip(path: pathlib.Path, at: int):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "truncated": lambda directory: os.truncate(directory / "deep/tokens.bin", 50),
    "one bit": lambda directory: flip(directory / "deep/tokens.bin", 77),
    "no manifest": lambda directory: (directory / cache.MANIFEST).unlink(),
    "another manifest": lambda directory: (directory / cache.MANIFEST).write_text("[]"),
    "one bit of the manifest": lambda directory: flip(directory / cache.MANIFEST, 45),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_made_anew_with_a_warning(tmp_path, damage, capsys):
    made = Cache(tmp_path).build_once("y", write)
    DAMAGES[damage](tmp_path / "y")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Cache(tmp_path).build_once("y", lambda directory: pathlib.Path("nowhere").read_text())
    assert (tmp_path / "y").exists(), "it stays until it can be made anew"
    capsys.readouterr()
    assert Cache(tmp_path).build_once("y", write) == made and str(tmp_path / "y") in capsys.readouterr().err
    assert (tmp_path / "y" / "deep" / "tokens.bin").read_bytes() == bytes(range(100))
    assert [path.name for path in tmp_path.iterdir()] == ["y"]
    assert Cache(tmp_path).build_once("y", None) == made and not capsys.readouterr().err
    assert made.digest("deep") == Cache(tmp_path).build_once("z", write).digest("deep") != made.digest("de")


def test_a_large_file_is_checked_as_it_is_read_or_wholly_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "READ_WHOLE", 479)
    monkeypatch.setattr(checksums, "BLOCK", 64)
    numbers = np.arange(60, dtype=np.int64)

    def write_numbers(directory):
        (directory / "a.bin").write_bytes(numbers.tobytes())
        (directory / "small.bin").write_bytes(bytes(479))

    entry = Cache(tmp_path).build_once("y", write_numbers)
    manifest, first = tmp_path / "y" / MANIFEST, str(entry.checksums["a.bin"][0])
    manifest.write_text(manifest.read_text().replace(first, f"{first}0"))  # of a file that is not read
    assert Cache(tmp_path).build_once("y", write_numbers) == entry
    path = tmp_path / "y" / "a.bin"
    assert entry.unread == {"a.bin"} and entry.checked(tmp_path / "y" / "small.bin") is None
    flip(path, 20 * 8)  # in the third block, of numbers 16 to 23
    assert Cache(tmp_path).build_once("y", None) == entry, "nothing has been read yet"

    array = CheckedArray(np.fromfile(path, np.int64), entry.checked(path))
    for index in (slice(0, 16), slice(24, None), 3, -1, np.array([[0, 59], [15, 24]]), slice(20, 20), slice(15, 8, -1)):
        np.testing.assert_array_equal(array[index], numbers[index])
    for index in (slice(15, 17), 23, -40, np.array([[0, 59], [15, 16]]), slice(17, 14, -1), slice(None)):
        with pytest.raises(ValueError, match=rf"a\.bin .*block 2.*{tmp_path / 'y'}"):
            array[index]
    with pytest.raises(ValueError, match="damaged"):
        np.diff(array)
    Cache(tmp_path).build_once("y", write_numbers, check_large=True)
    assert path.read_bytes() == numbers.tobytes()
    assert checksums.content_hash(path) == hashlib.sha256(numbers.tobytes()).hexdigest()[:16]


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
        texts = [text(2 * at, 2 * at + 2) for at in range(35 * number, 35 * number + 35)]
        write_files(tmp_path / "text", {f"{number}.jsonl": json_lines(texts)})
    monkeypatch.setattr(layout, "PART_SIZE", 1)
    return small(tmp_path / "text", "gs://bucket/cache")


def kinds(directory) -> set[str]:
    return {path.name.split("-")[0] for path in directory.iterdir()}


def test_parts_of_several_machines_meet_in_the_store_and_others_read_them_without_the_text(
    config, bucket, machine, monkeypatch, tmp_path
):
    on_disk = pipeline.prepare(dataclasses.replace(config, cache_dir=str(tmp_path / "disk")))
    made, write_part = [], tokens.write_part

    def stopped_at_the_second(of, part, *rest):
        if len(made) == 1 and not stopped:
            stopped.append(part)
            raise KeyboardInterrupt
        made.append(part)
        return write_part(of, part, *rest)

    stopped: list = []
    monkeypatch.setattr(tokens, "write_part", stopped_at_the_second)
    machine("machine1")
    with pytest.raises(KeyboardInterrupt):
        pipeline.prepare(config)
    machine("machine2")
    corpus, files = pipeline.prepare(config), pipeline.source_files(config)
    assert corpus.facts() == on_disk.facts() and len(made) == 3, "parts are fetched, not made again"
    stored = epath.Path(config.cache_dir)
    assert kinds(stored) == {"tokenizer", "text", "rows", "files", "source"}
    [rows] = [manifest.parent for manifest in stored.glob("rows-*/manifest.json")]
    for path in (tmp_path / "disk").glob("rows-*/*/*.bin"):
        assert (rows / path.parent.name / path.name).read_bytes() == path.read_bytes()

    (tmp_path / "text").rename(tmp_path / "gone")
    last, writes = machine("last"), len(bucket.written)
    again = pipeline.prepare(config)
    assert again.facts() == corpus.facts() and again.sources == corpus.sources
    assert pipeline.source_files(config) == files and len(bucket.written) == writes
    assert kinds(last) == {"tokenizer", "rows", "files"}, "the token ids, which only rows are made of, stay there"
    np.testing.assert_array_equal(again.train.tokens[:], on_disk.train.tokens[:])
    for change in ({"cache_dir": "gs://bucket/another"}, {"validation_fraction": 0.2}):
        with pytest.raises(FileNotFoundError, match="text"):
            pipeline.prepare(dataclasses.replace(config, **change))


def test_texts_of_one_relative_name_are_told_apart(bucket, machine, tmp_path, monkeypatch):
    """Two folders `a` and `b` have a `text` each; other machines lack both."""
    store = Cache(machine("disk"), epath.Path("gs://bucket/cache"))
    identities = {}

    def identity(folder, source="text"):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        return documents.identity(store, source)

    for folder in ("a", "b"):
        write_files(tmp_path, {f"{folder}/text": folder})
        identities[folder] = identity(folder)
        documents.remember(DataConfig(source="text"), store)
        (tmp_path / folder / "text").unlink()
        if folder == "a":
            assert identity("worker") == identities["a"]
            documents.remember(DataConfig(source="text"), store)  # this machine has nothing to tell
        assert identity(folder) == identities[folder] and folder in identities[folder][0][0]
    assert identity("a") == identities["a"]
    with pytest.raises(ValueError, match="(a|b)/text or .*(a|b)/text"):
        identity("worker")
    assert identity("worker", f"{tmp_path}/b/text") == identities["b"]


def write_one(directory):
    (directory / "file").write_text("content")


def test_what_is_wrong_in_the_store_is_noticed_copied_again_or_completed(tmp_path, bucket, monkeypatch):
    remote = epath.Path("gs://bucket/cache")
    first, second = Cache(tmp_path / "first", remote), Cache(tmp_path / "second", remote)
    made = first.build_once("rows", write_one)
    (remote / "rows" / MANIFEST).unlink()  # the upload was cut off
    assert second.build_once("rows", write_one).digest("") == made.digest("") and (remote / "rows" / MANIFEST).exists()
    for damaged in (b"contend", b"conten"):
        (remote / "rows" / "file").write_bytes(damaged)
        shutil.rmtree(tmp_path / "second")
        with pytest.raises(ValueError, match="rows.*file"):
            second.build_once("rows", None)
        assert (remote / "rows" / "file").read_bytes() == damaged, "other machines may be reading it"
    (remote / "rows" / "file").write_bytes(b"content")

    honest, wrong = cache._copy, []

    def copy_once(source, target):
        monkeypatch.setattr(cache, "_copy", None)
        honest(source, target)

    monkeypatch.setattr(cache, "_copy", copy_once)
    with pytest.raises(TypeError):
        first.build_once("text", write_one)
    assert (remote / "text").exists() and not (remote / "text" / MANIFEST).exists(), "the upload was cut off"
    shutil.rmtree(tmp_path / "first" / "text")

    def copy(source, target):
        honest(source, target)
        if not wrong:
            wrong.append(target.write_bytes(bytes(8)))

    monkeypatch.setattr(cache, "_copy", copy)
    assert second.build_once("rows", None).digest("") == made.digest("") and wrong
    first.build_once("later", write_one)
    first.remove("rows", "later")
    assert not first.is_complete("rows") and not (tmp_path / "first" / "rows").exists()
    for place in (first, Cache(tmp_path / "disk")):
        for name, value in (("name-1", [1, "a"]), ("name-1", {"b": None}), ("name-0", 3)):
            place.remember(name, value)
            assert place.recall(name) == [value] and place.recall("name-2") == []
        assert place.recall("name-*") == [3, {"b": None}]


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
def test_where_the_cache_is(cache_dir, environment, local, remote, monkeypatch, bucket):
    monkeypatch.delenv("AG_JAX_CACHE", raising=False)
    if environment:
        monkeypatch.setenv("AG_JAX_CACHE", environment)
    found = Cache.of(DataConfig(cache_dir=cache_dir))
    assert found.local == pathlib.Path(local).expanduser()
    assert found.remote == (None if remote is None else epath.Path(remote))


def test_parts_that_a_running_process_writes_are_not_removed(tmp_path):
    """Finished parts, and what killed processes left, are; parts of another text whose key begins alike stay."""
    store = Cache(tmp_path)
    done, left, running = (f"part-key-{start:06}-{start + 2:06}" for start in (0, 2, 4))
    for name in (done, f"{left}.partial-ab", f"{running}.partial-cd", "part-keys-000000-000002"):
        (tmp_path / name).mkdir()
    with store._claimed(left):
        content = (tmp_path / f"{left}.lock").read_text()
    (tmp_path / f"{left}.lock").write_text(content.replace('"process_started": "', '"process_started": "0'))
    with store._claimed(running):
        (tmp_path / "text").mkdir()
        Cache(tmp_path).remove("part-key-", "text")
        assert (tmp_path / done).exists(), "what they are for is not complete"
        store.build_once("text", write_one)
        with store._claimed("text"):  # by a process that makes it anew
            Cache(tmp_path).remove("part-key-", "text")
            assert (tmp_path / done).exists()
        Cache(tmp_path).remove("part-key-", "text")
        remaining = {f"{running}.partial-cd", f"{running}.lock", "part-keys-000000-000002", "text"}
        assert {path.name for path in tmp_path.iterdir()} == remaining
    store.remove("part-key-", "text")
    assert {path.name for path in tmp_path.iterdir()} == {"part-keys-000000-000002", "text"}

"""A cached directory is there whole or not at all."""

import concurrent.futures
import errno
import multiprocessing
import os
import pathlib
import signal
import threading
import time

import numpy as np
import pytest

from ag_jax.data import cache, checksums
from ag_jax.data.checksums import CheckedArray


def write_slowly(directory: pathlib.Path):
    (directory / "a").write_text("begun")
    time.sleep(60)


def test_it_is_written_once(tmp_path):
    calls = []

    def write(directory):
        calls.append(directory)
        (directory / "deep").mkdir()
        (directory / "deep" / "a").write_text("text")

    for _ in range(2):
        cache.build_once(tmp_path / "x" / "y", write)
    assert len(calls) == 1
    assert (tmp_path / "x" / "y" / "deep" / "a").read_text() == "text"
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["y"]


def test_an_error_leaves_nothing(tmp_path):
    def write(directory):
        (directory / "a").write_text("half")
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        cache.build_once(tmp_path / "y", write)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_is_not_taken_for_done_and_its_rest_goes_away(tmp_path):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=cache.build_once, args=(tmp_path / "y", write_slowly))
    process.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("y.partial-*/a")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    process.close()
    [rest] = tmp_path.iterdir()
    assert rest.name.startswith("y.partial-")

    # A rest that is fresh may belong to a process that is alive; one of two days ago does not.
    cache.build_once(tmp_path / "y", lambda directory: (directory / "a").write_text("whole"))
    assert (tmp_path / "y" / "a").read_text() == "whole" and rest.exists()
    for path in (rest / "a", rest):
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    (tmp_path / "y").rename(tmp_path / "moved")
    cache.build_once(tmp_path / "y", lambda directory: (directory / "a").write_text("again"))
    assert not rest.exists()


@pytest.mark.parametrize("was_damaged", [False, True])
def test_three_writers_at_once_agree(tmp_path, was_damaged):
    if was_damaged:
        (tmp_path / "y").mkdir()
        (tmp_path / "y" / "a").write_text("made without a manifest")
    barrier = threading.Barrier(3)

    def write(directory):
        barrier.wait(30)  # all are writing now
        (directory / "a").write_text("the same from each")

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        made = [pool.submit(cache.build_once, tmp_path / "y", write) for _ in range(3)]
        assert len({entry.result().digest("") for entry in made}) == 1
    assert (tmp_path / "y" / "a").read_text() == "the same from each"
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


def flip(path: pathlib.Path, at: int):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "truncated": lambda directory: os.truncate(directory / "tokens.bin", 50),
    "removed": lambda directory: (directory / "tokens.bin").unlink(),
    "one bit": lambda directory: flip(directory / "tokens.bin", 77),
    "zeros": lambda directory: (directory / "tokens.bin").write_bytes(bytes(100)),
    "no manifest": lambda directory: (directory / cache.MANIFEST).unlink(),
    "another manifest": lambda directory: (directory / cache.MANIFEST).write_text("[]"),
    "a deep manifest": lambda directory: (directory / cache.MANIFEST).write_text("[" * 99_999 + "]" * 99_999),
    "one bit of the manifest": lambda directory: flip(directory / cache.MANIFEST, 40),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_made_anew_with_a_warning(tmp_path, damage, capsys):
    def write(directory):
        (directory / "tokens.bin").write_bytes(bytes(range(100)))

    made = cache.build_once(tmp_path / "y", write)
    assert cache.build_once(tmp_path / "y", write) == made and not capsys.readouterr().err
    DAMAGES[damage](tmp_path / "y")
    assert cache.build_once(tmp_path / "y", write) == made
    assert (tmp_path / "y" / "tokens.bin").read_bytes() == bytes(range(100))
    named = cache.MANIFEST if "manifest" in damage else "tokens.bin"
    assert f"the cache {tmp_path / 'y'} is damaged ({named}" in capsys.readouterr().err.replace("the content of ", "")
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


def test_what_is_damaged_stays_until_it_can_be_made_anew(tmp_path):
    cache.build_once(tmp_path / "y", lambda directory: (directory / "a").write_text("whole"))
    (tmp_path / "y" / "a").write_text("other")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cache.build_once(tmp_path / "y", lambda directory: (tmp_path.parent / "nowhere.txt").read_text())
    assert (tmp_path / "y" / "a").read_text() == "other"


def test_a_large_file_is_checked_as_it_is_read_or_wholly_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "READ_WHOLE", 10)
    monkeypatch.setattr(checksums, "BLOCK", 64)
    numbers = np.arange(60, dtype=np.int64)

    def write(directory):
        (directory / "a.bin").write_bytes(numbers.tobytes())

    entry = cache.build_once(tmp_path / "y", write)
    path = tmp_path / "y" / "a.bin"
    flip(path, 20 * 8)  # in the third block, of numbers 16 to 23
    assert cache.build_once(tmp_path / "y", write) == entry, "nothing has been read yet"

    array = CheckedArray(np.fromfile(path, np.int64), entry.checked(path))
    for index in (slice(0, 16), slice(24, None), 3, -1, np.array([[0, 59], [15, 24]]), slice(20, 20), slice(15, 8, -1)):
        np.testing.assert_array_equal(array[index], numbers[index])
    for index in (slice(15, 17), 23, -40, np.array([[0, 59], [15, 16]]), slice(17, 14, -1), slice(None)):
        with pytest.raises(
            ValueError,
            match=rf"a.bin is damaged \(in block 2; blocks have 64 bytes\): delete the folder {tmp_path / 'y'} and",
        ):
            array[index]
    with pytest.raises(ValueError, match="damaged"):
        np.diff(array)

    cache.build_once(tmp_path / "y", write, check_large=True)
    assert path.read_bytes() == numbers.tobytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ValueError, match=r"file.* cannot be written: .*set data.cache_dir \(or AG_JAX_CACHE\)"):
        cache.build_once(tmp_path / "file" / "y", lambda directory: None)


def test_a_full_disk_is_named_and_nothing_stays(tmp_path):
    def write(directory):
        (directory / "a").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ValueError, match="cannot be written: No space left on device; make room"):
        cache.build_once(tmp_path / "y", write)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_source_is_not_blamed_on_the_cache(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cache.build_once(tmp_path / "cache" / "y", lambda directory: (tmp_path / "nowhere.txt").read_text())

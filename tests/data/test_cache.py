"""A cached directory is there whole or not at all."""

import errno
import multiprocessing
import os
import pathlib
import signal
import time

import pytest

from ag_jax.data import cache


def write_slowly(directory: pathlib.Path):
    (directory / "a").write_text("begun")
    time.sleep(60)


def write_number(target: pathlib.Path, barrier, results):
    def write(directory):
        barrier.wait(30)  # both are writing now
        (directory / "a").write_text("the same from either")

    cache.build_once(target, write)
    results.put((target / "a").read_text())


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


def test_two_writers_at_once_agree(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=write_number, args=(tmp_path / "y", barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == ["the same from either"] * 2
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    assert [path.name for path in tmp_path.iterdir()] == ["y"]
    results.close()
    results.join_thread()


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_damaged_file_is_named(tmp_path, damage):
    cache.build_once(tmp_path / "y", lambda directory: (directory / "tokens.bin").write_bytes(bytes(100)))
    if damage == "truncate":
        os.truncate(tmp_path / "y" / "tokens.bin", 50)
    else:
        (tmp_path / "y" / "tokens.bin").unlink()
    with pytest.raises(ValueError, match=r"damaged \(.*tokens.bin.*\): delete this directory"):
        cache.build_once(tmp_path / "y", lambda directory: None)


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
        cache.build_once(tmp_path / "cache" / "y", lambda directory: open(tmp_path / "nowhere.txt"))

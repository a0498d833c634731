"""A cached directory is there whole or not at all."""

import concurrent.futures
import errno
import hashlib
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
        cache.build_once(tmp_path / "y", fail)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ValueError, match="file.*data.cache_dir"):
        cache.build_once(tmp_path / "file" / "y", write)


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
    for hours, stays in ((23.5, True), (24.5, False)):  # a fresh rest may belong to a process that is alive
        os.utime(rest, (time.time() - hours * 3600,) * 2)
        os.utime(rest / "a", (time.time() - hours * 3600,) * 2)
        assert cache.build_once(tmp_path / "y", write).checksums and rest.exists() == stays
        (tmp_path / "y").rename(tmp_path / f"moved{hours}")


@pytest.mark.parametrize("was_damaged", [False, True])
def test_three_writers_at_once_agree(tmp_path, was_damaged):
    if was_damaged:
        (tmp_path / "y").mkdir()
        (tmp_path / "y" / "a").write_text("made without a manifest")
    barrier = threading.Barrier(3)

    def write_together(directory):
        barrier.wait(30)  # all are writing now
        write(directory)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        made = [pool.submit(cache.build_once, tmp_path / "y", write_together) for _ in range(3)]
        assert len({entry.result().digest("deep") for entry in made}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["y"] and not (tmp_path / "y" / "a").exists()


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
    made = cache.build_once(tmp_path / "y", write)
    DAMAGES[damage](tmp_path / "y")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cache.build_once(tmp_path / "y", lambda directory: pathlib.Path("nowhere").read_text())
    assert (tmp_path / "y").exists(), "it stays until it can be made anew"
    capsys.readouterr()
    assert cache.build_once(tmp_path / "y", write) == made and str(tmp_path / "y") in capsys.readouterr().err
    assert (tmp_path / "y" / "deep" / "tokens.bin").read_bytes() == bytes(range(100))
    assert [path.name for path in tmp_path.iterdir()] == ["y"]
    assert cache.build_once(tmp_path / "y", None) == made and not capsys.readouterr().err
    assert made.digest("deep") == cache.build_once(tmp_path / "z", write).digest("deep") != made.digest("de")


def test_a_large_file_is_checked_as_it_is_read_or_wholly_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "READ_WHOLE", 479)
    monkeypatch.setattr(checksums, "BLOCK", 64)
    numbers = np.arange(60, dtype=np.int64)

    def write_numbers(directory):
        (directory / "a.bin").write_bytes(numbers.tobytes())
        (directory / "small.bin").write_bytes(bytes(479))

    entry = cache.build_once(tmp_path / "y", write_numbers)
    path = tmp_path / "y" / "a.bin"
    assert entry.unread == {"a.bin"} and entry.checked(tmp_path / "y" / "small.bin") is None
    flip(path, 20 * 8)  # in the third block, of numbers 16 to 23
    assert cache.build_once(tmp_path / "y", None) == entry, "nothing has been read yet"

    array = CheckedArray(np.fromfile(path, np.int64), entry.checked(path))
    for index in (slice(0, 16), slice(24, None), 3, -1, np.array([[0, 59], [15, 24]]), slice(20, 20), slice(15, 8, -1)):
        np.testing.assert_array_equal(array[index], numbers[index])
    for index in (slice(15, 17), 23, -40, np.array([[0, 59], [15, 16]]), slice(17, 14, -1), slice(None)):
        with pytest.raises(ValueError, match=rf"a\.bin .*block 2.*{tmp_path / 'y'}"):
            array[index]
    with pytest.raises(ValueError, match="damaged"):
        np.diff(array)
    cache.build_once(tmp_path / "y", write_numbers, check_large=True)
    assert path.read_bytes() == numbers.tobytes()
    assert checksums.content_hash(path) == hashlib.sha256(numbers.tobytes()).hexdigest()[:16]

"""`ag-jax prepare` in several processes, some of which are killed, and runs that share what was prepared."""

import functools
import json
import os
import pathlib
import signal
import time
from collections import Counter

import pytest

from ag_jax.data import layout, tokens
from tests import commands
from tests.cases import some
from tests.commands import REPOSITORY
from tests.data.conftest import text


def write_documents(folder):
    """Write 30 files of four documents each."""
    folder.mkdir(exist_ok=True)
    for number in range(30):
        documents = [{"text": text(70 * number + 9 * at, 70 * number + 9 * at + 9)} for at in range(4)]
        (folder / f"{number:02}.jsonl").write_text("\n".join(map(json.dumps, documents)))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_documents(tmp_path_factory.mktemp("text"))


def watch(log: str, part_size: int, dies: bool, slow: float, together: int) -> None:
    """Make parts small and slow, and log each; kill the process when it has half written its first.

    The process begins when `together` processes are there.
    """
    folder = pathlib.Path(log).parent
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < together:
        time.sleep(0.02)
    layout.PART_SIZE, write = part_size, tokens.write_part

    def watched(of, part, directory, *report):
        with open(log, "a") as file:
            file.write(f"{part.units[0].path} {os.getpid()}\n")
        time.sleep(slow)
        count = write(of, part, directory, *report)
        if dies:
            (pathlib.Path(directory) / "tokens.bin").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    tokens.write_part = watched


def start(source, cache, *more, part_size=1500, dies=False, slow=0.0, together=1, cache_dir=None, environment=None):
    """Start the command with the cache `cache_dir`, by default in the folder `cache`, which has the log of `watch`."""
    cache.mkdir(parents=True, exist_ok=True)
    arguments = [
        "prepare",
        f"--config={REPOSITORY / 'configs' / 'quickstart.py'}",
        f"--config.data.source={source}",
        f"--config.data.cache_dir={cache_dir or cache / 'cache'}",
        "--config.data.tokenizer.vocabulary_size=320",
        *more,
    ]
    before = functools.partial(watch, str(cache / "log"), part_size, dies, slow, together)
    return commands.Running(arguments, before=before, environment={"JAX_PLATFORMS": "cpu"} | (environment or {}))


def log(cache) -> Counter:
    """Return how often each part was begun."""
    return Counter(line.split()[0] for line in (cache / "log").read_text().splitlines())


def contents(cache) -> dict[str, bytes]:
    """Return the content of all files of the cache, whose names must not depend on how it was made."""
    root = cache / "cache"
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """The cache that one process made, and what it printed."""
    cache = tmp_path_factory.mktemp("whole")
    done = start(folder, cache).wait()
    assert done.returncode == 0, done.stderr
    assert 10 < len(log(cache)) < 30 and set(log(cache).values()) == {1}
    return cache, json.loads(done.stdout)


def assert_parts_are_made_once(cache, whole, killed):
    """Each part is made as often as by the one process of `whole`, and once more for each process that was killed."""
    died = {str(one.pid) for one in killed}
    lines = (line.split() for line in (cache / "log").read_text().splitlines())
    again = Counter(part for part, process, *_ in lines if process in died)
    assert again.total() == len(died) and log(cache) == log(whole) + again


@pytest.mark.parametrize("count", some([4, 8], 4))
def test_processes_of_which_some_are_killed_make_what_one_makes(folder, whole, tmp_path, count):
    killed = count // 3
    running = [start(folder, tmp_path, dies=number < killed, slow=0.4, together=count) for number in range(count)]
    ended = [one.wait() for one in running]
    assert [end.returncode for end in ended].count(-signal.SIGKILL) == killed
    assert_parts_are_made_once(tmp_path, whole[0], running[:killed])
    processes = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(processes) > count // 2, "many processes are meant to have done some of the parts"
    for end in ended[killed:]:
        assert end.returncode == 0 and json.loads(end.stdout) == whole[1], end.stderr
    assert contents(tmp_path) == contents(whole[0])


def test_what_a_stopped_process_has_made_stays(folder, whole, tmp_path):
    running = start(folder, tmp_path, slow=0.2)
    while not (tmp_path / "log").exists() or len(log(tmp_path)) < 3:
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    assert running.wait().returncode == 75
    done = start(folder, tmp_path).wait()
    assert log(tmp_path).total() - len(log(tmp_path)) in (0, 1)  # the part that was stopped
    assert json.loads(done.stdout) == whole[1] and contents(tmp_path) == contents(whole[0])

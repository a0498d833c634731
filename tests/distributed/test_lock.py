"""The lock of a directory: one holder at a time, and none that is dead."""

import itertools
import json
import os
import signal
import subprocess
import threading
import time

import pytest
from etils import epath

from ag_jax.distributed import lock, storage
from tests.bucket import LOST
from tests.distributed.fake_hosts import FakeHosts


@pytest.fixture(params=["disk", "bucket"])
def directory(request, monkeypatch, tmp_path):
    """A directory that is not there yet, where nothing has to be waited for."""
    monkeypatch.setattr(lock, "LOOK_EVERY", 0.01)
    if request.param == "disk":
        return epath.Path(tmp_path / "runs" / "a")
    request.getfixturevalue("bucket")
    return epath.Path("gs://bucket/runs/a")


@pytest.fixture
def sleeper():
    """Another process."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def write(directory, **changes):
    """Write the lock of a process, this one by default, with some fields changed.

    The file is replaced in one step, as a heartbeat does it: a reader never sees half of it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    values = vars(lock.Holder.this_process()) | {"token": "theirs"} | changes
    text = json.dumps(values | {"beats": 0})
    storage.write_whole(directory / lock.FILE, text)


def names(directory):
    return [path.name for path in directory.iterdir()] if directory.exists() else []


def test_it_is_held_and_then_gone(directory):
    with lock.hold(directory):
        assert names(directory) == [lock.FILE]
        expected = f"{directory} is in use by process {os.getpid()} on .*, since 20"
        with pytest.raises(ValueError, match=expected), lock.hold(directory):
            pass
    with pytest.raises(RuntimeError), lock.hold(directory):
        raise RuntimeError
    assert names(directory) == []


def test_whether_a_directory_is_held(directory, sleeper):
    assert not lock.is_held(directory)
    with lock.hold(directory):
        assert lock.is_held(directory)
    assert not lock.is_held(directory)
    write(directory, host="another")
    assert lock.is_held(directory), "nothing says that its process has ended"
    write(directory, pid=sleeper.pid, process_started="long ago")
    assert not lock.is_held(directory)


def test_in_turn_waits_for_the_other(directory):
    """The lines that were printed; the second holder begins when the first has ended."""
    order, said, first = [], [], threading.Event()

    def second():
        first.wait()
        with lock.hold_in_turn(directory, said.append):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with lock.hold_in_turn(directory, said.append):
        assert not said
        first.set()
        while not said:
            time.sleep(0.01)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"] and names(directory) == []
    assert said == [f"waiting for another process, which holds the lock of {directory}"]
    with pytest.raises(RuntimeError), lock.hold_in_turn(directory, said.append):
        raise RuntimeError
    assert names(directory) == []


def test_in_turn_replaces_what_a_dead_process_left(directory, sleeper):
    write(directory, pid=sleeper.pid, process_started="1")
    with lock.hold_in_turn(directory, lambda line: None):
        assert json.loads((directory / lock.FILE).read_text())["pid"] == os.getpid()


def test_a_killed_process_leaves_nothing_to_wait_for(directory, sleeper):
    write(directory, pid=sleeper.pid, process_started=lock._started(sleeper.pid))
    with pytest.raises(ValueError, match=f"in use by process {sleeper.pid} on "), lock.hold(directory):
        pass
    os.kill(sleeper.pid, signal.SIGKILL)
    sleeper.poll() or os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    with lock.hold(directory):
        assert json.loads((directory / lock.FILE).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("changes", [{"process_started": "1"}, {"pid": 2**22 + 1}], ids=["given again", "not there"])
def test_the_number_of_a_process_alone_says_nothing(directory, changes):
    write(directory, **changes)
    with lock.hold(directory):
        pass


@pytest.mark.parametrize("content", [{"machine": "another"}, {"host": "another"}, "", "[1]"])
def test_another_machine_is_watched_for_a_while(directory, monkeypatch, capsys, content):
    def leave():
        if isinstance(content, dict):
            write(directory, **content)
        else:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / lock.FILE).write_text(content)

    leave()
    monkeypatch.setattr(lock, "STALE_AFTER", 0.05)
    with lock.hold(directory):
        assert "to see whether its process still runs" in capsys.readouterr().err
    leave()
    monkeypatch.setattr(lock, "STALE_AFTER", 60.0)
    beat = threading.Timer(0.1, write, [directory], {"host": "far"})
    beat.start()
    with pytest.raises(ValueError, match=f"in use by process {os.getpid()} on far, since"), lock.hold(directory):
        pass
    beat.join()


def test_the_holder_beats_and_leaves_if_another_one_took_over(directory, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_EVERY", 0.01)
    left = threading.Event()
    monkeypatch.setattr(lock.hosts, "leave_at_once", lambda status: left.set())
    with lock.hold(directory):
        while '"beats": 3' not in (directory / lock.FILE).read_text():
            pass
        for _ in range(100):  # a beat that has begun may still write over it
            write(directory, host="far")
            if left.wait(0.1):
                break
        assert left.is_set()


def test_a_holder_that_slept_leaves_if_its_lock_is_gone(directory, monkeypatch):
    """Another process may have taken it over and released it; a file that is deleted in between is written again."""
    monkeypatch.setattr(lock, "BEAT_EVERY", 0.01)
    left = threading.Event()
    monkeypatch.setattr(lock.hosts, "leave_at_once", lambda status: left.set())
    with lock.hold(directory):
        (directory / lock.FILE).unlink()
        deadline = time.monotonic() + 30
        while not (directory / lock.FILE).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left.is_set() and lock.is_held(directory)
        monkeypatch.setattr(lock, "STALE_AFTER", -1.0)  # as if the last beat was long ago
        while not left.is_set() and time.monotonic() < deadline:
            (directory / lock.FILE).unlink(missing_ok=True)
            time.sleep(0.005)
        assert left.is_set()


def test_of_many_that_find_a_remnant_one_takes_over(directory, monkeypatch):
    taken, refused = [], []
    write(directory, process_started="1")
    found, ended, numbers = threading.Barrier(8), threading.Barrier(8), itertools.count()
    is_gone = lock.Holder.is_gone

    def found_by_all(holder):
        gone = is_gone(holder)
        if next(numbers) < 8:  # no process removes the stale lock before all eight have read it
            found.wait()
        return gone

    monkeypatch.setattr(lock.Holder, "is_gone", found_by_all)

    def attempt():
        try:
            with lock.hold(directory):
                taken.append(1)
                ended.wait()
        except ValueError:
            refused.append(1)
            ended.wait()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 7)


@pytest.mark.parametrize("lost", [False, True])
def test_of_many_that_start_together_at_a_bucket_one_gets_it(bucket, monkeypatch, lost):
    """Also if the bucket's answers to the first attempts are lost, so that they are repeated."""
    monkeypatch.setattr("random.uniform", lambda least, most: 0.01)
    first = itertools.count()
    bucket.plan = lambda asked: LOST if lost and asked.is_write and next(first) < 8 else None
    together, ended, taken, refused = threading.Barrier(8), threading.Barrier(8), [], []
    monkeypatch.setattr(lock.Holder, "is_gone", lambda holder: False)

    def attempt():
        together.wait()
        try:
            with lock.hold(epath.Path("gs://bucket/runs/a")):
                taken.append(1)
                ended.wait()
        except ValueError:
            refused.append(1)
            ended.wait()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused), bucket.written) == (1, 7, ["runs/a/lock.json"])


def test_the_first_of_several_hosts_holds_it(tmp_path, monkeypatch):
    def held(host):
        with lock.hold(epath.Path(tmp_path)):
            lock.hosts.exchange("all are in", None)
            assert names(tmp_path) == [lock.FILE]
            lock.hosts.exchange("all have looked", None)

    assert FakeHosts(monkeypatch, 3).run(held) == [None] * 3 and names(tmp_path) == []
    write(epath.Path(tmp_path))
    errors = FakeHosts(monkeypatch, 3).run(held)
    assert all(isinstance(error, ValueError) and "is in use by" in str(error) for error in errors)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory: .*file/run"), lock.hold(epath.Path(tmp_path / "file" / "run")):
        pass


def test_claims_share_work_without_waiting(directory, sleeper):
    ours, theirs = lock.Claims(), lock.Claims()
    with ours(directory) as mine:
        assert mine and names(directory) == [lock.FILE]
        with theirs(directory) as too, ours(directory) as again:
            assert not too and not again
        assert names(directory) == [lock.FILE], "who did not take the lock does not release it"
    assert names(directory) == []
    with pytest.raises(RuntimeError), theirs(directory) as mine:
        assert mine
        raise RuntimeError
    write(directory, pid=sleeper.pid, process_started=lock._started(sleeper.pid))
    with ours(directory) as mine:
        assert not mine
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    with ours(directory) as mine:
        assert mine and json.loads((directory / lock.FILE).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_a_directory_that_its_last_holder_removes_meanwhile(directory, monkeypatch, error):
    """`mkdir` may then raise FileExistsError, and the creation of the lock file FileNotFoundError."""
    tries, create = [], storage.create

    def once_removed(path, text):
        tries.append(path)
        if len(tries) == 1:
            raise error(path)
        return create(path, text)

    monkeypatch.setattr(storage, "create", once_removed)
    for take in (lock.Claims(), lock.hold):
        tries.clear()
        with take(directory) as held:
            assert held is not False and names(directory) == [lock.FILE] and len(tries) == 2
    monkeypatch.setattr(storage, "create", lambda path, text: once_removed(tries.clear() or path, text))
    with pytest.raises(error), lock.Claims()(directory):
        pass


@pytest.mark.parametrize("content", [{"machine": "another"}, {"host": "another"}])
def test_a_claim_of_another_machine_is_free_when_it_does_not_beat(directory, monkeypatch, content):
    clock = [1000.0]
    monkeypatch.setattr(lock.time, "monotonic", lambda: clock[0])
    claims = lock.Claims()
    write(directory, **content)
    for seconds, token, free in (
        (0, "a", False),
        (119, "a", False),
        (2, "b", False),
        (119, "b", False),
        (2, "b", True),
    ):
        clock[0] += seconds
        if token == "b" and seconds == 2 and not free:  # it beats
            write(directory, token="b", **content)
        with claims(directory) as mine:
            assert bool(mine) == free


def test_a_claim_that_was_just_created_is_not_free(directory):
    """Its file is still empty, because another process has created it and not yet written it."""
    directory.mkdir(parents=True)
    (directory / lock.FILE).write_text("")
    with lock.Claims()(directory) as mine:
        assert not mine


@pytest.mark.parametrize("is_over", [False, True], ids=["theirs", "released"])
def test_a_claim_that_another_process_takes_over_is_lost(directory, monkeypatch, capsys, is_over):
    monkeypatch.setattr(lock, "BEAT_EVERY", 0.01)
    with lock.Claims()(directory) as mine:
        deadline = time.monotonic() + 30
        while mine and time.monotonic() < deadline:  # a beat that has begun may still write over it
            if is_over:
                (directory / lock.FILE).unlink(missing_ok=True)
            else:
                write(directory, host="far")
            time.sleep(0.05)
        assert not mine
        if not is_over:
            write(directory, host="far")
    assert names(directory) == ([] if is_over else [lock.FILE]), "what is not held is not released"
    who = "another process" if is_over else f"process {os.getpid()} on far"
    assert f"{directory} was taken over by {who}: it leaves this work to that process" in capsys.readouterr().err

"""Locks: one holder at a time, and none that is dead."""

import itertools
import json
import os
import signal
import subprocess
import threading
import time

import pytest
from etils import epath

from ag_jax.distributed import hosts, lock, storage
from tests.bucket import LOST
from tests.distributed.fake_hosts import FakeHosts


@pytest.fixture
def disk(monkeypatch, tmp_path):
    """A lock in a directory that is not there yet, where nothing has to be waited for."""
    monkeypatch.setattr(lock, "LOOK_EVERY", 0.01)
    return epath.Path(tmp_path / "runs" / "a" / lock.FILE)


@pytest.fixture(params=["disk", "bucket"])
def path(request, disk):
    if request.param == "disk":
        return disk
    request.getfixturevalue("bucket")
    return epath.Path("gs://bucket/runs/a") / lock.FILE


@pytest.fixture
def sleeper():
    """Another process."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def end(process):
    """Kill a process, which stays a zombie."""
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def write(path, **changes):
    """Write, in one step, the lock of a process, this one by default, with some fields changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = vars(lock.Holder.this_process()) | {"token": "theirs"} | changes
    storage.write_whole(path, json.dumps(values | {"beats": 0}))


def names(path):
    return [other.name for other in path.parent.iterdir()] if path.parent.exists() else []


def holder(path):
    return json.loads(path.read_text())["pid"]


def test_it_is_held_and_then_gone(path):
    assert not lock.is_held(path)
    with lock.hold(path):
        assert names(path) == [lock.FILE] and lock.is_held(path)
        with pytest.raises(ValueError, match=f"{path.parent}.*process {os.getpid()} on .* 20"), lock.hold(path):
            pass
    with pytest.raises(RuntimeError), lock.hold(path):
        raise RuntimeError
    assert names(path) == [] and not lock.is_held(path)


def test_a_killed_process_leaves_nothing_to_wait_for(path, sleeper):
    write(path, host="another")
    assert lock.is_held(path), "nothing says that its process has ended"
    write(path, pid=sleeper.pid, process_started=lock._started(sleeper.pid))
    with pytest.raises(ValueError, match=f"process {sleeper.pid} on "), lock.hold(path):
        pass
    end(sleeper)
    assert not lock.is_held(path)
    with lock.hold(path):
        assert holder(path) == os.getpid()


def test_it_waits_for_the_other_if_told_to(path, capsys):
    order, first = [], threading.Event()

    def second():
        first.wait()
        with lock.hold(path, wait=True):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with lock.hold(path, wait=True):
        said = capsys.readouterr().err
        assert not said
        first.set()
        while not (said := capsys.readouterr().err):
            time.sleep(0.01)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"] and said.count("\n") == 1 and str(path) in said
    write(path, process_started="1")  # a dead process left it
    with pytest.raises(RuntimeError), lock.hold(path, wait=True):
        assert holder(path) == os.getpid()
        raise RuntimeError
    assert names(path) == []


@pytest.mark.parametrize("changes", [{"process_started": "1"}, {"pid": 2**22 + 1}], ids=["given again", "not there"])
def test_the_number_of_a_process_alone_says_nothing(disk, changes):
    write(disk, **changes)
    assert not lock.is_held(disk)
    with lock.hold(disk):
        pass


@pytest.mark.parametrize("content", [{"machine": "another"}, {"host": "another"}, "", "[1]"], ids=str)
def test_another_machine_is_watched_for_a_while(disk, monkeypatch, capsys, content):
    def leave():
        if isinstance(content, dict):
            write(disk, **content)
        else:
            disk.parent.mkdir(parents=True, exist_ok=True)
            disk.write_text(content)

    leave()
    monkeypatch.setattr(lock, "STALE_AFTER", 0.05)
    with lock.hold(disk):
        assert "waiting" in capsys.readouterr().err and holder(disk) == os.getpid()
    leave()
    monkeypatch.setattr(lock, "STALE_AFTER", 60.0)
    beat = threading.Timer(0.1, write, [disk], {"host": "far"})
    beat.start()
    with pytest.raises(ValueError, match=f"process {os.getpid()} on far"), lock.hold(disk):
        pass
    beat.join()


@pytest.fixture
def left(monkeypatch):
    """An event that is set in place of the end of this process; the holder beats often."""
    monkeypatch.setattr(lock, "BEAT_EVERY", 0.01)
    event = threading.Event()
    monkeypatch.setattr(hosts, "leave_at_once", lambda status: event.set())
    return event


@pytest.mark.parametrize("take", [lock.hold, lock.Claims()], ids=["hold", "claim"])
def test_the_holder_beats_and_leaves_if_another_one_took_over(path, left, capsys, take):
    with take(path):
        while '"beats": 3' not in path.read_text():
            pass
        for _ in range(100):  # a beat that has begun may still write over it
            write(path, host="far")
            if left.wait(0.1):
                break
        assert left.is_set()
        write(path, host="far")
    assert names(path) == [lock.FILE], "what is not held is not released"
    assert f"process {os.getpid()} on far took it over" in capsys.readouterr().err


def test_a_holder_that_slept_leaves_if_its_lock_is_gone(disk, left, monkeypatch):
    """Another process may have taken it over and released it; a file that is deleted in between is written again."""
    with lock.hold(disk):
        disk.unlink()
        deadline = time.monotonic() + 30
        while not disk.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not left.is_set() and lock.is_held(disk)
        monkeypatch.setattr(lock, "STALE_AFTER", -1.0)  # as if the last beat was long ago
        while not left.is_set() and time.monotonic() < deadline:
            disk.unlink(missing_ok=True)
            time.sleep(0.005)
        assert left.is_set()


def eight_attempts(path):
    """Hold the path in eight threads, all until the last has ended; return how many held it."""
    together, ended, taken = threading.Barrier(8), threading.Barrier(8), []

    def attempt():
        together.wait()
        try:
            with lock.hold(path):
                taken.append(True)
                ended.wait()
        except ValueError:
            taken.append(False)
            ended.wait()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 8
    return sum(taken)


def test_of_many_that_find_a_remnant_one_takes_over(path, monkeypatch):
    write(path, process_started="1")
    found, numbers, is_gone = threading.Barrier(8), itertools.count(), lock.Holder.is_gone

    def found_by_all(holder):
        gone = is_gone(holder)
        if next(numbers) < 8:  # no process removes the stale lock before all eight have read it
            found.wait()
        return gone

    monkeypatch.setattr(lock.Holder, "is_gone", found_by_all)
    assert eight_attempts(path) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_of_many_that_start_together_at_a_bucket_one_gets_it(bucket, monkeypatch, lost):
    """Also if the bucket's answers to the first attempts are lost, so that they are repeated."""
    monkeypatch.setattr("random.uniform", lambda least, most: 0.01)
    first = itertools.count()
    bucket.plan = lambda asked: LOST if lost and asked.is_write and next(first) < 8 else None
    monkeypatch.setattr(lock.Holder, "is_gone", lambda holder: False)
    assert eight_attempts(epath.Path("gs://bucket/runs/a") / lock.FILE) == 1
    assert bucket.written == ["runs/a/lock.json"]


def test_the_first_of_several_hosts_holds_it(tmp_path, monkeypatch):
    def held(host):
        with lock.hold(epath.Path(tmp_path) / lock.FILE):
            hosts.exchange("all are in", None)
            assert names(tmp_path / lock.FILE) == [lock.FILE]
            hosts.exchange("all have looked", None)

    assert FakeHosts(monkeypatch, 3).run(held) == [None] * 3 and names(tmp_path / lock.FILE) == []
    write(epath.Path(tmp_path) / lock.FILE)
    errors = FakeHosts(monkeypatch, 3).run(held)
    assert all(isinstance(error, ValueError) and str(os.getpid()) in str(error) for error in errors)


def test_claims_share_work_without_waiting(path, sleeper):
    ours, theirs = lock.Claims(), lock.Claims()
    with ours(path) as mine:
        assert mine and names(path) == [lock.FILE]
        with theirs(path) as too, ours(path) as again:
            assert not too and not again
        assert names(path) == [lock.FILE], "who did not take the lock does not release it"
    with pytest.raises(RuntimeError), theirs(path) as mine:
        assert mine
        raise RuntimeError
    assert names(path) == []
    write(path, pid=sleeper.pid, process_started=lock._started(sleeper.pid))
    with ours(path) as mine:
        assert not mine
    end(sleeper)
    with ours(path) as mine:
        assert mine and holder(path) == os.getpid()
    path.write_text("")  # another process has created it and not yet written it
    with lock.Claims()(path) as mine:
        assert not mine


@pytest.mark.parametrize("content", [{"machine": "another"}, {"host": "another"}], ids=str)
def test_a_claim_of_another_machine_is_free_when_it_does_not_beat(disk, monkeypatch, content):
    clock, claims = [1000.0], lock.Claims()
    monkeypatch.setattr(lock.time, "monotonic", lambda: clock[0])
    write(disk, **content)
    # (seconds later, whether it beats then, whether it is free)
    for seconds, beats, free in ((0, 0, 0), (119, 0, 0), (2, 1, 0), (119, 0, 0), (2, 0, 1)):
        clock[0] += seconds
        if beats:
            write(disk, token="b", **content)
        with claims(disk) as mine:
            assert bool(mine) == free

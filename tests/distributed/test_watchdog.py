"""The watchdog ends a run in which nothing moves, and only then."""

import time

import pytest

from ag_jax.distributed import interruption
from ag_jax.distributed.watchdog import Watchdog


class Result:
    """A result on a device that is ready from some time on."""

    def __init__(self, after: float):
        self._at = time.monotonic() + after

    def is_ready(self) -> bool:
        return time.monotonic() > self._at


@pytest.fixture
def ended():
    return []


def wait_for(ended, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    return ended


def test_a_step_that_never_ends_is_named(ended, capfd):
    with Watchdog(0.3, ended.append) as dog:
        dog.follow(7, Result(0.0))
        dog.follow(8, Result(1e9))
        assert wait_for(ended) == [interruption.AGAIN]
    said = capfd.readouterr().err
    assert all(part in said for part in ("step that was done is 7", "waits for: step 8", "test_watchdog.py"))


def test_other_work_that_hangs_is_named(ended, capfd):
    with Watchdog(0.2, ended.append) as dog:
        dog.beat("a disk")
        assert wait_for(ended)
    assert "waits for: a disk" in capfd.readouterr().err


def test_progress_keeps_it_quiet(ended):
    with Watchdog(0.5, ended.append) as dog:
        for step in range(6):
            dog.follow(step, Result(0.05))
            time.sleep(0.12)
        for _ in range(6):
            dog.beat()
            time.sleep(0.12)
    assert not ended


def test_steps_that_are_only_sent_are_no_progress(ended):
    with Watchdog(0.3, ended.append) as dog:
        dog.follow(0, Result(0.0))
        for step in range(1, 30):
            dog.follow(step, Result(1e9))
            time.sleep(0.05)
    assert ended


def test_compilation_may_take_longer_but_only_the_first_time(ended):
    with Watchdog(0.2, ended.append) as dog:
        with dog.compiling("the step"):
            time.sleep(0.6)
        assert not ended
        with dog.compiling("the step"):
            wait_for(ended)
    assert ended


def test_the_first_step_may_wait_for_other_hosts_that_compile_it(ended):
    with Watchdog(0.2, ended.append) as dog:
        dog.follow(1, Result(0.6))
        time.sleep(0.7)
        assert not ended
        dog.follow(2, Result(1e9))
        assert wait_for(ended)


def test_zero_is_never(ended):
    with Watchdog(0, ended.append):
        time.sleep(0.3)
    assert not ended

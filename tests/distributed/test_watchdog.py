"""The watchdog barks when nothing moves, and only then."""

import time

import pytest

from ag_jax.distributed import hosts
from ag_jax.distributed.watchdog import Watchdog


class Result:
    """A result on a device that is there from some time on."""

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


def test_a_step_that_never_ends(ended, capfd):
    with Watchdog(0.3, ended.append) as dog:
        dog.follow(7, Result(0.0))
        dog.follow(8, Result(1e9))
        assert wait_for(ended) == [hosts.AGAIN]
    said = capfd.readouterr().err
    assert "made no progress for" in said and "the last step that was done is 7" in said
    assert "it waits for: step 8 on the devices" in said and "test_watchdog.py" in said


def test_whatever_else_hangs_is_named(ended, capfd):
    with Watchdog(0.2, ended.append) as dog:
        dog.beat("a disk")
        wait_for(ended)
    assert "it waits for: a disk" in capfd.readouterr().err


def test_progress_keeps_it_quiet(ended):
    with Watchdog(0.5, ended.append) as dog:
        for step in range(10):
            dog.follow(step, Result(0.05))
            time.sleep(0.1)
        for _ in range(10):
            dog.beat()
            time.sleep(0.1)
    assert not ended


def test_steps_that_are_only_sent_are_no_progress(ended):
    with Watchdog(0.3, ended.append) as dog:
        dog.follow(0, Result(0.0))
        for step in range(1, 30):
            dog.follow(step, Result(1e9))
            time.sleep(0.05)
    assert ended


def test_compiling_may_take_longer_but_only_the_first_time(ended):
    with Watchdog(0.2, ended.append) as dog:
        with dog.compiling("the step"):
            time.sleep(0.6)
        assert not ended
        with dog.compiling("the step"):
            wait_for(ended)
    assert ended


def test_the_first_step_may_wait_for_other_hosts_that_compile_it(ended):
    with Watchdog(0.2, ended.append) as dog:
        dog.follow(1, Result(0.7))
        time.sleep(0.8)
        assert not ended
        dog.follow(2, Result(1e9))
        assert wait_for(ended)


def test_zero_is_never(ended):
    with Watchdog(0, ended.append):
        time.sleep(0.3)
    assert not ended

"""Stopping: on several hosts after one and the same step, wherever each of them is."""

import os
import random
import signal
import threading
import time

import pytest

from ag_jax.training import stopping
from ag_jax.training.stopping import StopSignal
from tests.distributed.fake_hosts import FakeHosts


def test_one_host_stops_at_once_and_the_handlers_come_back():
    """A second Ctrl-C ends the program."""
    before = signal.getsignal(signal.SIGTERM)
    with StopSignal() as stop:
        assert stop.reached() is None
        stop.request("a reason")
        assert stop.reached() == "a reason"
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reached() == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) == before
    with StopSignal() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.reached() == "SIGINT"
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


@pytest.mark.parametrize("seed", range(3))
def test_all_stop_after_one_step_that_the_one_with_the_signal_had_not_done(monkeypatch, seed):
    """Hosts step in their own time, at most `ahead` steps apart, as collectives keep them."""
    monkeypatch.setattr(stopping, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(stopping, "_numbers", iter([0, 0, 0]))
    chosen, ahead, sent_at = random.Random(seed), 4, 30
    fakes, done = FakeHosts(monkeypatch, 3), [0, 0, 0]

    def task(host):
        stop = StopSignal()

        def watch():
            fakes.become(host)
            stop._watch()

        watcher = threading.Thread(target=watch)
        watcher.start()
        pace = chosen.uniform(0.0005, 0.003)
        for step in range(1, 2000):
            while step > min(done) + ahead:
                time.sleep(0.0005)
            if host == seed % 3 and step == sent_at:
                stop._requested = lambda: "SIGTERM"
            done[host] = step
            time.sleep(pace)
            if notice := stop.reached():
                break
        watcher.join()
        return step, notice

    outcomes = fakes.run(task)
    assert len(set(outcomes)) == 1
    step, notice = outcomes[0]
    assert sent_at <= step < 1999 and notice == f"SIGTERM on host {seed % 3}"

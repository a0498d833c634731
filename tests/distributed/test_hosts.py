"""The hosts of a run: flags to positions, and what hosts tell each other."""

import socket
import threading
import time

import jax
import pytest

from ag_jax.distributed import hosts, storage
from ag_jax.distributed.interruption import AGAIN
from tests.distributed.fake_hosts import FakeHosts
from tests.multihost.launch import free_port


@pytest.fixture
def initialized(monkeypatch):
    """The arguments of JAX's initialization, which is replaced."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: calls.append(arguments))
    monkeypatch.setattr(hosts, "count", lambda: 1)
    return calls


def test_flags_of_several_hosts(initialized):
    for flags in ((None, None, None), (None, "1", None), ("x:1", "1", 0)):
        hosts.start(*flags, 5)
    assert initialized == []
    hosts.start("10.0.0.2:8482", "3", 2, 5)
    hosts.start(None, "auto", None, 5)
    named = ("coordinator_address", "num_processes", "process_id")
    assert [initialized[0][name] for name in named] == ["10.0.0.2:8482", 3, 2]
    assert not set(named) & set(initialized[1]), "JAX detects them"


def test_one_host_exchanges_nothing():
    assert (hosts.count(), hosts.index(), hosts.is_first()) == (1, 0, True)
    assert hosts.exchange("x", 3) == [3] and hosts.from_first("x", lambda: 4) == 4
    hosts.agree("x", {"a": 1})
    hosts.abandon(1, "it returns")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("x:1", None, None), "--hosts=N"),
        ((None, None, 1), "--hosts=N"),
        ((None, "2", 0), "--coordinator=HOST:PORT"),
        (("x:1", "2", None), "--host=I"),
        (("x:1", "2", 2), "--host must be from 0 to 1"),
        (("x:1", "2", -1), "--host must be from 0 to 1"),
        (("x", "2", 1), "--coordinator=HOST:PORT"),
        (("x:65536", "2", 1), "--coordinator=HOST:PORT"),
        (("x:1", "two", 1), "--hosts must be"),
        (("x:1", "0", 0), "--hosts must be"),
        (("x:1", "auto", None), "--hosts=auto"),
        ((None, "auto", None), "cluster|coordinator"),
    ],
)
def test_impossible_flags(flags, named):
    with pytest.raises(ValueError, match=named):
        hosts.start(*flags, 5)


def test_a_port_that_another_program_has():
    with socket.create_server(("", free_port())) as taken, pytest.raises(ValueError, match="another port"):
        hosts.start(f"localhost:{taken.getsockname()[1]}", "2", 0, 5)


def test_devices_that_no_command_on_one_host_can_use(monkeypatch):
    hosts.check_devices()
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(ValueError, match="4 machines.*--hosts=auto"):
        hosts.check_devices()
    monkeypatch.setattr(jax, "process_count", lambda: jax.devices("nonsense"))
    with pytest.raises(ValueError, match="JAX_PLATFORMS"):
        hosts.check_devices()


@pytest.fixture
def three(monkeypatch):
    return FakeHosts(monkeypatch, 3)


def test_exchange_keeps_the_order(three):
    def task(host):
        time.sleep(0.05 * (2 - host))
        return hosts.exchange("a", {"from": host}), hosts.exchange("b", -host)

    assert three.run(task) == [([{"from": 0}, {"from": 1}, {"from": 2}], [0, -1, -2])] * 3


def test_the_first_alone_makes_and_its_error_is_everyones(three):
    made = []

    def task(host):
        value = hosts.from_first("a", lambda: made.append(host) or {"x": [1, None]})
        try:
            return value, hosts.from_first("b", lambda: open("/not/there"))
        except FileNotFoundError as error:
            return value, error
        except ValueError as error:
            return value, str(error)

    values, errors = zip(*three.run(task), strict=True)
    assert values == ({"x": [1, None]},) * 3 and made == [0]
    assert isinstance(errors[0], FileNotFoundError)
    assert all("host 0: " in error and "/not/there" in error for error in errors[1:])


def test_whoever_differs_is_named_on_all(three):
    def task(host):
        hosts.agree("their settings", {"a": (1, 2), "b": None})
        hosts.agree("their settings", {"a": 1, "b": 2 if host < 2 else 3} | ({"c": 0} if host == 1 else {}))

    errors = three.run(task)
    assert len({str(error) for error in errors}) == 1
    lines = str(errors[0]).splitlines()[1:]
    assert [line.strip()[:7] for line in lines] == ["host 1 ", "host 2 "]
    assert "c is 0, on host 0 None" in lines[0] and "b is 3, on host 0 2" in lines[1]


def test_a_failure_is_published_before_the_process_ends(three, monkeypatch):
    ended = []
    monkeypatch.setattr(hosts, "leave_at_once", ended.append)
    monkeypatch.setattr(hosts, "LOOK_EVERY", 0.01)
    three.run(lambda host: hosts.abandon(7, "no room") if host == 2 else None)
    assert three.run(lambda host: hosts.look("failure")) == [{"host": 2, "status": 7, "message": "no room"}] * 3
    assert ended == [7]


@pytest.fixture
def lookouts(monkeypatch):
    monkeypatch.setattr(hosts, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(hosts, "LOST_AFTER", 0.4)
    monkeypatch.setattr(hosts.atexit, "register", lambda finish: None)
    return [hosts._Lookout() for _ in range(3)]


def test_a_host_without_a_sign_of_life_is_lost(three, lookouts, monkeypatch):
    ended = []

    def abandon(status, message):
        ended.append((status, message))
        raise jax.errors.JaxRuntimeError("the process has ended")

    monkeypatch.setattr(hosts, "abandon", abandon)

    def task(host):
        if host == 2:
            return three.store.key_value_set("ag_jax/alive/2", "17", allow_overwrite=True)
        return lookouts[host].run()

    began = time.monotonic()
    three.run(task)
    assert time.monotonic() - began > 0.4
    assert [status for status, _ in ended] == [AGAIN] * 2
    assert all("host 2 is gone" in message for _, message in ended)


@pytest.mark.parametrize("fails", [False, True])
def test_hosts_that_have_finished_wait_for_the_others_and_for_their_failures(three, lookouts, monkeypatch, fails):
    """Host 0 works on for longer than a host may be silent."""
    ended = []
    monkeypatch.setattr(hosts, "leave_at_once", ended.append)

    def task(host):
        if host:
            lookouts[host]._done.set()
        else:
            threading.Timer(0.6, lookouts[0]._done.set).start()
            if fails:
                hosts.publish("failure", {"host": 0, "status": 1, "message": "no space"})
        began = time.monotonic()
        lookouts[host].run()
        return time.monotonic() - began

    assert min(three.run(task)) > 0.5
    assert set(ended) == ({1} if fails else set())


def test_a_store_that_does_not_answer_is_so_on_all_hosts(three):
    def task(host):
        def fails():
            raise storage.StoreUnavailableError("gs://bucket/file cannot be read")

        with pytest.raises(storage.StoreUnavailableError, match="gs://bucket/file"):
            hosts.from_first("a", fails)
        return True

    assert three.run(task) == [True] * 3

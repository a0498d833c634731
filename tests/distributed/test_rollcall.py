"""The roll call: who is there, who is missing, and what a stray visitor does."""

import concurrent.futures
import contextlib
import dataclasses
import json
import socket
import time

import pytest

from ag_jax.distributed.rollcall import HostPosition, call_the_roll, is_open
from tests.multihost.launch import free_port


def roll(places: list[HostPosition], timeout: float = 20.0, delay: float = 0.0):
    """What `call_the_roll` gives each host, an error or its connections, and what they said."""
    said = []

    def one(place):
        time.sleep(delay if place.host == 0 else 0.0)
        try:
            return call_the_roll(place, timeout, lambda message: said.append(f"{place.host}: {message}"))
        except ValueError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, places)), said


@pytest.fixture
def port():
    return free_port()


def place(port, hosts, host):
    return HostPosition(f"localhost:{port}", hosts, host)


@contextlib.contextmanager
def connections(results):
    """The connections of all hosts, closed in the end."""
    try:
        yield results
    finally:
        for result in results:
            for connection in result.values():
                connection.close()


@pytest.mark.parametrize("delay", [0.0, 1.2], ids=["together", "host 0 comes last"])
def test_all_are_there(port, delay):
    results, said = roll([place(port, 3, host) for host in (2, 0, 1)], delay=delay)
    with connections(results) as (second, first, third):
        assert sorted(first) == [1, 2] and list(second) == list(third) == [0]
        assert all(is_open(connection) for held in results for connection in held.values())
        assert said[-1] == "0: 3 of 3 hosts joined"
        second[0].close()  # host 2 dies
        time.sleep(0.1)
        assert is_open(first[1]) and not is_open(first[2])


def test_another_listener_can_take_the_port_over_while_the_connections_stay(port):
    results, _ = roll([place(port, 2, 0), place(port, 2, 1)])
    with connections(results) as (first, second), socket.create_server(("", port)):
        assert is_open(first[1]) and is_open(second[0])


def test_who_is_missing_is_named_to_all_that_came(port):
    results, said = roll([place(port, 4, 0), place(port, 4, 2)], timeout=1.5)
    for error in results:
        assert "2 of 4 hosts joined within" in str(error) and "missing: host 1, 3" in str(error)
        assert f"localhost:{port}" in str(error) and "Did you start the command on every host" in str(error)
    assert f"0: 2 of 4 hosts joined; waiting at localhost:{port} for host 1, 3" in said


def test_host_0_is_missing(port):
    ((error,), _) = roll([place(port, 2, 1)], timeout=1.0)
    assert "missing: host 0" in str(error) and "refused" in str(error) and "JAX_COORDINATOR_PORT" in str(error)


def test_two_hosts_with_one_number(port):
    results, _ = roll([place(port, 3, 0), place(port, 3, 1), place(port, 3, 1)], timeout=2.0)
    assert sum("--host=1 is taken by" in str(error) for error in results) == 1
    assert "missing: host 2" in str(results[0])


def test_another_number_of_hosts(port):
    results, _ = roll([place(port, 2, 0), place(port, 3, 1)], timeout=1.5)
    assert "--hosts is 3 here and 2 on host 0" in str(results[1])


def test_a_taken_port(port):
    with (
        socket.create_server(("", port)),
        pytest.raises(ValueError, match=f"cannot listen on port {port}.*another program"),
    ):
        call_the_roll(place(port, 2, 0), 1.0, print)


def visit(port, content: bytes):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("localhost", port)) as connection:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1000)
        except ConnectionRefusedError:  # not there yet
            time.sleep(0.05)
        except OSError:  # shown the door
            return
        else:
            return


@pytest.mark.parametrize("content", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"[1]\n", b"x" * 3000, b'{"host": 1}\n'])
def test_strays_are_ignored(port, content):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        leader = pool.submit(call_the_roll, place(port, 2, 0), 20.0, lambda message: None)
        with contextlib.suppress(ConnectionResetError):
            visit(port, content)
        with connections([call_the_roll(place(port, 2, 1), 20.0, print), leader.result(20)]) as (second, first):
            assert list(first) == [1] and list(second) == [0]


def test_another_program_at_the_coordinators_port(port):
    with socket.create_server(("", port)) as listener, concurrent.futures.ThreadPoolExecutor(1) as pool:

        def answer():
            with contextlib.suppress(OSError):  # when the listener is closed
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"\x00\x00\x12\x04HTTP2\n")

        pool.submit(answer)
        listener.settimeout(3)
        with pytest.raises(ValueError, match="missing: host 0"):
            call_the_roll(place(port, 2, 1), 1.0, lambda message: None)


def test_a_host_that_came_and_went_is_missing_again(port):
    hello = {"ag_jax": 1, "host": 1, "hosts": 2, "name": "brief"}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        leader = pool.submit(call_the_roll, place(port, 3, 0), 2.0, lambda message: None)
        visit(port, (json.dumps(hello | {"hosts": 3}) + "\n").encode())
        with pytest.raises(ValueError, match="1 of 3 hosts joined.*missing: host 1, 2"):
            leader.result(20)


@pytest.mark.parametrize("coordinator", ["", "10.0.0.2", "10.0.0.2:", "10.0.0.2:port", ":8482", "host:70000"])
def test_impossible_coordinators(coordinator):
    with pytest.raises(ValueError, match="--coordinator must be HOST:PORT"):
        _ = HostPosition(coordinator, 2, 0).address


def test_addresses():
    assert HostPosition("10.0.0.2:8482", 2, 0).address == ("10.0.0.2", 8482)
    assert dataclasses.replace(HostPosition("x:1", 2, 0), coordinator="[fd00::1]:8482").address == ("fd00::1", 8482)

"""The roll call: who is there, who is missing, and what other programs at the port do."""

import concurrent.futures
import contextlib
import json
import socket
import time

import pytest

from ag_jax.distributed.rollcall import HostPosition, call_the_roll, is_open
from tests.multihost.launch import free_port


@pytest.fixture
def place():
    """A function (hosts, host) -> position, at a free port."""
    port = free_port()
    return lambda hosts, host: HostPosition(f"localhost:{port}", hosts, host)


def roll(places: list[HostPosition], timeout: float = 20.0, delay: float = 0.0):
    """What `call_the_roll` gives each host, an error or its connections, and what they said."""
    said = []

    def one(place):
        time.sleep(delay if place.host == 0 else 0.0)
        try:
            return call_the_roll(place, timeout, lambda message: said.append(f"{place.host}: {message}"))
        except ValueError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, places)), said


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
def test_all_are_there(place, delay):
    results, said = roll([place(3, host) for host in (2, 0, 1)], delay=delay)
    with connections(results) as (second, first, third):
        assert sorted(first) == [1, 2] and list(second) == list(third) == [0]
        assert all(is_open(connection) for held in results for connection in held.values())
        assert said[-1] == "0: 3 of 3 hosts joined"
        with socket.create_server(("", place(3, 0).address[1])):  # JAX's own coordinator takes the port over
            assert is_open(first[1]) and is_open(second[0])
        second[0].close()  # host 2 dies
        time.sleep(0.1)
        assert is_open(first[1]) and not is_open(first[2])


def test_who_is_missing_is_named_to_all_that_came(place):
    results, said = roll([place(4, 0), place(4, 2)], timeout=1.5)
    for error in results:
        assert "2 of 4 hosts" in error and "missing: host 1, 3" in error and place(4, 0).coordinator in error
    assert any("2 of 4 hosts joined" in line and "host 1, 3" in line for line in said)


def test_host_0_is_missing(place):
    ((error,), _) = roll([place(2, 1)], timeout=1.0)
    assert "missing: host 0" in error and "refused" in error


def test_two_hosts_with_one_number(place):
    results, _ = roll([place(3, 0), place(3, 1), place(3, 1)], timeout=2.0)
    assert sum("--host=1" in error for error in results) == 1 and "missing: host 2" in results[0]


def test_another_number_of_hosts(place):
    results, _ = roll([place(2, 0), place(3, 1)], timeout=1.5)
    assert "--hosts is 3 here and 2 on host 0" in results[1]


def test_a_taken_port(place):
    port = place(2, 0).address[1]
    with socket.create_server(("", port)), pytest.raises(ValueError, match=f"port {port}.*another program"):
        call_the_roll(place(2, 0), 1.0, print)


def visit(place, content: bytes):
    """Connect as another program does, and send something."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(place(2, 0).address) as connection:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1000)
        except ConnectionRefusedError:  # not there yet
            time.sleep(0.05)
        except OSError:  # refused
            return
        else:
            return


STRAYS = [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xfe\n", b"[1]\n", b"x" * 3000, b'{"host": 1}\n']


def test_other_programs_that_connect_are_ignored(place):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        leader = pool.submit(call_the_roll, place(2, 0), 20.0, lambda message: None)
        for content in STRAYS:
            visit(place, content)
        with connections([call_the_roll(place(2, 1), 20.0, print), leader.result(20)]) as (second, first):
            assert list(first) == [1] and list(second) == [0]


def test_another_program_at_the_coordinators_port(place):
    with (
        socket.create_server(("", place(2, 0).address[1])) as listener,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):

        def answer():
            with contextlib.suppress(OSError):  # when the listener is closed
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(b"\x00\x00\x12\x04HTTP2\n")

        pool.submit(answer)
        listener.settimeout(3)
        with pytest.raises(ValueError, match="missing: host 0"):
            call_the_roll(place(2, 1), 1.0, lambda message: None)


def test_a_host_that_came_and_went_is_missing_again(place):
    hello = {"ag_jax": 1, "host": 1, "hosts": 3, "name": "brief"}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        leader = pool.submit(call_the_roll, place(3, 0), 2.0, lambda message: None)
        visit(place, (json.dumps(hello) + "\n").encode())
        with pytest.raises(ValueError, match=r"1 of 3 hosts.*missing: host 1, 2"):
            leader.result(20)


def test_addresses():
    assert HostPosition("10.0.0.2:8482", 2, 0).address == ("10.0.0.2", 8482)
    assert HostPosition("[fd00::1]:65535", 2, 0).address == ("fd00::1", 65535)
    for coordinator in ("", "10.0.0.2", "10.0.0.2:", "10.0.0.2:port", ":8482", "host:65536", "host:0"):
        with pytest.raises(ValueError, match="--coordinator must be"):
            _ = HostPosition(coordinator, 2, 0).address

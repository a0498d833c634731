"""Roll call before JAX starts: every host reports to host 0, so that all hosts can print which are missing.

JAX itself waits without a message, and ends the process with a stack trace after its timeout. So host 0 first listens
on the port that JAX's coordinator uses afterwards (one open port is enough), the others connect to it, and JAX starts
when all hosts have joined. Each message is one line of JSON:

    host i -> host 0   {"ag_jax": 1, "host": i, "hosts": N, "name": machine}
    host 0 -> host i   {"joined": k, "missing": [...]}, and at last {"go": true} or {"refused": why}

The connections stay open, and nothing more is sent on them. When a process dies, its operating system closes its end,
which the others notice at once; JAX would wait for heartbeats, and a step would wait forever.
"""

import contextlib
import dataclasses
import errno
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

PROTOCOL = 1
SAY_EVERY = 10.0  # seconds between two lines of progress
TICK = 0.5  # seconds between two checks of the connections
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, times without an answer
LONGEST = 1000  # bytes of a message; a sender of more is not a host of this run
ADVICE = (
    "Did you start the command on every host, with the same --hosts (on a TPU pod slice: on every worker)? "
    "Can the others reach {address}? "
    "(A firewall must let TCP port {port} through; Google Cloud's automatic rules may not open JAX's 8482. "
    "On a TPU pod slice or under SLURM the variable JAX_COORDINATOR_PORT chooses another port, otherwise --coordinator "
    "does.) --join_timeout sets how long to wait"
)


@dataclasses.dataclass(frozen=True)
class HostPosition:
    """This host's number among the hosts of a run, with the address of the coordinator.

    coordinator: address HOST:PORT of host 0.
    hosts: number of hosts.
    host: number of this host, counted from 0.
    local_devices: ids of this machine's devices that the process uses; None for all.
    """

    coordinator: str
    hosts: int
    host: int
    local_devices: tuple[int, ...] | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Name and port of the coordinator, as (name, port).

        Raises ValueError if `coordinator` is not HOST:PORT.
        """
        name, _, port = self.coordinator.rpartition(":")
        if not name or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(
                f"--coordinator must be HOST:PORT of host 0, such as 10.0.0.2:8482, got {self.coordinator!r}"
            )
        return name.strip("[]"), int(port)


def call_the_roll(position: HostPosition, timeout: float, say: Callable[[str], None]) -> dict[int, socket.socket]:
    """Wait until all hosts have joined; return the open connections as {number of the other host: socket}.

    Host 0 has a connection to every other host, each other host only one to host 0.

    Raises ValueError after `timeout` seconds, with the missing hosts and advice, or if host 0 refuses this host.

    say: prints a line of progress.
    """
    deadline = time.monotonic() + timeout
    connections = (_lead if position.host == 0 else _report)(position, deadline, timeout, say)
    for connection in connections.values():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):  # Linux; other systems use their default times
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connections


def _listen(position: HostPosition) -> socket.socket:
    name, port = position.address
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        why = "another program uses it (a run that has not ended yet?)" if error.errno == errno.EADDRINUSE else error
        raise ValueError(
            f"host 0 cannot listen on port {port} of --coordinator={name}:{port}: {why}; choose another port"
        ) from error


def _lead(
    position: HostPosition, deadline: float, timeout: float, say: Callable[[str], None]
) -> dict[int, socket.socket]:
    """On host 0, accept connections until all hosts have joined; return {host number: connection}."""
    present: dict[int, socket.socket] = {}
    names = {0: socket.gethostname()}
    last_status, last_time = None, 0.0
    with _listen(position) as listener, contextlib.ExitStack() as opened:
        listener.settimeout(TICK)
        while True:
            # A host that ended while it waited may be started again, and then connects anew.
            for host in [host for host, connection in present.items() if not is_open(connection)]:
                present.pop(host).close()
            missing = [host for host in range(1, position.hosts) if host not in present]
            status = {"joined": position.hosts - len(missing), "missing": missing}
            if status != last_status or time.monotonic() - last_time > SAY_EVERY:
                last_status, last_time = status, time.monotonic()
                say(_progress(position, status))
                _tell(present, status)
            if not missing:
                _tell(present, {"go": True})
                opened.pop_all()  # keeps the connections open; only the listener is closed, to free the port for JAX
                return present
            if time.monotonic() > deadline:
                problem = _missing_and_advice(position, missing, timeout)
                _tell(present, {"refused": problem})
                raise ValueError(problem)
            with contextlib.suppress(TimeoutError):
                connection = opened.enter_context(listener.accept()[0])
                _greet(position, connection, present, names)


def _greet(
    position: HostPosition, connection: socket.socket, present: dict[int, socket.socket], names: dict[int, str]
) -> None:
    """Read the first message on a new connection; add its host to `present`, or tell it why it is refused.

    A connection of another program is closed.

    names: the machine of each host that has joined, for messages.
    """
    connection.settimeout(2.0)  # one connection is greeted at a time, so a silent one must not hold up the others
    try:
        hello = json.loads(_line(connection))
        host, hosts, name = int(hello["host"]), int(hello["hosts"]), str(hello["name"])
        is_same_version = hello["ag_jax"] == PROTOCOL
    except (OSError, ValueError, KeyError, TypeError):
        # Any program can connect to an open port, so this is no error of the run.
        connection.close()
        return
    reason = None
    if not is_same_version:
        reason = "this host runs another version of ag_jax than host 0: install the same everywhere"
    elif hosts != position.hosts:
        reason = f"--hosts is {hosts} here and {position.hosts} on host 0: give the same number everywhere"
    elif host in present or not 0 < host < position.hosts:
        reason = (
            f"--host={host} is taken by {names.get(host, 'nobody')}: give each host its own, "
            f"from 0 to {position.hosts - 1}"
        )
    if reason:
        _tell({host: connection}, {"refused": reason})
        connection.close()
        return
    present[host], names[host] = connection, name


def _report(
    position: HostPosition, deadline: float, timeout: float, say: Callable[[str], None]
) -> dict[int, socket.socket]:
    """On a host other than 0, report to host 0 until all hosts have joined; return {0: the connection to host 0}."""
    hello = {"ag_jax": PROTOCOL, "host": position.host, "hosts": position.hosts, "name": socket.gethostname()}
    last_time, status, why = time.monotonic(), None, "no answer"
    while time.monotonic() < deadline:
        try:
            with contextlib.ExitStack() as opened:
                patience = min(10.0, max(deadline - time.monotonic(), 0.1))
                connection = opened.enter_context(socket.create_connection(position.address, timeout=patience))
                connection.sendall((json.dumps(hello) + "\n").encode())
                # Longer than host 0's own deadline, so that its message about missing hosts still arrives.
                connection.settimeout(max(deadline + 5.0 - time.monotonic(), 0.1))
                for answer in _answers(connection):
                    if "go" in answer:
                        opened.pop_all()
                        return {0: connection}
                    if "refused" in answer:
                        raise ValueError(answer["refused"])
                    status = answer
            why = "host 0 closed the connection, or is no host of ag_jax that waits for others"
        except OSError as error:
            why = str(error)
        if time.monotonic() - last_time > SAY_EVERY:
            last_time = time.monotonic()
            say(f"host {position.host} of {position.hosts} cannot reach host 0 at {position.coordinator} yet ({why})")
        time.sleep(min(TICK, max(deadline - time.monotonic(), 0.0)))
    missing = [0] if status is None else status["missing"]
    raise ValueError(
        f"host {position.host} cannot start before all hosts have joined: "
        f"{_missing_and_advice(position, missing, timeout)}. The last attempt to reach host 0: {why}"
    )


def _progress(position: HostPosition, status: dict[str, Any]) -> str:
    joined = f"{status['joined']} of {position.hosts} hosts joined"
    if not status["missing"]:
        return joined
    return f"{joined}; waiting at {position.coordinator} for host {_host_list(status['missing'])}"


def _missing_and_advice(position: HostPosition, missing: list[int], timeout: float) -> str:
    name, port = position.address
    return (
        f"{position.hosts - len(missing)} of {position.hosts} hosts joined within {timeout:.0f} seconds; missing: host "
        f"{_host_list(missing)}. " + ADVICE.format(address=f"{name}:{port}", port=port)
    )


def _host_list(missing: list[int]) -> str:
    return ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")


def _line(connection: socket.socket) -> str:
    received = b""
    while not received.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(received) > LONGEST:
            raise ValueError(f"expected a line of at most {LONGEST} bytes, got {len(received)} without a line end")
        received += byte
    return received.decode()


def _answers(connection: socket.socket) -> Iterator[dict[str, Any]]:
    with connection.makefile("rb") as lines, contextlib.suppress(ValueError):  # not JSON: another program has this port
        for line in lines:
            yield dict(json.loads(line))


def _tell(present: dict[int, socket.socket], message: dict[str, Any]) -> None:
    for connection in present.values():
        with contextlib.suppress(OSError):  # the host is gone: the next check of the connections notices
            connection.sendall((json.dumps(message) + "\n").encode())


def is_open(connection: socket.socket) -> bool:
    """Return whether the other host's end of a connection is still open, without waiting or reading.

    The other host must have nothing left to send: unread data would hide a closed end.
    """
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(2.0)

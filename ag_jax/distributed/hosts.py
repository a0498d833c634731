"""Hosts of a run: discovery, start of JAX, exchange of small values, and common end after a failure.

A host is one process of the program; each feeds its own devices, and all run the same steps. They exchange small values
through the key-value store of JAX's coordination service, which host 0 serves. On a single host `count()` is 1, every
function returns at once, and nothing is started.

Functions are collective, so every host must call them in the same order, unless their docstring says "Not collective".

The cluster detection of `jax.distributed.initialize` and the store have no public names in JAX; only this file uses the
private ones.
"""

import atexit
import contextlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax._src import cloud_tpu_init, clusters, distributed

from ag_jax.distributed.interruption import AGAIN
from ag_jax.distributed.rollcall import HostPosition, call_the_roll, is_open

HEARTBEAT_TIMEOUT = 60  # seconds without heartbeat after which JAX considers a host dead and ends the others
JAX_START_TIMEOUT = 300  # seconds for JAX itself to connect, once all hosts have joined
SHUTDOWN_TIMEOUT = 1800  # seconds that a finished host waits for host 0, which draws figures
LOOK_EVERY = 1.0  # seconds between two checks for a failed host
REMIND_EVERY = 60  # seconds between two lines of a host that waits for a value of another host
PREFIX = "ag_jax"
_numbers = itertools.count()  # numbers of collective calls: the same on all hosts, which make them in the same order


def find_position(coordinator: str | None, hosts: str | None, host: int | None, timeout: float) -> HostPosition | None:
    """Return the coordinator's address, the number of hosts and this host's number, or None for a run on one host.

    They come from the flags of the command, or from JAX's detection of the cluster.

    Raises ValueError for flags that contradict each other, or if nothing is detected.

    coordinator: address HOST:PORT of host 0.
    hosts: the number of hosts, `auto` for JAX's own detection (Cloud TPU pod slices, SLURM, Open MPI, Kubernetes), or
        None, which means `auto` on a Cloud TPU pod slice of several workers and 1 elsewhere.
    host: number of this host.
    timeout: seconds that the detection may take.
    """
    if hosts is None:
        if coordinator is not None or host is not None:
            raise ValueError("--coordinator and --host need --hosts=N, the number of hosts")
        position = _detected(timeout) if _on_cloud_tpu() else None
        return position if position and position.hosts > 1 else None
    if hosts == "auto":
        if coordinator is not None or host is not None:
            raise ValueError(
                "--hosts=auto finds the coordinator and this host's number itself: leave the other flags out"
            )
        position = _detected(timeout)
        if position is None:
            raise ValueError(
                "--hosts=auto found no Cloud TPU pod slice, SLURM, Open MPI or Kubernetes job around this process: "
                "give --coordinator=HOST:PORT --hosts=N --host=I instead"
            )
        return position if position.hosts > 1 else None
    if not hosts.isdigit() or int(hosts) < 1:
        raise ValueError(f"--hosts must be a number from 1 on, or auto, got {hosts!r}")
    number = int(hosts)
    if number > 1 and coordinator is None:
        raise ValueError(
            f"--hosts={number} needs --coordinator=HOST:PORT, the address of host 0, such as 10.0.0.2:8482"
        )
    if number > 1 and host is None:
        raise ValueError(f"--hosts={number} needs --host=I, the number of this host, from 0 to {number - 1}")
    if host is not None and not 0 <= host < number:
        raise ValueError(f"--host must be from 0 to {number - 1}, as --hosts={number}; got {host}")
    if number == 1:
        return None
    position = HostPosition(coordinator, number, host)
    return position if position.address else None  # reading `address` raises ValueError if it is malformed


def _on_cloud_tpu() -> bool:
    platforms = jax.config.jax_platforms or "tpu"  # type: ignore[attr-defined]
    return cloud_tpu_init.running_in_cloud_tpu_vm and "tpu" in platforms


def _detected(timeout: float) -> HostPosition | None:
    try:
        coordinator, hosts, host, devices = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(timeout)
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"cannot find out which hosts there are ({error}): "
            "give --coordinator=HOST:PORT --hosts=N --host=I, or --hosts=1"
        ) from error
    if coordinator is None or hosts is None or host is None:
        return None
    return HostPosition(coordinator, hosts, host, None if devices is None else tuple(devices))


def join(position: HostPosition, timeout: float) -> None:
    """Connect JAX with the other hosts, and start a thread that ends this process if another host fails.

    Waits for the other hosts, at most `timeout` seconds. Must be called before anything uses a device. Raises
    ValueError with advice if a host does not join in time.
    """
    connections = call_the_roll(position, timeout, _say)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from `stopping`
    jax.distributed.initialize(
        coordinator_address=position.coordinator,
        num_processes=position.hosts,
        process_id=position.host,
        local_device_ids=position.local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=JAX_START_TIMEOUT,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
    )
    _Lookout(connections).start()


def count() -> int:
    """Return the number of hosts of the run.

    Not collective.
    """
    return distributed.global_state.num_processes if distributed.global_state.client else 1


def index() -> int:
    """Return the number of this host, counted from 0.

    Not collective.
    """
    return distributed.global_state.process_id if distributed.global_state.client else 0


def is_first() -> bool:
    """Return whether this is host 0, which writes files and prints.

    Not collective.
    """
    return index() == 0


def tell(message: str) -> None:
    """Print a message to stderr, on host 0 only.

    Not collective.
    """
    if is_first():
        print(message, file=sys.stderr, flush=True)


def publish(key: str, value: Any) -> None:
    """Store a JSON value under a key, where all hosts can read it; do nothing if the key already has a value.

    Not collective.
    """
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # ALREADY_EXISTS
        distributed.global_state.client.key_value_set(f"{PREFIX}/{key}", json.dumps(value))


def look(key: str) -> Any:
    """Return the JSON value published under a key, without waiting; None if there is none.

    Not collective.
    """
    try:
        return json.loads(distributed.global_state.client.key_value_try_get(f"{PREFIX}/{key}"))
    except jax.errors.JaxRuntimeError:  # NOT_FOUND
        return None


def wait_for(key: str, who: int, what: str) -> Any:
    """Wait, without a time limit, for the JSON value that host `who` publishes under a key, and return it.

    Not collective. The wait may be long, because hosts prepare their data independently. If the other host dies, this
    one ends, too.

    what: what the value is for, named in the lines printed while waiting.
    """
    while True:
        try:
            return json.loads(
                distributed.global_state.client.blocking_key_value_get(f"{PREFIX}/{key}", REMIND_EVERY * 1000)
            )
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            _say(f"host {index()} waits for host {who} ({what})")


def exchange(what: str, value: Any) -> list[Any]:
    """Share this host's JSON value with all hosts; return the values of all hosts, in the order of their numbers.

    what: what is exchanged, named in the lines printed while waiting.
    """
    if count() == 1:
        return [value]
    number = next(_numbers)
    publish(f"{number}/{index()}", value)
    return [value if host == index() else wait_for(f"{number}/{host}", host, what) for host in range(count())]


def from_first(what: str, make: Callable[[], Any]) -> Any:
    """Call `make()` on host 0 only, and return its result, a JSON value, on every host.

    A ValueError or OSError of `make` is raised on host 0, and as a ValueError on the other hosts.

    what: what is made, named in the lines printed while waiting.
    """
    if count() == 1:
        return make()
    number = next(_numbers)
    if not is_first():
        answer = wait_for(f"{number}/0", 0, what)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["value"]
    try:
        value = make()
    except (ValueError, OSError) as error:
        publish(f"{number}/0", {"error": f"host 0: {error}"})
        raise
    publish(f"{number}/0", {"value": value})
    return value


def agree(what: str, facts: dict[str, Any]) -> None:
    """Raise ValueError on every host if `facts` differ between hosts, naming the hosts and the facts that differ."""
    # A round trip through JSON, which turns tuples into lists, because the values of other hosts have had one.
    everywhere = exchange(what, {"name": socket.gethostname(), "facts": json.loads(json.dumps(facts))})
    expected = everywhere[0]["facts"]
    different = [
        f"  host {host} ({theirs['name']}): {key} is {theirs['facts'].get(key)!r}, on host 0 {expected.get(key)!r}"
        for host, theirs in enumerate(everywhere)
        for key in sorted(expected | theirs["facts"])
        if theirs["facts"].get(key) != expected.get(key)
    ]
    if different:
        raise ValueError(
            f"the hosts differ in {what}, which must be the same on all of them:\n"
            + "\n".join(different[:20])
            + ("" if len(different) <= 20 else f"\n  and {len(different) - 20} more")
        )


def abandon(status: int, message: str) -> None:
    """End the processes of this and of all other hosts with an exit status, after a failure.

    The other hosts, which would wait for this one forever, read a note with the status and end by themselves. This host
    does not wait for them, as a process that ends normally does. In a run on one host it only returns. Not collective:
    the host that failed calls it alone.
    """
    if count() == 1:
        return
    publish("failure", {"host": index(), "status": status, "message": message})
    if is_first():  # host 0 serves the store: the others must find the note before it ends
        time.sleep(3 * LOOK_EVERY)
    leave_at_once(status)


def leave_at_once(status: int) -> None:
    """End the process immediately, without waiting for other hosts or threads.

    Not collective.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Lookout(threading.Thread):
    """Thread that ends this process when another host publishes a failure, or disconnects without notice.

    At a normal end, the thread stops before this host disconnects from the others.
    """

    def __init__(self, connections: dict[int, socket.socket]):
        super().__init__(name="lookout", daemon=True)
        self._connections = connections
        self._done = threading.Event()
        atexit.register(self._finish)  # runs before JAX's own exit handler, which disconnects from the store

    def _finish(self) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        """Check for failed hosts every `LOOK_EVERY` seconds until this host finishes."""
        while not self._done.wait(LOOK_EVERY):
            lost_hosts = [host for host, connection in self._connections.items() if not is_open(connection)]
            note = look("failure")  # after the connections, because a host that leaves a note writes it before it ends
            if note and note["host"] != index():
                _say(f"host {index()} ends because host {note['host']} failed: {note['message']}")
                leave_at_once(note["status"])
            if lost_hosts and not note:
                message = (
                    f"host {lost_hosts[0]} is gone: its process was killed, crashed or lost its network. "
                    "Start the command on all hosts again, it goes on from the last checkpoint"
                )
                _say(f"host {index()} ends, {message}")
                abandon(AGAIN, message)


def _say(message: str) -> None:
    print(f"hosts: {message}", file=sys.stderr, flush=True)

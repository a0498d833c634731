"""The hosts of a run: how they find each other, what they tell each other, and how they end together.

A host is one process of the program; each feeds its own devices, and all run the same steps. What they say to each other, a
few words now and then, goes through the key-value store of JAX's coordination service, which host 0 serves. A run on one host
needs none of this: then `count()` is 1, every function returns at once, and nothing is started.

All functions without a remark must be called by every host, in the same order.

What `jax.distributed.initialize` finds by itself, and the store, have no public name in JAX: this file alone uses the others.
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

from ag_jax.distributed.rollcall import Place, call_the_roll, is_open

AGAIN = 75  # exit status (EX_TEMPFAIL) of a run that failed for no fault of its own: start it again
HEARTBEAT_TIMEOUT = 60  # seconds of silence after which JAX takes a host for dead and ends the others
JAX_START_TIMEOUT = 300  # seconds for JAX itself to connect, once everyone is there
SHUTDOWN_TIMEOUT = 1800  # seconds that a host which is done waits for host 0, which draws figures
LOOK_EVERY = 1.0  # seconds between two looks for a host that failed
REMIND_EVERY = 60  # seconds between two lines of a host that waits for another one's words
PREFIX = "ag_jax"
_numbers = itertools.count()  # of what the hosts tell each other: the same on all of them


def find_place(coordinator: str | None, hosts: str | None, host: int | None, timeout: float) -> Place | None:
    """This host's place, from the flags of the command; None for a run on one host.

    hosts: a number, `auto` for what JAX finds itself (Cloud TPU pod slices, SLURM, Open MPI, Kubernetes), or None, which is
    `auto` on a Cloud TPU pod slice of several workers and 1 elsewhere. Raises ValueError for flags that cannot be.
    """
    if hosts is None:
        if coordinator is not None or host is not None:
            raise ValueError("--coordinator and --host need --hosts=N, the number of hosts")
        place = _detected(timeout) if _on_cloud_tpu() else None
        return place if place and place.hosts > 1 else None
    if hosts == "auto":
        if coordinator is not None or host is not None:
            raise ValueError(
                "--hosts=auto finds the coordinator and this host's number itself: leave the other flags out"
            )
        place = _detected(timeout)
        if place is None:
            raise ValueError(
                "--hosts=auto found no Cloud TPU pod slice, SLURM, Open MPI or Kubernetes job around this process: give "
                "--coordinator=HOST:PORT --hosts=N --host=I instead"
            )
        return place if place.hosts > 1 else None
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
    place = Place(coordinator, number, host)
    return place if place.address else None


def _on_cloud_tpu() -> bool:
    platforms = jax.config.jax_platforms or "tpu"
    return cloud_tpu_init.running_in_cloud_tpu_vm and "tpu" in platforms


def _detected(timeout: float) -> Place | None:
    try:
        found = clusters.ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, int(timeout))
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"cannot find out which hosts there are ({error}): give --coordinator=HOST:PORT --hosts=N --host=I, or --hosts=1"
        ) from error
    coordinator, hosts, host, devices = found
    if coordinator is None or hosts is None or host is None:
        return None
    return Place(coordinator, hosts, host, None if devices is None else tuple(devices))


def join(place: Place, timeout: float) -> None:
    """Wait for the other hosts, at most `timeout` seconds, and start JAX with them; before anything uses a device.

    Raises ValueError with advice if some do not come.
    """
    connections = call_the_roll(place, timeout, _say)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from `stopping`
    jax.distributed.initialize(
        coordinator_address=place.coordinator,
        num_processes=place.hosts,
        process_id=place.host,
        local_device_ids=place.local_devices,
        cluster_detection_method="deactivate",
        initialization_timeout=JAX_START_TIMEOUT,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
    )
    _Lookout(connections).start()


def count() -> int:
    """How many hosts there are. Any host may ask alone."""
    return distributed.global_state.num_processes if distributed.global_state.client else 1


def index() -> int:
    """The number of this host, from 0 on. Any host may ask alone."""
    return distributed.global_state.process_id if distributed.global_state.client else 0


def is_first() -> bool:
    """Whether this host is the one that writes and talks. Any host may ask alone."""
    return index() == 0


def publish(key: str, value: Any) -> None:
    """Write something that JSON can hold into the store, for `look` to find; who comes second is ignored. Any host alone."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # ALREADY_EXISTS
        distributed.global_state.client.key_value_set(f"{PREFIX}/{key}", json.dumps(value))


def look(key: str) -> Any:
    """What is published under a key, None if nothing is. Any host may look alone."""
    try:
        return json.loads(distributed.global_state.client.key_value_try_get(f"{PREFIX}/{key}"))
    except jax.errors.JaxRuntimeError:  # NOT_FOUND
        return None


def wait_for(key: str, who: int, what: str) -> Any:
    """What host `who` publishes; it may take long, as hosts prepare their data alone. One that dies ends this one too."""
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
    """The values (that JSON can hold) of all hosts, in their order."""
    if count() == 1:
        return [value]
    number = next(_numbers)
    publish(f"{number}/{index()}", value)
    return [value if host == index() else wait_for(f"{number}/{host}", host, what) for host in range(count())]


def from_first(what: str, make: Callable[[], Any]) -> Any:
    """What `make()` returns on host 0, which alone calls it; a ValueError or OSError there becomes a ValueError elsewhere."""
    if count() == 1:
        return make()
    number = next(_numbers)
    if not is_first():
        made = wait_for(f"{number}/0", 0, what)
        if "error" in made:
            raise ValueError(made["error"])
        return made["value"]
    try:
        value = make()
    except (ValueError, OSError) as error:
        publish(f"{number}/0", {"error": f"host 0: {error}"})
        raise
    publish(f"{number}/0", {"value": value})
    return value


def agree(what: str, facts: dict[str, Any]) -> None:
    """Raise ValueError, on every host, if `facts` are not the same on all; it names the hosts and the facts that differ."""
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
    """End this host with an exit status, and the others with it, who would wait for ever. Any host alone; returns on one host.

    The usual end of a process waits for the other hosts; this one does not.
    """
    if count() == 1:
        return
    publish("failure", {"host": index(), "status": status, "message": message})
    if is_first():  # it serves the store: the others must find the note before it goes
        time.sleep(3 * LOOK_EVERY)
    leave_at_once(status)


def leave_at_once(status: int) -> None:
    """End the process without waiting for anything or anyone. Any host alone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Lookout(threading.Thread):
    """Looks for the note of a host that failed, or for one that is gone, and then ends this process.

    In the orderly end all hosts stop looking before the first of them goes.
    """

    def __init__(self, connections: dict[int, socket.socket]):
        super().__init__(name="lookout", daemon=True)
        self._connections = connections
        self._done = threading.Event()
        atexit.register(self._finish)  # runs before JAX's own end, which takes the store away

    def _finish(self) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        """Look until this host is done."""
        while not self._done.wait(LOOK_EVERY):
            gone = [host for host, connection in self._connections.items() if not is_open(connection)]
            note = look("failure")  # in this order: whoever goes with a note writes it first
            if note and note["host"] != index():
                _say(f"host {index()} ends because host {note['host']} failed: {note['message']}")
                leave_at_once(note["status"])
            if gone and not note:
                message = (
                    f"host {gone[0]} is gone: its process was killed, crashed or lost its network. Start the command on all "
                    "hosts again, it goes on from the last checkpoint"
                )
                _say(f"host {index()} ends, {message}")
                abandon(AGAIN, message)


def _say(message: str) -> None:
    print(f"hosts: {message}", file=sys.stderr, flush=True)

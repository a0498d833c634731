"""Hosts of a run: start of JAX on all of them, exchange of small values, and common end after a failure.

A host is one process of the program; each feeds its own devices, and all run the same steps. They exchange small values
through the key-value store of JAX's coordination service, which host 0 serves. On a single host `count()` is 1, and
every function returns at once.

Functions are collective, so every host must call them in the same order, unless their docstring says "Not collective".

The store has no public name in JAX; only this file uses the private one.
"""

import atexit
import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
from jax._src import distributed

from ag_jax.distributed import storage, terminal
from ag_jax.distributed.interruption import AGAIN

LOOK_EVERY = 1.0  # seconds between two signs of life of a host, and between two checks for a failed one
LOST_AFTER = 30.0  # seconds without a sign of life after which a host counts as lost
# Seconds after which JAX itself ends a process without heartbeats, by SIGABRT (exit status 134) with a stack trace.
HEARTBEAT_TIMEOUT = 100
SHUTDOWN_TIMEOUT = 1800  # seconds that JAX waits at the end for hosts that have not disconnected
REMIND_EVERY = 60  # seconds between two lines of a host that waits for a value of another host
WAITING_EVERY = 10.0  # seconds between two lines of a host that waits for the others to join
PREFIX = "ag_jax"
_FINISHED = "finished"  # last sign of life
_lookouts: list["_Lookout"] = []  # of this process: one, or none on a single host
_numbers = itertools.count()  # numbers of collective calls: the same on all hosts, which make them in the same order


def start(coordinator: str | None, hosts: str | None, host: int | None, timeout: float) -> None:
    """Connect JAX with the other hosts, if there are any, and end this process from then on if one of them fails.

    Must be called before anything uses a device. A host that is not joined by all others in time prints a message and
    ends with the status `AGAIN`.

    Raises ValueError for flags that contradict each other, if no cluster is found, and if hosts that have found each
    other were given different numbers of hosts.

    coordinator: address HOST:PORT of host 0.
    hosts: the number of hosts, None for 1, or `auto` for JAX's own detection (Cloud TPU slices, SLURM, Open MPI,
        Kubernetes).
    host: number of this host.
    timeout: seconds to wait for the other hosts. JAX's own timeout, which ends the process with a stack trace, is
        longer.
    """
    arguments = _arguments(coordinator, hosts, host)
    if arguments is None:
        return
    joined = threading.Event()
    threading.Thread(target=_wait_for_others, args=(joined, timeout), name="joining", daemon=True).start()
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from `stopping`
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=int(timeout) + 60,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"JAX does not start with --hosts={hosts} ({error}): auto is for a Cloud TPU slice and for jobs of SLURM, "
            "Open MPI and Kubernetes; elsewhere give --coordinator=HOST:PORT --hosts=N --host=I"
        ) from error
    finally:
        joined.set()
    if count() == 1:
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    tell(f"hosts: all {count()} have joined")
    _lookouts.append(_Lookout())
    _lookouts[0].start()
    if count() != (number := from_first("the number of hosts", count)):
        raise ValueError(f"--hosts is {count()} on host {index()} and {number} on host 0: give the same everywhere")


def _arguments(coordinator: str | None, hosts: str | None, host: int | None) -> dict[str, Any] | None:
    """Return arguments of `jax.distributed.initialize` for the flags of the command; None for a run on one host.

    Raises ValueError for flags that contradict each other, and if the port of host 0 is taken.
    """
    if hosts is None:
        if coordinator is not None or host is not None:
            raise ValueError("--coordinator and --host need --hosts=N, the number of hosts")
        return None
    if hosts == "auto":
        if coordinator is not None or host is not None:
            raise ValueError(
                "--hosts=auto finds the coordinator and this host's number itself: leave the other flags out"
            )
        return {}  # JAX detects what is not given
    if not hosts.isdigit() or int(hosts) < 1:
        raise ValueError(f"--hosts must be a number from 1 on, or auto, got {hosts!r}")
    number = int(hosts)
    if host is not None and not 0 <= host < number:
        raise ValueError(f"--host must be from 0 to {number - 1}, as --hosts={number}; got {host}")
    if number == 1:
        return None
    if host is None:
        raise ValueError(f"--hosts={number} needs --host=I, the number of this host, from 0 to {number - 1}")
    # JAX itself takes any text for an address, and then waits for it until its timeout.
    address = re.fullmatch(r".+:(\d{1,5})", coordinator or "")
    if address is None or int(address[1]) >= 2**16:
        raise ValueError(
            f"--hosts={number} needs --coordinator=HOST:PORT of host 0, such as 10.0.0.2:8482, got {coordinator!r}"
        )
    if host == 0:
        _check_port(int(address[1]))
    return {
        "coordinator_address": coordinator,
        "num_processes": number,
        "process_id": host,
        "cluster_detection_method": "deactivate",  # within SLURM, it would give each process a GPU of its own
    }


def _check_port(port: int) -> None:
    """Raise ValueError if another program listens on a port: JAX would crash, or share the port with another run."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(
            f"host 0 cannot listen on port {port} of --coordinator ({error}): end the run that uses it, or choose "
            "another port"
        ) from error


def _wait_for_others(joined: threading.Event, timeout: float) -> None:
    """Print that this host waits for the others until all have joined; end the process after `timeout` seconds."""
    began = time.monotonic()
    while not joined.wait(min(WAITING_EVERY, max(began + timeout - time.monotonic(), 0.0))):
        state = distributed.global_state
        who, where = f"host {state.process_id} of {state.num_processes}", state.coordinator_address
        waited = time.monotonic() - began
        if where is None:  # JAX still asks the cluster for its hosts
            _say(f"waits for the names of the hosts, for {waited:.0f} of at most {timeout:g} seconds")
        elif waited < timeout:
            _say(f"{who} waits for the others at {where}, for {waited:.0f} of at most {timeout:g} seconds")
        if waited >= timeout:
            _say(
                f"{who} ends, because not all hosts have joined within {timeout:g} seconds: start the command on every "
                f"host, each with its own number, and let them reach {where} through the firewall; "
                "--join_timeout=SECONDS waits longer"
            )
            leave_at_once(AGAIN)


def check_devices() -> None:
    """Raise ValueError if JAX finds no device, or if its devices belong to more processes than there are hosts.

    On a Cloud TPU slice of several machines, the devices of all belong to every program, also without `start`.
    """
    try:
        processes = jax.process_count()
    except (RuntimeError, AssertionError) as error:  # the second without a word, if JAX has no plugin for the platform
        platforms = jax.config.jax_platforms or ""  # type: ignore[attr-defined]
        raise ValueError(
            f"JAX finds no device for JAX_PLATFORMS={platforms} on this machine ({str(error) or 'no plugin'}): unset "
            "the variable to use what there is"
        ) from error
    if processes != count():
        raise ValueError(
            f"the devices are those of {processes} machines: start the command on each of them, with --hosts=auto"
        )


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


def say(message: str) -> None:
    """Print a message about progress to stderr, on host 0 only, unless no progress is to be shown.

    Not collective.
    """
    if is_first():
        terminal.say(message)


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

    A ValueError or OSError of `make` is raised on host 0, and as a ValueError on the other hosts; a
    `storage.StoreUnavailableError` is raised on all of them.

    what: what is made, named in the lines printed while waiting.
    """
    if count() == 1:
        return make()
    number = next(_numbers)
    if not is_first():
        answer = wait_for(f"{number}/0", 0, what)
        if "error" in answer:
            raise (storage.StoreUnavailableError if answer["is_unavailable"] else ValueError)(answer["error"])
        return answer["value"]
    try:
        value = make()
    except (ValueError, OSError) as error:
        is_unavailable = isinstance(error, storage.StoreUnavailableError)
        publish(f"{number}/0", {"error": f"host 0: {error}", "is_unavailable": is_unavailable})
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
    _leave_after_the_note(status)


def _leave_after_the_note(status: int) -> None:
    if is_first():  # it serves the store, in which the others must find the note before it ends
        time.sleep(3 * LOOK_EVERY)
    leave_at_once(status)


def wait_for_cause() -> None:
    """Wait, after a failed exchange between devices, until a lost host is noticed, whose number then ends this process.

    Returns if no host is lost. Not collective.
    """
    time.sleep(LOST_AFTER + 3 * LOOK_EVERY)


def leave() -> None:
    """Wait until all hosts have finished, and disconnect from them; without it, the end of the process does so.

    A process that ends by `leave_at_once` must call it before, unless it has failed.
    """
    for lookout in _lookouts:
        lookout.finish()
    jax.distributed.shutdown()


def leave_at_once(status: int) -> None:
    """End the process immediately, without waiting for other hosts or threads.

    Not collective.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class _Lookout(threading.Thread):
    """Thread that gives signs of life, and ends this process when another host fails or gives none any more.

    A sign of life is a number that each host increases every `LOOK_EVERY` seconds. A host is lost without one for
    `LOST_AFTER` seconds. If host 0 is lost, JAX itself ends this process. At a normal end, the thread stops when all
    hosts have finished, before this host disconnects from the others.
    """

    def __init__(self) -> None:
        super().__init__(name="lookout", daemon=True)
        self._done = threading.Event()
        atexit.register(self.finish)  # runs before JAX's own exit handler, which disconnects from the store

    def finish(self) -> None:
        """Say that this host has finished, and wait for the others."""
        self._done.set()
        self.join()

    def run(self) -> None:
        """Give signs of life and check those of the others until all hosts have finished."""
        self._store, began = distributed.global_state.client, time.monotonic()
        self._signs = dict.fromkeys(range(count()), ("", began))  # the last of each host, and when it was first seen
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # the store is gone with host 0: JAX ends the process
            for number in itertools.count():
                is_done = self._done.is_set()
                sign = _FINISHED if is_done else str(number)
                self._store.key_value_set(f"{PREFIX}/alive/{index()}", sign, allow_overwrite=True)
                self._follow_a_failed_host()
                self._name_a_lost_host()
                if {sign for sign, _ in self._signs.values()} == {_FINISHED}:
                    return
                (time.sleep if is_done else self._done.wait)(LOOK_EVERY)

    def _follow_a_failed_host(self) -> None:
        """End this process if another host has left a note."""
        if (note := look("failure")) and note["host"] != index():
            _say(f"host {index()} ends because host {note['host']} failed: {note['message']}")
            _leave_after_the_note(note["status"])

    def _name_a_lost_host(self) -> None:
        """Read the signs of life, and end this and all other processes if a host has given none for too long."""
        now = time.monotonic()
        for key, sign in self._store.key_value_dir_get(f"{PREFIX}/alive"):
            host = int(key.rpartition("/")[2])
            if sign != self._signs[host][0]:
                self._signs[host] = sign, now
        for host, (sign, when) in self._signs.items():
            if sign != _FINISHED and now - when > LOST_AFTER:
                message = (
                    f"host {host} is gone: its process was killed, crashed or lost its network. "
                    "Start the command on all hosts again, it goes on from the last checkpoint"
                )
                _say(f"host {index()} ends, {message}")
                abandon(AGAIN, message)


def _say(message: str) -> None:
    print(f"hosts: {message}", file=sys.stderr, flush=True)

"""Stopping a run from outside: SIGTERM and Ctrl-C on any host end it after one and the same step on all hosts.

Hosts run ahead of their devices and of each other, so none may stop on its own: the others would wait for it in the next step
for ever. Asking everyone in every step would cost a round trip each; so instead a thread on every host looks for a notice
twice a second. Once there is one, all halt at their next step for the moment that it takes to tell each other how many steps
they have begun, and stop after the largest of these numbers plus one, which nobody has begun yet. A step that goes on
undisturbed costs one lock.
"""

import itertools
import threading
from typing import Self

from ag_jax import interruption
from ag_jax.distributed import hosts

LOOK_EVERY = 0.5  # seconds
_numbers = itertools.count()  # of the contexts of this process: the same on all hosts


class Interrupted(Exception):
    """A signal asked the run to stop; its checkpoint is written."""


class StopSignal:
    """Within this context SIGTERM and Ctrl-C make `reached` return their name; a second Ctrl-C ends the program.

    A signal that came before, while another run of the same command was trained, counts too.
    All hosts enter it alike and call `reached` once in every step.
    """

    def __init__(self):
        self._requested = interruption.requested
        self._deferred = interruption.deferred()
        self._steps = 0  # that this host has begun
        self._last: int | None = None  # the one after which all stop
        self._notice: str | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._key = f"stop/{next(_numbers)}"

    def __enter__(self) -> Self:
        self._deferred.__enter__()
        self._thread = threading.Thread(target=self._watch, name="stopping", daemon=True)
        if hosts.count() > 1:
            self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._deferred.__exit__(*error)
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        if hosts.count() > 1:  # a host that has not seen its last step yet may be asking
            hosts.publish(f"{self._key}/{hosts.index()}", self._steps)

    def reached(self) -> str | None:
        """Once in every step: the name of the signal if this is the step to stop after, on all hosts alike."""
        if hosts.count() == 1:
            return self._requested()
        with self._lock:
            self._steps += 1
            return self._notice if self._last is not None and self._steps >= self._last else None

    def _watch(self) -> None:
        while not self._done.wait(LOOK_EVERY):
            if received := self._requested():
                hosts.publish(self._key, f"{received} on host {hosts.index()}")
            notice = hosts.look(self._key)
            if notice:
                self._agree(notice)
                return

    def _agree(self, notice: str) -> None:
        with self._lock:  # nobody begins another step before all know which is the last
            hosts.publish(f"{self._key}/{hosts.index()}", self._steps)
            begun = [hosts.wait_for(f"{self._key}/{host}", host, "stopping") for host in range(hosts.count())]
            self._notice, self._last = notice, max(begun) + 1

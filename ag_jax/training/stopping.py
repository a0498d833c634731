"""Interruption of a run by SIGTERM or Ctrl-C on any host, after the same step on all hosts.

Hosts run ahead of their devices and of each other, so none may stop by itself: the others would wait for it in the next
step forever. Communication in every step would cost a round trip each time, so a thread on every host looks for a
notice twice a second instead. Once there is a notice, each host halts at its next step until all have exchanged how
many steps they have begun. They stop after the largest of these numbers plus one, a step that no host has begun yet.
While there is no notice, a step costs only one lock.
"""

import itertools
import threading
from typing import Self

from ag_jax.distributed import hosts, interruption

LOOK_EVERY = 0.5  # seconds
_numbers = itertools.count()  # numbers of this process's contexts: the same on all hosts, which enter them in one order


class Interrupted(Exception):
    """Exception that ends a run after a signal, whose name begins its message, once the checkpoint is saved."""


class StopSignal:
    """Context manager that turns SIGTERM and Ctrl-C into a stop after the same step on all hosts.

    A second Ctrl-C ends the program at once. A signal received before, while another run of the same command was
    trained, counts too. Every host must enter the context, and call `reached` once in every step.
    """

    def __init__(self):
        self._requested = interruption.requested
        self._deferred = interruption.deferred("saving after this step; Ctrl-C again ends without saving")
        self._steps = 0  # steps that this host has begun
        self._last: int | None = None  # the step after which all hosts stop
        self._notice: str | None = None
        self._reason: str | None = None  # a reason of the program's own
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
        if hosts.count() > 1:  # another host may still wait for this number in `_agree`
            hosts.publish(f"{self._key}/{hosts.index()}", self._steps)

    def request(self, reason: str) -> None:
        """Make all hosts stop after a common step for a reason other than a signal, which `reached` then returns."""
        self._reason = reason

    def reached(self) -> str | None:
        """Return the signal or request for which all hosts must stop after the current step; None if they go on.

        This must be called once in every step, because the calls count the steps.
        """
        if hosts.count() == 1:
            return self._requested() or self._reason
        with self._lock:
            self._steps += 1
            return self._notice if self._last is not None and self._steps >= self._last else None

    def _watch(self) -> None:
        while not self._done.wait(LOOK_EVERY):
            if received := self._requested():
                hosts.publish(self._key, f"{received} on host {hosts.index()}")
            elif self._reason:
                hosts.publish(self._key, self._reason)
            notice = hosts.look(self._key)
            if notice:
                self._agree(notice)
                return

    def _agree(self, notice: str) -> None:
        with self._lock:  # this host begins no other step before all hosts know which is the last
            hosts.publish(f"{self._key}/{hosts.index()}", self._steps)
            begun = [hosts.wait_for(f"{self._key}/{host}", host, "stopping") for host in range(hosts.count())]
            self._notice, self._last = notice, max(begun) + 1

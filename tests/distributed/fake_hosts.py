"""Several hosts in one process: each is a thread, with a store of their own in place of JAX's."""

import concurrent.futures
import threading
import time
import types

import jax

from ag_jax.distributed import hosts


class Store:
    """The part of JAX's client that `hosts` uses."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            if key in self._values and not allow_overwrite:
                raise jax.errors.JaxRuntimeError("ALREADY_EXISTS")
            self._values[key] = value
            self._changed.notify_all()

    def key_value_try_get(self, key):
        with self._changed:
            if key not in self._values:
                raise jax.errors.JaxRuntimeError("NOT_FOUND")
            return self._values[key]

    def key_value_dir_get(self, prefix):
        with self._changed:
            return [(key, value) for key, value in self._values.items() if key.startswith(f"{prefix}/")]

    def blocking_key_value_get(self, key, timeout_in_ms):
        deadline = time.monotonic() + timeout_in_ms / 1000
        with self._changed:
            while key not in self._values:
                if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
                    raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            return self._values[key]


class FakeHosts:
    """`run(task, ...)` calls `task(host)` on every host at once, and returns what it returned or raised."""

    def __init__(self, monkeypatch, count: int):
        self._count, self.store, self._local = count, Store(), threading.local()
        outer = self

        class Distributed:
            @property
            def global_state(self):
                return outer._local.state

        class Numbers:
            def __next__(self):
                outer._local.number += 1
                return outer._local.number

        monkeypatch.setattr(hosts, "distributed", Distributed())
        monkeypatch.setattr(hosts, "_numbers", Numbers())

    def become(self, host: int) -> None:
        """From now on this thread is a host."""
        self._local.state = types.SimpleNamespace(client=self.store, num_processes=self._count, process_id=host)
        self._local.number = 0

    def run(self, task):
        def one(host):
            self.become(host)
            try:
                return task(host)
            except ValueError as error:
                return error

        with concurrent.futures.ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(one, range(self._count)))

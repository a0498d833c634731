"""Apply a function to many items in several processes of this machine, with the results in the order of the items."""

import collections
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from ag_jax.distributed import interruption

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(function: Callable[[Item], Result], items: Iterable[Item], *, in_processes: bool) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order; a few items are read ahead of the last result.

    in_processes: use as many processes as there are cores, to which function and items are sent; otherwise this process
        alone. The results are the same.
    """
    count = cores() if in_processes else 1
    if count == 1:
        yield from map(function, interruption.checked(items))
        return
    # Not the processes of the standard library, which run the user's main module again, and are not safe beside JAX.
    from joblib.externals import loky  # imported here, because small texts do without
    from joblib.externals.loky.backend import resource_tracker

    # A process of loky frees what this one leaves behind if it is interrupted, and would print a warning about it.
    with _environment("PYTHONWARNINGS", "ignore"):
        resource_tracker.ensure_running()
    executor, waiting = (
        loky.ProcessPoolExecutor(count, initializer=_prepare_worker, initargs=(os.getpid(),)),
        collections.deque[Future](),
    )
    try:
        for item in interruption.checked(items):
            waiting.append(executor.submit(function, item))
            if len(waiting) > 2 * count:
                yield waiting.popleft().result()
        while waiting:
            interruption.check()
            yield waiting.popleft().result()
    finally:
        executor.shutdown(kill_workers=bool(waiting))


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Context manager in which an environment variable has a value."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare_worker(parent: int) -> None:
    """Let this process leave Ctrl-C to its parent, the other cores to the others, and end if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

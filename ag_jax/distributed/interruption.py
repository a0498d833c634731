"""Handling of Ctrl-C (SIGINT) and SIGTERM, from the start of the command to its end.

Python's own handler raises KeyboardInterrupt wherever the program happens to be. Work that has a good place to stop is
therefore done within `deferred()`, where a signal is only recorded, to be found by `requested()` and `check()`. Python
runs no handler while the main thread is in a long call into a library, such as a compilation, and loses an exception
that is raised in a callback whose errors are only printed; so a second thread, to which Python reports signals at once,
ends the program after a second Ctrl-C, or after `PATIENCE` seconds.
"""

import concurrent.futures
import contextlib
import contextvars
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import TypeVar

Item = TypeVar("Item")
LOOK_EVERY = 0.1  # seconds between two checks for a signal in `wait_for`
AGAIN = 75  # exit status (EX_TEMPFAIL) of a command that its machines or SIGTERM ended: start it again
PATIENCE = 20.0  # seconds that an interrupted program has to end by itself if nothing is deferred
GO_ON = "To go on, run the same command again"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# received: the first signal; deferred: how many contexts of `deferred` are open; guarded: whether `guard` is running;
# notice: what is printed when the first signal comes.
_state = SimpleNamespace(received=None, deferred=0, guarded=False, notice="")


def requested() -> str | None:
    """Return the name of the signal that asked the program to stop; None if there was none."""
    return _state.received.name if _state.received else None


def status(reason: str | None = None) -> int:
    """Return the exit status of a program that a signal ended: 130 after Ctrl-C, `AGAIN` after SIGTERM.

    Schedulers send SIGTERM before they take a machine away, so a command that it ends is to be started again.

    reason: begins with the name of the signal; None for the signal that this process received.
    """
    return 128 + signal.SIGINT if (reason or requested() or "SIGINT").startswith("SIGINT") else AGAIN


def check() -> None:
    """Raise KeyboardInterrupt if a signal asked the program to stop."""
    if _state.received:
        raise KeyboardInterrupt(f"stopped by {requested()}")


def checked(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, and call `check` before each, so that a signal stops the iteration."""
    for item in items:
        check()
        yield item


def wait_for(work: Callable[[], Item]) -> Item:
    """Run `work()` in a thread and return its result; raise KeyboardInterrupt if a signal arrives meanwhile.

    This is for calls into a library that take minutes. A signal cannot end the call itself: after KeyboardInterrupt it
    continues in its thread until the program ends.
    """
    result: concurrent.futures.Future = concurrent.futures.Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # raised again in the waiting thread
            result.set_exception(error)

    context = contextvars.copy_context()  # what is to be done with progress
    threading.Thread(target=context.run, args=(run,), name="wait_for", daemon=True).start()
    while not concurrent.futures.wait([result], LOOK_EVERY).done:
        check()
    return result.result()


@contextlib.contextmanager
def deferred(notice: str = "") -> Iterator[None]:
    """Context manager in which a signal is only recorded, but a second Ctrl-C interrupts at once.

    Contexts may be nested. Outside of `guard`, such as in a notebook, the recorded signal is forgotten at the end of
    the outermost context. In any other thread than the main one, the context does nothing, because Python interrupts
    only the main thread.

    notice: what a command prints as soon as a signal comes, if it may take seconds until the work stops.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outermost = not _state.deferred and not _state.guarded
    previous = {number: signal.signal(number, _receive) for number in _SIGNALS} if outermost else {}
    _state.deferred += 1
    _state.notice, outer_notice = notice or _state.notice, _state.notice
    try:
        yield
    finally:
        _state.deferred -= 1
        _state.notice = outer_notice
        for number, handler in previous.items():
            signal.signal(number, handler)
        if outermost:
            _state.received = None


def is_guarded() -> bool:
    """Return whether this process runs a command line's main function in `guard`, not a notebook or another program."""
    return _state.guarded


def guard(command: Callable[[], int]) -> int:
    """Run `command`, a command line's main function, and return the exit status.

    A signal ends the process with a line on stderr and the exit status of `status`.

    The process ends without waiting for its threads after a signal, because they may be in the middle of a long call,
    and after a failure, because threads of Orbax may wait for minutes if a checkpoint cannot be written.
    """
    _state.guarded = True
    for number in _SIGNALS:
        signal.signal(number, _receive)
    # Python writes the number of each signal into the pipe at once, also while the main thread is in a long call.
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)
    threading.Thread(target=_watch, args=(read_fd,), name="signals", daemon=True).start()
    try:
        failed = command()
    except KeyboardInterrupt:
        _leave(f"stopped by {requested() or 'SIGINT'}. {GO_ON}")
    if failed:
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                output.flush()
        os._exit(failed)
    return failed


def _receive(number: int, _) -> None:
    """Record a signal, and raise KeyboardInterrupt unless it is deferred; Python calls this in the main thread."""
    if _state.received and _state.guarded:  # `_watch` ends the program
        return
    again, _state.received = _state.received, _state.received or signal.Signals(number)
    if not _state.deferred or (again and number == signal.SIGINT):
        raise KeyboardInterrupt


def _watch(read_fd: int) -> None:
    """End the program after a second Ctrl-C, or if the program still runs `PATIENCE` seconds after the first signal.

    Runs in a separate thread. There is no time limit if signals were deferred when the first one came.

    read_fd: file descriptor of the pipe from which the numbers of signals are read.
    """
    first = _next_signal(read_fd)
    deadline = None if _state.deferred else time.monotonic() + PATIENCE
    if _state.notice:
        _write(f"\nag-jax: {signal.Signals(first).name}: {_state.notice}\n")
    while (number := _next_signal(read_fd, deadline)) == signal.SIGTERM:
        pass  # schedulers send it more than once
    _state.received = _state.received or signal.Signals(first)
    _leave(f"stopped at once by {'a second SIGINT' if number else requested()}. {GO_ON}")


def _next_signal(read_fd: int, deadline: float | None = None) -> int | None:
    """Return the number of the next signal; None if there is none before `deadline`, in seconds of `time.monotonic`.

    Without a deadline, wait for ever.
    """
    while deadline is None or deadline > time.monotonic():
        if select.select([read_fd], [], [], None if deadline is None else max(deadline - time.monotonic(), 0))[0]:
            number = os.read(read_fd, 1)[0]
            if number in _SIGNALS:  # Python reports others, too, such as the end of a child process
                return number
    return None


def _leave(message: str) -> None:
    """End the process with a line on stderr, written directly: a signal handler may have interrupted a `print`."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    _write(f"ag-jax: {message}\n")
    os._exit(status())


def _write(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode())

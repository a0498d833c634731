"""Transparent huge pages for the process: a training step on a CPU is faster with them.

XLA allocates the arrays of a step anew for each step, and the kernel clears them page by page: in pages of 4 KiB that
takes a noticeable part of a step. Many Linux systems give huge pages (2 MiB) only to programs that ask for them. The
GNU C library asks if the variable GLIBC_TUNABLES says so when a process starts, so the command restarts itself once.
"""

import os
import pathlib
import re
import sys

_TUNABLE = "glibc.malloc.hugetlb"
_RESTARTED = "AG_JAX_RESTARTED"  # set in a restarted process, should anything remove the tunable again
_MODE = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def restart_with_huge_pages() -> None:
    """Restart this process with huge pages where that has an effect; otherwise return and change nothing.

    It has none if GLIBC_TUNABLES sets huge pages already, on or off, if the system gives them to all programs or to
    none, or without the GNU C library. To run without them, set GLIBC_TUNABLES=glibc.malloc.hugetlb=0.
    """
    arguments = sys.orig_argv[1:]
    # A script on standard input is consumed, and an interpreter without arguments has nothing to start again.
    if not sys.executable or arguments[:1] in ([], ["-"]) or not is_left_to_programs():
        return
    environment = dict(os.environ)
    if request(environment):
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            os.execve(sys.executable, [sys.executable, *arguments], environment)
        except OSError:
            return  # the command works without huge pages, too


def is_left_to_programs() -> bool:
    """Return whether this is a Linux system on which a program gets huge pages if the GNU C library asks for them."""
    try:
        library = re.fullmatch(r"glibc (\d+)\.(\d+).*", os.confstr("CS_GNU_LIBC_VERSION") or "")
        has_tunable = library is not None and (int(library[1]), int(library[2])) >= (2, 35)
        return has_tunable and "[madvise]" in _MODE.read_text()
    except (AttributeError, OSError, ValueError):  # no confstr on Windows, no such name or file elsewhere
        return False


def request(environment: dict[str, str]) -> bool:
    """Add a request for huge pages to `environment` and return True; return False if it already has such a setting."""
    others = environment.get("GLIBC_TUNABLES", "")
    if _TUNABLE in others or _RESTARTED in environment:
        return False
    environment["GLIBC_TUNABLES"] = f"{others}:{_TUNABLE}=1".removeprefix(":")
    environment[_RESTARTED] = "1"
    return True

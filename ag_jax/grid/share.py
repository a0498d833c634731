"""Cells that several processes share: each is computed by one of them, and read by the others."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from etils import epath

from ag_jax.distributed import lock, storage

FOLDER = "claims"  # of the locks, in the directory of the experiment
LOOK_EVERY = 1.0  # seconds between two looks at cells on which other processes work
Key = tuple[str, ...]  # of a cell, such as ("probe", arm, seed); joined, the name of its lock's folder
T = TypeVar("T")


def obtain(cells: Mapping[Key, Callable[[], T]], directory: epath.Path) -> dict[Key, T]:
    """Call the function of every cell when no other process does; return {key of the cell: its value}.

    A cell that another process has claimed comes after the others. Then its function, which must store its value,
    finds it.

    cells: {key: () -> value}. The function computes the value and stores it, or reads what is stored.
    directory: directory of the experiment; processes that share it share its cells.
    """
    claims, values, has_told = lock.Claims(), dict[Key, T](), False
    # A cell of another process is looked at again after the others, so that nobody waits while there is work.
    while left := {key: "-".join(key) for key in cells if key not in values}:
        count = len(values)
        for key, name in left.items():
            with claims(directory / FOLDER / name) as mine:
                if mine:
                    values[key] = cells[key]()
        if len(values) == count:
            if not has_told:
                names = ", ".join(left.values())
                print(f"waiting for other processes, which work on {names}", file=sys.stderr, flush=True)
                has_told = True
            time.sleep(LOOK_EVERY)
    if not storage.is_remote(directory):  # which has no folders
        with contextlib.suppress(OSError):  # another process may have claims there
            os.rmdir(directory / FOLDER)
    return {key: values[key] for key in cells}

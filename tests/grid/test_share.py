"""Cells that several processes share; here threads, which claim as processes do."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from etils import epath

from ag_jax.grid import share, store
from ag_jax.grid.store import Result

CELLS = [("arm", f"seed{seed}") for seed in range(9)]


def cells(directory, calls, seconds=0.002):
    def cell(key):
        def measure():
            calls.append((key, threading.get_ident()))
            time.sleep(seconds)
            return Result({"model": key[1]}, {"score": float(key[1][-1])}, {})

        return lambda: store.measured(directory / key[1], {"model": key[1]}, measure, lambda result: result)

    return {key: cell(key) for key in CELLS}


def test_each_cell_is_computed_once_and_all_have_all(tmp_path, monkeypatch):
    monkeypatch.setattr(share, "LOOK_EVERY", 0.005)
    directory, calls = epath.Path(tmp_path), []
    with ThreadPoolExecutor(3) as threads:
        futures = [threads.submit(share.obtain, cells(directory, calls), directory) for _ in range(3)]
        first, *others = [future.result(timeout=60) for future in futures]
    assert list(first) == CELLS and all(other == first for other in others)
    assert sorted(key for key, _ in calls) == CELLS and len({thread for _, thread in calls}) > 1
    assert not (directory / share.FOLDER).exists()


def test_a_cell_that_fails_is_free_again(tmp_path):
    directory, calls = epath.Path(tmp_path), []

    def fails():
        raise ValueError("no such text")

    with pytest.raises(ValueError, match="no such text"):
        share.obtain({CELLS[0]: fails}, directory)
    assert share.obtain(cells(directory, calls), directory).keys() == set(CELLS) and len(calls) == len(CELLS)

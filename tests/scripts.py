"""The programs in benchmarks/, to be imported by tests."""

import importlib
import pathlib
import sys

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"


def load(*names):
    """Return the modules with the given names, in a list, or the only one."""
    sys.path.insert(0, str(BENCHMARKS))  # where a program finds its neighbours
    try:
        found = [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(BENCHMARKS))
    return found if len(found) > 1 else found[0]

"""Benchmarks are not run by tests, but the names that they import from the package must exist."""

import ast
import importlib
import pathlib
import re
import types

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))
RESULTS = sorted((BENCHMARKS / "results").glob("*.json"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_names_of_the_package_exist(path):
    tree = ast.parse(path.read_text())
    taken = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "ag_jax":
            package = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(package, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                taken[alias.asname or alias.name] = getattr(package, alias.name)
    missing = [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if isinstance(taken.get(node.value.id), types.ModuleType) and not hasattr(taken[node.value.id], node.attr)
    ]
    assert not missing


def test_results_have_no_paths_of_a_machine():
    for path in [*RESULTS, *BENCHMARKS.glob("results/*.jsonl")]:
        assert not re.search(r"(?<![\w.])/(root|home|tmp|work|opt|usr)/", path.read_text()), path

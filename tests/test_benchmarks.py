"""Benchmarks are not run by tests, but the names that they import from the package must exist."""

import ast
import contextlib
import importlib
import json
import pathlib
import re
import types

import numpy as np
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


# The most examples of a split that a benchmark or a config with scale=small takes.
LIMITS = {"train": (6_400, 800, 20_000), "validation": (1_000, 400)}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_recorded_scores_say_which_examples_they_are_of(path):
    """Reports say how a part of a split was drawn; older results say that it was the first examples of the file."""
    for task in json.loads(path.read_text()).get("tasks", {}).values():
        counts = next((of_arm["counts"] for of_arm in task.get("arms", {}).values()), {"train": task.get("examples")})
        for split, limits in LIMITS.items():
            if counts.get(split) in limits:
                (note,) = [note for note in task["notes"] if note.startswith(f"{split}: ")]
                assert "subset_seed" in note and f"{counts[split]:,}" in note


def test_results_have_no_paths_of_a_machine():
    for path in [*RESULTS, *BENCHMARKS.glob("results/*.jsonl")]:
        assert not re.search(r"(?<![\w.])/(root|home|tmp|work|opt|usr)/", path.read_text()), path


STEPS = {  # rows of the table of the cost of guidance, and their records
    "kernel, without guidance": "plan_v5e-8-mlm",
    "kernel, with guidance": "plan_v5e-8",
    "`model.attention=reference`, without guidance": "plan_v5e-8-reference-mlm",
    "`model.attention=reference`, with guidance": "plan_v5e-8-reference",
}


def test_the_costs_of_guidance_are_recorded():
    lines = (BENCHMARKS.parent / "docs" / "cost.md").read_text().splitlines()
    rows = {cells[1]: cells[2:-1] for line in lines if (cells := [cell.strip() for cell in line.split("|")])[1:]}
    versions = set()
    for row, name in STEPS.items():
        plan = json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())
        step, forecast = plan["own"], plan["forecast"]
        expected = [f"{step['costs']['hbm_bytes'] / 1e9:.1f} GB", f"{step['memory']['temporary'] / 2**30:.2f} GiB"]
        expected += [f"{forecast['seconds'] * 1e3:.0f} ms", f"{forecast['mfu']:.0%}", f"{plan['bounds']['mfu']:.0%}"]
        assert [cell.replace(" %", "%") for cell in rows[row]] == expected, row
        versions.add(tuple(plan["versions"].items()))
    ((_, jax), _, (_, libtpu)) = next(iter(versions))
    assert len(versions) == 1 and f"jax {jax} and libtpu {libtpu}" in " ".join(lines).replace("  ", " ")


@pytest.fixture
def viewer(monkeypatch):
    """Return the script viewer.py."""
    pytest.importorskip("selenium")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("viewer")


@pytest.mark.parametrize("layers", [4, 12])
def test_the_viewers_maps_need_a_checkpoint_whose_layers_divide_those_asked_for(viewer, monkeypatch, layers):
    opened = types.SimpleNamespace(model=types.SimpleNamespace(config=types.SimpleNamespace(layers=layers)))
    monkeypatch.setattr(viewer.opening, "open_for_inspection", lambda path: opened)
    with pytest.raises(ValueError, match=f"expected a checkpoint whose layers divide 6, got one of {layers} layers"):
        viewer.read_maps("x", 6, 16)


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_crash_of_the_browser_is_not_recorded_as_a_page_that_took_too_long(viewer, monkeypatch, tmp_path, is_slow):
    class Driver:
        def get(self, address):
            raise (viewer.TimeoutException if is_slow else viewer.WebDriverException)("tab crashed\nmore")

    monkeypatch.setattr(viewer, "browser", lambda limit: contextlib.nullcontext(Driver()))
    tool = viewer.Tool(lambda found, path: path.write_text("x"), "", "", "")
    found = types.SimpleNamespace(weights_NHQK=np.zeros((1, 1, 2, 2)))
    row = viewer.measure(tool, found, tmp_path / "a.html", 1, 120.0)
    assert row["error"] == "Message: tab crashed" and row["bytes"] == 1
    if is_slow:
        assert row["given_up_after_seconds"] == 120.0 and "failed_after_seconds" not in row
    else:
        assert row["failed_after_seconds"] < 60 and "given_up_after_seconds" not in row

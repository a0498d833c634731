"""Evidence: points that measure nothing, of code that is committed."""

import dataclasses
import json
import subprocess

import pytest

from tests import scripts

evidence = scripts.load("evidence")


@dataclasses.dataclass(frozen=True)
class Arm(evidence.Point):
    arm: str
    seed: int


def git(root, *arguments):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with one commit of a package, its configs, a program and a page; Python imports the package from it."""
    root = tmp_path / "clone"
    for name in ("ag_jax/a.py", "configs/b.py", "benchmarks/program.py", "docs/c.md"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("x = 1\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    monkeypatch.setattr(evidence.ag_jax, "__file__", str(root / "ag_jax" / "a.py"))
    evidence.package_hash.cache_clear()
    yield root
    evidence.package_hash.cache_clear()


def run(clone, folder, calls):
    """Two arms; then the better one with a second seed."""
    first = [Arm("plain", 0), Arm("ag", 0)]

    def points(lines):
        if not set(first) <= set(map(Arm.of, lines)):
            return first, False
        best = min((line for line in lines if "loss" in line), key=lambda line: line["loss"])["arm"]
        return [*first, Arm(best, 1)], True

    def measure(point, lines):
        calls.append((point, len(lines)))
        return {"failed": "not finite"} if point.arm == "plain" else {"loss": 0.5}

    return evidence.run(folder, clone / "benchmarks" / "program.py", points, measure)


def test_points_are_computed_once_and_say_what_ran(clone, tmp_path):
    folder = tmp_path / "results" / "x"
    lines = run(clone, folder, calls := [])
    assert calls == [(Arm("plain", 0), 0), (Arm("ag", 0), 1), (Arm("ag", 1), 2)]
    assert [(line["arm"], line["seed"], line.get("loss"), line.get("failed")) for line in lines] == [
        ("plain", 0, None, "not finite"),
        ("ag", 0, 0.5, None),
        ("ag", 1, 0.5, None),
    ]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True).stdout.strip()
    assert all(line["commit"] == commit and len(line["package"]) == 16 and line["device"] for line in lines)
    (clone / "docs/c.md").write_text("another page is no other code\n")
    git(clone, "commit", "-qam", "second")
    assert run(clone, folder, calls := []) == lines and not calls
    assert sorted(map(str, evidence.read(folder))) == sorted(map(str, lines))


@pytest.mark.parametrize("name", ["ag_jax/a.py", "configs/b.py", "benchmarks/program.py"])
def test_other_code_is_refused(clone, tmp_path, name):
    run(clone, tmp_path / "x", [])
    (clone / name).write_text("x = 2\n")
    with pytest.raises(ValueError, match=f"uncommitted .*{name}"):
        run(clone, tmp_path / "y", [])
    git(clone, "commit", "-qam", "second")
    evidence.package_hash.cache_clear()  # as in another process
    with pytest.raises(ValueError, match="computed for another (code|program)"):
        run(clone, tmp_path / "x", [])
    assert len(run(clone, tmp_path / "y", [])) == 3


def test_code_that_changes_while_it_runs(clone, tmp_path):
    def measure(point, lines):
        (clone / "ag_jax" / "a.py").write_text("x = 3\n")
        return {}

    with pytest.raises(ValueError, match="changed while"):
        evidence.run(tmp_path / "x", clone / "benchmarks" / "program.py", lambda lines: ([Arm("ag", 0)], True), measure)
    assert evidence.read(tmp_path / "x") == []


def test_older_lines_are_read_until_there_are_results(clone, tmp_path):
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"arm": "old", "seed": seed}) + "\n" for seed in range(2)))
    assert [Arm.of(line) for line in evidence.read(tmp_path / "x")] == [Arm("old", 0), Arm("old", 1)]
    run(clone, tmp_path / "x", [])
    assert {line["arm"] for line in evidence.read(tmp_path / "x")} == {"plain", "ag"}

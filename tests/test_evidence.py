"""Evidence: points that measure nothing, of code that is committed."""

import dataclasses
import subprocess
import types

import pytest

from ag_jax.finetuning.config import Recipe
from tests import scripts
from tests.finetuning import tiny_tasks

evidence, of_weights = scripts.load("evidence", "finetuning_evidence")


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
    return root


def run(clone, folder, calls, options=types.MappingProxyType({})):
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

    return evidence.run(folder, clone / "benchmarks" / "program.py", points, measure, options)


def test_points_are_computed_once_and_say_what_ran(clone, tmp_path):
    folder = tmp_path / "results" / "x"
    lines = run(clone, folder, calls := [])
    assert calls == [(Arm("plain", 0), 0), (Arm("ag", 0), 1), (Arm("ag", 1), 2)]
    assert [(line["arm"], line["seed"], line.get("loss"), line.get("failed")) for line in lines] == [
        ("ag", 0, 0.5, None),
        ("ag", 1, 0.5, None),
        ("plain", 0, None, "not finite"),
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
    with pytest.raises(ValueError, match=f"{tmp_path / 'x'} has results of another (package|program)"):
        run(clone, tmp_path / "x", [])
    assert len(run(clone, tmp_path / "y", [])) == 3


@pytest.mark.parametrize("name", ["ag_jax/a.py", "benchmarks/program.py"])
@pytest.mark.parametrize("is_between", [False, True])
def test_code_that_changes_while_it_runs(clone, tmp_path, name, is_between):
    """While a point is measured, or between two points."""
    calls = []

    def change():
        (clone / name).write_text("x = 3\n")
        git(clone, "commit", "-qam", "second")

    def points(lines):
        if lines and is_between and "3" not in (clone / name).read_text():
            change()
        return [Arm("ag", seed) for seed in range(2)], True

    def measure(point, lines):
        calls.append(point)
        if not is_between:
            change()
        return {}

    with pytest.raises(ValueError, match="changed since"):
        evidence.run(tmp_path / "x", clone / "benchmarks" / "program.py", points, measure)
    assert len(calls) == 1 and len(evidence.read(tmp_path / "x")) == is_between


def test_results_with_other_options_are_refused(clone, tmp_path):
    run(clone, tmp_path / "x", [], {"pairs": "ab"})
    with pytest.raises(ValueError, match="of another pairs"):
        run(clone, tmp_path / "x", [], {"pairs": "cd"})
    assert len(run(clone, tmp_path / "x", calls := [], {"pairs": "ab"})) == 3 and not calls


def test_a_package_of_another_place_records_nothing(clone, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence.ag_jax, "__file__", str(tmp_path / "ag_jax" / "a.py"))
    with pytest.raises(ValueError, match="PYTHONPATH"):
        run(clone, tmp_path / "x", [])


def test_the_held_out_tenth_is_not_trained_on(tmp_path):
    """By which learning rates of the experiment on real weights are chosen."""
    data = str(tiny_tasks.write(tmp_path / "data"))
    rows = [f"{text} again\t{label}" for text, label in map(tiny_tasks.sentence, range(400))]
    (tmp_path / "data" / "SST-2" / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    whole, part = (of_weights.held_out_splits("sst2", Recipe(train_examples=count), data) for count in (None, 100))
    out, rest = ({example.id for example in of} for of in (whole.validation, whole.train))
    assert len(rest) + len(out) == 400 and not out & rest and 20 < len(out) < 60
    assert len(part.train) == 100 and {example.id for example in part.train} < rest
    assert part.validation == whole.validation and not whole.others

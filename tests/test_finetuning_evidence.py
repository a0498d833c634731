"""The experiment on real weights, with trials that train nothing: what is run, skipped, refused and recorded."""

import subprocess

import pytest

from ag_jax.data.tasks import catalogue
from ag_jax.data.tasks.task import Examples, TaggedSentence, Texts
from ag_jax.evaluation import metrics
from ag_jax.finetuning.config import Recipe
from tests import scripts
from tests.finetuning import tiny_tasks

cells, evidence, record = scripts.load("cells", "finetuning_evidence", "record")


def git(root, *arguments):
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path):
    """A clone with one commit of a package, its configs, and a page."""
    root = tmp_path / "clone"
    for name in ("ag_jax/a.py", "configs/b.py", "docs/c.md"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("x = 1\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def test_lines_are_added_at_one_commit_alone(clone, tmp_path):
    path, first = tmp_path / "results" / "x.jsonl", cells.commit(clone)
    assert cells.read(path) == []
    for seed in range(2):
        cells.append(path, {"seed": seed, "commit": first}, clone)
    lines = [{"seed": 0, "commit": first}, {"seed": 1, "commit": first}]
    assert cells.read(path) == lines and [each.name for each in path.parent.iterdir()] == ["x.jsonl"]
    (clone / "docs/c.md").write_text("changed")
    git(clone, "commit", "-qam", "second")
    with pytest.raises(ValueError, match=f"x.jsonl has cells of commit {first}"):
        cells.append(path, {"seed": 2, "commit": cells.commit(clone)}, clone)
    with pytest.raises(ValueError, match=f"was at {first}"):
        cells.append(tmp_path / "y.jsonl", {"seed": 2, "commit": first}, clone)
    assert cells.read(path) == lines and not (tmp_path / "y.jsonl").exists()
    path.write_text(path.read_text() + '{"seed": ')
    with pytest.raises(ValueError, match="x.jsonl, line 3"):
        cells.read(path)


def test_nothing_is_recorded_of_code_that_is_not_committed(clone, tmp_path):
    (clone / "docs/c.md").write_text("a page is no code")
    cells.check(tmp_path / "x.jsonl", clone)
    for name in ("ag_jax/a.py", "ag_jax/new.py", "configs/b.py"):
        (clone / name).write_text("x = 2\n")
        with pytest.raises(ValueError, match=f"uncommitted .*{name}"):
            cells.append(tmp_path / "x.jsonl", {"commit": cells.commit(clone)}, clone)
    assert not (tmp_path / "x.jsonl").exists()


def line_of(cell, score, split="held_out", **more):
    measured = {catalogue.find(cell.task).metric: score}
    return {**vars(cell), "scores": {split: measured}, "seconds": 1.0, **more}


def test_the_selection_takes_the_best_mean():
    """The smaller of equals, and nothing with a trial that failed; FreeLB's step at the chosen learning rate."""
    scores = {"sst2": {2e-5: (0.7, 0.9), 5e-5: (0.85, 0.85), 1e-4: (0.8, 0.7)}}
    scores |= {"cola": {2e-5: (0.375, 0.375), 5e-5: (0.25, 0.5), 1e-4: (0.3, 0.2)}}
    scores |= {"wnut17": {2e-5: (0.1, 0.1), 5e-5: (0.2, 0.1), 1e-4: (0.3, 0.3)}}
    lines = [line_of(cell, scores[cell.task][cell.learning_rate][cell.seed]) for cell in evidence.rate_cells()]
    assert evidence.rates(lines) == {"sst2": 5e-5, "cola": 2e-5, "wnut17": 1e-4}
    with pytest.raises(ValueError, match="freelb_step lacks 6 of 6"):
        evidence.choose(lines)
    steps = {0.01: 0.8, 0.03: 0.9, 0.1: 0.7}
    lines += [line_of(cell, steps[cell.freelb_step]) for cell in evidence.step_cells(5e-5)]
    lines += [line_of(cell, 1.0 if cell.freelb_step == 0.1 else 0.0) for cell in evidence.step_cells(2e-5)]
    assert evidence.choose(lines) == evidence.Chosen({"sst2": 5e-5, "cola": 2e-5, "wnut17": 1e-4}, 0.03)
    failed = next(line for line in lines if (line["task"], line["learning_rate"]) == ("wnut17", 1e-4))
    failed["failed"] = failed.pop("scores") and "the loss is not finite"
    assert evidence.rates(lines)["wnut17"] == 5e-5
    with pytest.raises(ValueError, match="learning_rate lacks 1 of 6"):
        evidence.rates(lines[1:])


def test_chance():
    """A model of the most frequent class, of no correlation, and one that finds no entity."""
    texts = Examples(tuple(Texts(str(number), "x", None, int(number < 36)) for number in range(100)), "here")
    assert evidence.chance(catalogue.find("sst2"), texts) == (0.64, pytest.approx(0.048))
    assert evidence.chance(catalogue.find("cola"), texts) == (0, pytest.approx(0.1))
    words = ("in", "New", "York", "or", "Rome")
    tagged = TaggedSentence("0", words, ("O", "B-location", "I-location", "O", "B-location"))
    assert evidence.chance(catalogue.find("wnut17"), Examples((tagged,) * 8, "here")) == (0, pytest.approx(1 / 8))
    nothing = metrics.of_tags(catalogue.find("wnut17"), [tagged], [("O",) * 5])
    assert nothing["entity_f1"] == 0
    with pytest.raises(ValueError, match="pearson"):
        evidence.chance(catalogue.find("stsb"), texts)


def test_the_held_out_tenth_is_not_trained_on(tmp_path):
    data = str(tiny_tasks.write(tmp_path / "data"))
    rows = [f"{text} again\t{label}" for text, label in map(tiny_tasks.sentence, range(400))]
    (tmp_path / "data" / "SST-2" / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    whole, part = (evidence.held_out_splits("sst2", Recipe(train_examples=count), data) for count in (None, 100))
    out, rest = ({example.id for example in of} for of in (whole.validation, whole.train))
    assert len(rest) + len(out) == 400 and not out & rest and 20 < len(out) < 60
    assert len(part.train) == 100 and {example.id for example in part.train} < rest
    assert part.validation == whole.validation and not whole.others
    other = evidence.held_out_splits("sst2", Recipe(train_examples=100, subset_seed=1), data)
    assert {example.id for example in other.train} != {example.id for example in part.train}

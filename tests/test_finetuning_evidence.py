"""The experiment on real weights, with trials that train nothing: what is run, skipped, refused and recorded."""

import argparse
import collections
import concurrent.futures
import json
import math
import subprocess
import sys
import threading
import time
import types

import pytest
from etils import epath

from ag_jax.data.tasks import catalogue
from ag_jax.data.tasks.task import Examples, TaggedSentence, Texts
from ag_jax.evaluation import metrics
from ag_jax.finetuning import suite
from ag_jax.finetuning.config import Recipe
from ag_jax.pretraining import mask_trace
from ag_jax.training.loop import NonFiniteError
from tests import scripts
from tests.finetuning import tiny_tasks

cells, evidence, record = scripts.load("cells", "finetuning_evidence", "record")
CHOSEN = evidence.Chosen({"sst2": 5e-5, "cola": 2e-5, "wnut17": 1e-4}, 0.03)


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
    with pytest.raises(ValueError, match=f"x.jsonl has cells of commit {first}, but .* never mixed: check that commit"):
        cells.append(path, {"seed": 2, "commit": cells.commit(clone)}, clone)
    with pytest.raises(ValueError, match=f"was at {first} when this program started, .* start it again"):
        cells.append(tmp_path / "y.jsonl", {"seed": 2, "commit": first}, clone)
    assert cells.read(path) == lines and not (tmp_path / "y.jsonl").exists()
    path.write_text(path.read_text() + '{"seed": ')
    with pytest.raises(ValueError, match=r"x.jsonl, line 3: expected the JSON of a cell .* delete the line"):
        cells.read(path)


@pytest.mark.parametrize("name", ["ag_jax/a.py", "ag_jax/new.py", "configs/b.py"])
def test_nothing_is_recorded_of_code_that_is_not_committed(clone, tmp_path, name):
    (clone / "docs/c.md").write_text("a page is no code")
    cells.check(tmp_path / "x.jsonl", clone)
    (clone / name).write_text("x = 2\n")
    with pytest.raises(ValueError, match=f"uncommitted changes of the code, .*: {name}; commit them"):
        cells.append(tmp_path / "x.jsonl", {"commit": cells.commit(clone)}, clone)
    assert not (tmp_path / "x.jsonl").exists()
    with pytest.raises(ValueError, match="must be a git clone"):
        cells.check(tmp_path / "x.jsonl", tmp_path)


def test_the_package_must_be_that_of_the_clone(clone):
    cells.check_import(scripts.BENCHMARKS.parent)
    with pytest.raises(ValueError, match=r"ag_jax/__init__.py is not in the clone .*: set PYTHONPATH="):
        cells.check_import(clone)


def test_the_hash_of_the_package_is_of_names_and_contents(clone):
    hashes = [cells.package_hash(clone)]
    (clone / "docs/c.md").write_text("a page is no code")
    assert cells.package_hash(clone) == hashes[0]
    (clone / "configs/b.py").write_text("x = 2\n")
    hashes.append(cells.package_hash(clone))
    (clone / "configs/b.py").rename(clone / "configs/d.py")
    hashes.append(cells.package_hash(clone))
    assert len(set(hashes)) == 3


def test_a_command_says_nothing_of_the_machine():
    given = ["--checkpoint=/home/someone/minilm/", "--data=../shared/data", "--workdir=~/runs", "--select", "/a/b.py"]
    assert record.cleaned(given) == ["--checkpoint=minilm", "--data=data", "--workdir=runs", "--select", "b.py"]
    given = ["--config=asa/real_weights:checkpoint=/x/y,data=/z/w,arm=asa", "--results=benchmarks/results", "--n=1/2"]
    kept = ["--config=asa/real_weights:checkpoint=y,data=w,arm=asa", "--results=benchmarks/results", "--n=1/2"]
    assert record.cleaned(given) == kept


def test_the_order_of_the_cells():
    """Plain training first, whose first two seeds are the gate, and ASA before the arm that follows its trace."""
    of_tasks = {task: evidence.planned(CHOSEN, task) for task in evidence.ARMS}
    found = [cell for of in of_tasks.values() for cell in of]
    assert len(found) == len(set(found)) == 5 * (10 + 6 + 6 + 3)
    assert {cell.name for cell in found} == {"-".join(map(str, vars(cell).values())) for cell in found}
    arms = {task: list(dict.fromkeys(cell.arm for cell in of)) for task, of in of_tasks.items()}
    first = ["plain", "asa", "r_drop", "bernoulli", "longer", "freelb"]
    assert arms["cola"] == arms["wnut17"] == first
    assert arms["sst2"] == [
        *first,
        *("smart", "scheduled", "asa_unclipped", "magnitude", "tau_0.1", "tau_0.5", "tau_0.8"),
    ]
    assert all([cell.seed for cell in of[:5]] == [0, 1, 2, 3, 4] for of in of_tasks.values())
    assert {(cell.task, cell.learning_rate) for cell in found} == set(CHOSEN.learning_rates.items())
    assert {cell.arm for cell in found if cell.freelb_step} == {"freelb"}
    assert len(evidence.rate_cells()) == 18 and len(evidence.step_cells(5e-5)) == 6


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
    with pytest.raises(ValueError, match=r"selection of freelb_step lacks 6 of 6 trials, .* with --select first"):
        evidence.choose(lines)
    steps = {0.01: 0.8, 0.03: 0.9, 0.1: 0.7}
    lines += [line_of(cell, steps[cell.freelb_step]) for cell in evidence.step_cells(5e-5)]
    lines += [line_of(cell, 1.0 if cell.freelb_step == 0.1 else 0.0) for cell in evidence.step_cells(2e-5)]
    assert evidence.choose(lines) == evidence.Chosen({"sst2": 5e-5, "cola": 2e-5, "wnut17": 1e-4}, 0.03)
    failed = next(line for line in lines if (line["task"], line["learning_rate"]) == ("wnut17", 1e-4))
    failed["failed"] = failed.pop("scores") and "the loss is not finite"
    assert evidence.rates(lines)["wnut17"] == 5e-5
    with pytest.raises(ValueError, match="selection of learning_rate lacks 1 of 6 trials"):
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
    with pytest.raises(ValueError, match="chance level of its metric pearson is not known"):
        evidence.chance(catalogue.find("stsb"), texts)


@pytest.fixture
def options(tmp_path, clone, monkeypatch):
    """Arguments of the program, whose code is that of `clone`."""
    monkeypatch.setattr(sys, "argv", ["benchmarks/finetuning_evidence.py", f"--workdir={tmp_path / 'runs'}"])
    monkeypatch.setattr(evidence, "ROOT", clone)
    found = {"checkpoint": tmp_path / "model", "data": tiny_tasks.write(tmp_path / "data")}
    found |= {"workdir": tmp_path / "runs", "results": tmp_path / "results"}
    return [f"--{name}={value}" for name, value in found.items()]


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    """The cells that were trained, with scores that are given; nothing is at chance unless its score is."""
    done, scores = [], {}

    def trained(cell, options, root, lines, *, selecting):
        done.append(cell)
        split = "held_out" if selecting else "validation"
        return line_of(cell, scores.get((cell.task, cell.learning_rate), scores.get(cell.task, 0.9)), split)

    monkeypatch.setattr(evidence, "trained", trained)
    monkeypatch.setattr(evidence.readers, "load", lambda task, *given: Examples(EXAMPLES[task.kind], "here"))
    return types.SimpleNamespace(done=done, scores=scores)


EXAMPLES = {
    "classification": tuple(Texts(str(number), "x", None, number % 2) for number in range(100)),
    "tagging": (TaggedSentence("0", ("Rome",), ("B-location",)),) * 100,
}


def test_what_has_a_line_is_skipped(options, pretended, tmp_path, capsys):
    """The selection, then the cells with what it chose; a line that is lost is trained again, and no other."""
    pretended.scores[("cola", 1e-4)] = 0.95
    with pytest.raises(ValueError, match="with --select first"):
        evidence.main(options)
    evidence.main([*options, "--select"])
    assert len(pretended.done) == 24 and {cell.learning_rate for cell in pretended.done[18:]} == {2e-5}
    pretended.done.clear()
    evidence.main(options)
    chosen = evidence.Chosen({"sst2": 2e-5, "cola": 1e-4, "wnut17": 2e-5}, 0.01)
    assert pretended.done == [cell for task in evidence.ARMS for cell in evidence.planned(chosen, task)]
    assert "cola freelb: 95.0 of 5 seeds" in capsys.readouterr().out
    path = tmp_path / "results" / "asa_real_weights_cola.jsonl"
    lines = cells.read(path)
    assert len(lines) == 30 and {line["command"] for line in lines} == {
        "python benchmarks/finetuning_evidence.py --workdir=runs"
    }
    assert all({"commit", "package", "device", "processor", "versions"} <= line.keys() for line in lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines if line != lines[17]))
    for expected in ([lines[17]], []):
        pretended.done.clear()
        evidence.main(options)
        evidence.main([*options, "--select"])
        assert [vars(cell).items() <= line.items() for cell, line in zip(pretended.done, expected, strict=True)] == [
            True
        ] * len(expected)


def test_two_processes_share_the_cells(options, pretended, tmp_path, monkeypatch):
    """Each cell is trained once, none before what it needs, and none of a task that the other found at chance."""
    pretended.scores["cola"] = 0.0
    monkeypatch.setattr(cells, "LOOK_EVERY", 0.01)
    trained, by_thread = evidence.trained, collections.Counter()
    results = tmp_path / "results"

    def slow(cell, *given, selecting):
        if not selecting:
            chosen = evidence.choose(cells.read(results / "asa_real_weights_selection.jsonl"))
            done = cells.read(evidence.record_of(results, cell.task))
            assert evidence.needed(cell, chosen) <= set(map(evidence.Cell.of, done))
        by_thread[threading.get_ident()] += 1
        time.sleep(0.01)
        return trained(cell, *given, selecting=selecting)

    monkeypatch.setattr(evidence, "trained", slow)
    for arguments in ([*options, "--select"], options):
        pretended.done.clear()
        by_thread.clear()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(evidence.main, arguments) for _ in range(2)]:
                each.result()
        expected = 24 if "--select" in arguments else 125 - 28
        assert len(pretended.done) == len(set(pretended.done)) == expected == by_thread.total()
        assert len(by_thread) == 2 and min(by_thread.values()) > 5
    counts = {task: len(cells.read(evidence.record_of(results, task))) for task in evidence.ARMS}
    assert counts == {"sst2": 65, "cola": 2, "wnut17": 30}


def test_a_cell_whose_claim_was_lost_is_not_recorded_twice(clone, tmp_path, monkeypatch):
    """Another process took it over, and recorded it before this one came back."""
    path, origin = tmp_path / "results" / "x.jsonl", cells.stamp(clone)

    def measure(cell, lines):
        cells.append(path, {"cell": cell, "by": "the other"} | origin, clone)
        return {"cell": cell, "by": "this one"}

    def waiting(lines):
        return [cell for cell in ("a", "b") if cell not in {line["cell"] for line in lines}]

    cells.share(path, clone, tmp_path, waiting, measure, str)
    assert [(line["cell"], line["by"]) for line in cells.read(path)] == [("a", "the other"), ("b", "the other")]


def test_what_a_cell_needs():
    gate = {CHOSEN.cell("sst2", "plain", seed) for seed in (0, 1)}
    assert evidence.needed(CHOSEN.cell("sst2", "plain", 1), CHOSEN) == set()
    assert evidence.needed(CHOSEN.cell("sst2", "plain", 2), CHOSEN) == gate
    assert evidence.needed(CHOSEN.cell("sst2", "scheduled", 4), CHOSEN) == gate | {CHOSEN.cell("sst2", "asa", 4)}


def test_other_code_is_refused_before_anything_is_trained(options, pretended, clone):
    evidence.main([*options, "--select"])
    pretended.done.clear()
    (clone / "ag_jax/a.py").write_text("x = 3\n")
    with pytest.raises(ValueError, match="uncommitted changes of the code"):
        evidence.main(options)
    git(clone, "commit", "-qam", "other code")
    (clone / "ag_jax/a.py").write_text("x = 4\n")
    with pytest.raises(ValueError, match="uncommitted changes of the code"):
        evidence.main(options)
    assert not pretended.done


def test_a_task_at_chance_is_left_after_its_gate(options, pretended, capsys):
    pretended.scores["cola"] = 0.29  # three standard errors of 100 examples are 0.3
    evidence.main([*options, "--select"])
    pretended.done.clear()
    evidence.main(options)
    assert [(cell.arm, cell.seed) for cell in pretended.done if cell.task == "cola"] == [("plain", 0), ("plain", 1)]
    assert len(pretended.done) == 125 - 28
    said = capsys.readouterr().out
    assert said.count("cola is at chance, not compared: plain training has 0.290, chance 0.000 ± 0.100") == 1


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


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Trials that train nothing, by the library's own suite; those of a learning rate of 1e-4 fail."""
    seen = []

    def run_trial(one, config, start, splits, directory, keep, labels):
        seen.append((one, splits))
        if one.learning_rate == 1e-4:
            directory.mkdir(parents=True, exist_ok=True)
            raise NonFiniteError("the loss is not finite at step 3")
        result = tiny_tasks.run_trial(one, config, start, splits, directory, keep, labels)
        result |= {"epochs": [{"epoch": 2, "train_loss": 0.5, "metrics": result["metrics"]}]}
        (directory / "result.json").write_text(json.dumps(result))
        rows = [{"split": "train", "step": step, "masked": 0.3, "masked/layers": [0.1 * step, 0.5]} for step in (2, 4)]
        (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return result

    def open_encoder(*given, **named):
        opened = tiny_tasks.open_encoder(*given, **named)
        return type(opened)(type(opened.config)(max_length=128, layers=2), *list(vars(opened).values())[1:])

    monkeypatch.setattr(suite.job, "run_trial", run_trial)
    monkeypatch.setattr(suite.encoded, "encode", lambda splits, tokenizer, encoder, recipe: splits)
    monkeypatch.setattr(suite.opening, "open_encoder", open_encoder)
    (tmp_path / "model").mkdir()
    data = tiny_tasks.write(tmp_path / "data")
    return seen, argparse.Namespace(checkpoint=str(tmp_path / "model"), data=str(data))


def test_a_line_has_the_scores_of_the_trial(fake, tmp_path):
    seen, options = fake
    root = epath.Path(tmp_path / "runs")
    cell = evidence.Cell("sst2", "asa", 3, 5e-5)
    line = evidence.trained(cell, options, root, [], selecting=False)
    (one, _), directory = seen[0], root / "asa" / "sst2" / "lr5e-05-bs32-seed3"
    assert (one.seed, one.learning_rate, one.recipe.adversarial.method) == (3, 5e-5, "asa")
    result = json.loads((directory / "result.json").read_text())
    assert line["scores"] == {"validation": result["metrics"]} and (line["epochs"], line["steps"]) == (2, 4)
    assert line["examples"] == {"train": 24, "validation": tiny_tasks.VALIDATION, "test": tiny_tasks.TEST}
    assert (line["seconds"], line["train_loss"], line["batch_size"]) == (1.5, 0.5, 32)
    assert line["masked"] == {
        "all": 0.3,
        "layers": [pytest.approx(0.4), 0.5],
        "steps": [3, 4],
        "layers_by_step": {2: [0.2, 0.5], 4: [0.4, 0.5]},
    }
    assert all(math.isfinite(load) for load in line["load_average"]) and evidence.Cell.of(line) == cell
    json.dumps(line)
    again = evidence.trained(cell, options, root, [], selecting=False)
    assert len(seen) == 1 and again["digest"] == line["digest"], "a trial that is done is read"
    train = tmp_path / "data" / "SST-2" / "train.tsv"
    train.write_text(train.read_text().replace("warm", "cold", 1))
    with pytest.raises(ValueError, match="put back the earlier files"):
        evidence.trained(cell, options, root, [], selecting=False)
    other = evidence.trained(cell, options, epath.Path(tmp_path / "others"), [], selecting=False)["digest"]
    assert [other[name] == line["digest"][name] for name in ("train", "validation", "test")] == [False, True, True]


def test_masks_follow_a_trial_whose_directory_is_lost(fake, tmp_path):
    """The recorded line of that trial takes the place of its directory, for the same seed alone."""
    seen, options = fake
    root, traces = epath.Path(tmp_path / "runs"), []
    lines = [
        evidence.trained(evidence.Cell("sst2", "asa", seed, 5e-5), options, root, [], selecting=False)
        for seed in (0, 1)
    ]
    lines = [json.loads(json.dumps(line)) for line in lines]
    lines[0]["masked"]["layers_by_step"]["2"] = [0.7, 0.6]
    cell, directory = evidence.Cell("sst2", "scheduled", 1, 5e-5), root / "asa" / "sst2" / "lr5e-05-bs32-seed1"
    for _ in range(2):
        (root / "scheduled").rmtree(missing_ok=True)
        evidence.trained(cell, options, root, lines, selecting=False)
        config = seen[-1][0].recipe.adversarial
        assert config.method == "scheduled" and config.masking.trace == str(directory)
        traces.append(mask_trace.read(config, layers=2))
        directory.rmtree()
    assert traces[0] == traces[1] and traces[0].shares == ((0.2, 0.5), (0.4, 0.5))
    with pytest.raises(ValueError, match="unpack"):
        evidence.trained(cell, options, root, lines[:1], selecting=False)


def test_a_line_of_the_selection_is_of_held_out_examples(fake, tmp_path):
    seen, options = fake
    root = epath.Path(tmp_path / "runs")
    line = evidence.trained(evidence.Cell("sst2", "freelb", 0, 2e-5, 0.1), options, root, [], selecting=True)
    ((one, splits),) = seen
    assert one.recipe.adversarial.freelb.step_size == 0.1 and (root / "freelb_0.1" / "sst2").exists()
    assert line["scores"].keys() == {"held_out"} and line["examples"].keys() == {"train", "held_out"}
    assert sum(line["examples"].values()) == 24 and not splits.others
    failed = evidence.trained(evidence.Cell("sst2", "plain", 1, 1e-4), options, root, [], selecting=True)
    assert failed["failed"] == "the loss is not finite at step 3" and "scores" not in failed

"""The experiment on real weights, with trials that train nothing: what is run, skipped, refused and recorded."""

import pytest

from ag_jax.data.tasks import catalogue
from ag_jax.data.tasks.task import Examples, TaggedSentence, Texts
from ag_jax.evaluation import metrics
from ag_jax.finetuning.config import Recipe
from tests import scripts
from tests.finetuning import tiny_tasks

evidence = scripts.load("finetuning_evidence")


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

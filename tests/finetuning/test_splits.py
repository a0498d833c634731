"""Splits, folds and subsets of examples, and tasks whose released code cannot be followed."""

import dataclasses
import json

import pytest

from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.task import Examples, Texts
from ag_jax.finetuning import splits
from ag_jax.finetuning.config import Recipe


@pytest.mark.parametrize("few", [None, 9])
def test_every_example_is_tested_once_by_a_model_that_did_not_see_it(tmp_path, few):
    """Malformed rows are counted once."""
    (tmp_path / "oromo_ner").mkdir()
    (tmp_path / "oromo_ner" / "all.conll").write_text("Caaltuu\tB-PER\ndeemte\tO\n\n" * 12 + "deemte\tB-VERB\n\n" * 2)
    recipe = Recipe(folds=4, skip_malformed=True, train_examples=few)
    found, tested = splits.read("oromo_ner", recipe, str(tmp_path)), []
    for number in range(4):
        of_fold = splits.of_fold(found, number, 4)
        parts = [of_fold.train, of_fold.validation, of_fold.others["test"]]
        assert len({example.id for part in parts for example in part}) == sum(map(len, parts)) == (few or 12)
        assert sum(part.skipped for part in parts) == 2
        tested += [example.id for example in of_fold.others["test"]]
        following = splits.of_fold(found, (number + 1) % 4, 4)
        assert [example.id for example in of_fold.validation] == [example.id for example in following.others["test"]]
    assert len(tested) == len(set(tested)) == (few or 12)


def test_released_code_that_chose_by_test_data(tmp_path):
    for name in ("qqp", "sst2"):
        with pytest.raises(ValueError, match=f"tasks.{name}.legacy_eval"):
            splits.find_task(name, Recipe(legacy_eval=True))
    folder = tmp_path / "anli_v1.0" / "R1"
    folder.mkdir(parents=True)
    for split, count in (("train", 5), ("dev", 3), ("test", 4)):
        rows = [
            {"uid": f"{split}{n}", "context": "a b", "hypothesis": "c", "label": "enc"[n % 3]} for n in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    honest, legacy = (splits.read("anli_r1", Recipe(legacy_eval=flag), str(tmp_path)) for flag in (False, True))
    assert (len(honest.validation), honest.notes, len(legacy.notes), legacy.others) == (3, (), 1, {})
    assert {example.id for example in legacy.validation} == {example.id for example in honest.others["test"]}


def test_answerability_is_for_questions_that_may_have_no_answer():
    with_classifier = splits.find_task("squad2", Recipe(answerability=True))
    assert with_classifier.kind == "span_or_none" and splits.find_task("squad2", Recipe()).kind == "span"
    for name in ("squad1", "rte"):
        with pytest.raises(ValueError, match=rf"tasks.{name}.answerability"):
            splits.find_task(name, Recipe(answerability=True))


def test_a_metric_that_cannot_choose_epochs_is_refused_with_the_file(tmp_path):
    for name, rows in (("a", "one,1\ntwo,2\n"), ("b", "three,1.5\nfour,1.5\n")):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    own = CustomTask("regression", train="a.csv", validation="b.csv")
    with pytest.raises(ValueError, match=r"tasks.own.metric=pearson .*b.csv"):
        splits.read("own", Recipe(custom=own), str(tmp_path))
    found = splits.read("own", Recipe(custom=own, metric="math.dist"), str(tmp_path))
    assert any("pearson, spearman" in note for note in found.notes)
    with pytest.raises(ValueError, match=r"tasks.own.metric=pearson .*fold [12] of .*a.csv"):
        splits.read("own", Recipe(custom=dataclasses.replace(own, validation=None), folds=2), str(tmp_path))


def ids(examples):
    return [int(example.id) for example in examples]


def test_a_subset_is_of_the_whole_file():
    """The file is in order of genre; a subset has every genre about as often, and contains smaller subsets in order."""
    examples = Examples(tuple(Texts(str(number), "a", None, 0) for number in range(1000)), "here", skipped=3)
    few, more = (splits.subset(examples, count, seed=0) for count in (100, 400))
    assert len(few) == 100 and ids(few) == sorted(ids(few)) and set(ids(few)) < set(ids(more)) and few.skipped == 3
    genres = [sum(200 * genre <= number < 200 * (genre + 1) for number in ids(more)) for genre in range(5)]
    assert sum(genres) == 400 and min(genres) > 60, "80 each are expected, with a deviation of 7"
    assert ids(few)[:3] == [2, 8, 37], "numbers are for ever, or a resumed suite would mix two subsets"
    assert ids(splits.subset(examples, 100, seed=1)) != ids(few)
    assert all(splits.subset(examples, count, 7) == examples for count in (None, 1000, 2000))


def test_train_and_validation_examples_are_drawn_and_said(tmp_path):
    (tmp_path / "SST-2").mkdir()
    for name, count in (("train", 60), ("dev", 40)):
        rows = "".join(f"text {number}\t{number % 2}\n" for number in range(count))
        (tmp_path / "SST-2" / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    found = splits.read("sst2", Recipe(train_examples=20, validation_examples=10, subset_seed=4), str(tmp_path))
    whole = splits.read("sst2", Recipe(), str(tmp_path))
    assert found.train == splits.subset(whole.train, 20, 4) != splits.subset(whole.train, 20, 0)
    assert found.validation == splits.subset(whole.validation, 10, 4)
    for note, text in zip(found.notes, ("train: 20 of 60 ", "validation: 10 of 40 "), strict=True):
        assert note.startswith(text) and "subset_seed=4" in note
    assert whole.notes == splits.read("sst2", Recipe(train_examples=60), str(tmp_path)).notes == ()

"""Subsets of examples, what is counted of malformed rows, and tasks whose released code cannot be followed."""

import dataclasses

import pytest

from ag_jax.data.tasks.custom import CustomTask
from ag_jax.data.tasks.task import Examples, Texts
from ag_jax.finetuning import splits
from ag_jax.finetuning.config import Recipe


@pytest.mark.parametrize("few", [None, 9])
def test_folds_count_malformed_rows_once(tmp_path, few):
    (tmp_path / "oromo_ner").mkdir()
    (tmp_path / "oromo_ner" / "all.conll").write_text("Caaltuu\tB-PER\ndeemte\tO\n\n" * 12 + "deemte\tB-VERB\n\n" * 2)
    recipe = Recipe(folds=4, skip_malformed=True, train_examples=few)
    found = splits.read("oromo_ner", recipe, str(tmp_path))
    for number in range(4):
        of_fold = splits.of_fold(found, number, 4)
        parts = [of_fold.train, of_fold.validation, *of_fold.others.values()]
        assert sum(map(len, parts)) == (few or 12) and sum(part.skipped for part in parts) == 2


def test_why_qqp_is_not_chosen_as_released_code_did():
    with pytest.raises(
        ValueError, match="leave it out; of qqp: .*dev_and_test.tsv that is not GLUE's, which has no labels"
    ):
        splits.find_task("qqp", Recipe(legacy_eval=True))
    with pytest.raises(ValueError, match=r"\(anli, anli_r1, .*dream\): leave it out$"):
        splits.find_task("sst2", Recipe(legacy_eval=True))


def test_answerability_is_for_questions_that_may_have_no_answer():
    with_classifier = splits.find_task("squad2", Recipe(answerability=True))
    assert with_classifier.kind == "span_or_none" and splits.find_task("squad2", Recipe()).kind == "span"
    for name in ("squad1", "rte"):
        with pytest.raises(ValueError, match=rf"tasks.{name}.answerability is for .* have no answer \(squad2\): leave"):
            splits.find_task(name, Recipe(answerability=True))


def test_a_metric_that_cannot_choose_epochs_is_refused_with_the_file(tmp_path):
    for name, rows in (("a", "one,1\ntwo,2\n"), ("b", "three,1.5\nfour,1.5\n")):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    own = CustomTask("regression", train="a.csv", validation="b.csv")
    with pytest.raises(ValueError, match=r"tasks.own.metric=pearson .*b.csv, leave it undefined"):
        splits.read("own", Recipe(custom=own), str(tmp_path))
    found = splits.read("own", Recipe(custom=own, metric="math.dist"), str(tmp_path))
    assert "validation: its labels leave pearson, spearman undefined, so 0 is reported" in found.notes
    with pytest.raises(ValueError, match=r"tasks.own.metric=pearson .*fold [12] of .*a.csv, leave it undefined"):
        folds = dataclasses.replace(own, validation=None)
        splits.read("own", Recipe(custom=folds, folds=2), str(tmp_path))


def ids(examples):
    return [int(example.id) for example in examples]


def test_a_subset_is_of_the_whole_file():
    """Of a file in order of genre: every genre about as often; a smaller subset is in the
    larger one, and order is kept.
    """
    examples = Examples(tuple(Texts(str(number), "a", None, 0) for number in range(1000)), "here", skipped=3)
    few, more = (splits.subset(examples, count, seed=0) for count in (100, 400))
    assert len(few) == 100 and ids(few) == sorted(ids(few)) and set(ids(few)) < set(ids(more)) and few.skipped == 3
    genres = [sum(200 * genre <= number < 200 * (genre + 1) for number in ids(more)) for genre in range(5)]
    assert sum(genres) == 400 and min(genres) > 60, "80 each are expected, with a deviation of 7"
    assert ids(few)[:3] == [2, 8, 37], "numbers are for ever, or a resumed suite would mix two subsets"
    assert ids(splits.subset(examples, 100, seed=1)) != ids(few)
    assert (
        splits.subset(examples, None, 0)
        == splits.subset(examples, 1000, 0)
        == splits.subset(examples, 2000, 7)
        == examples
    )


def test_train_and_validation_examples_are_drawn_and_said(tmp_path):
    (tmp_path / "SST-2").mkdir()
    for name, count in (("train", 60), ("dev", 40)):
        rows = "".join(f"text {number}\t{number % 2}\n" for number in range(count))
        (tmp_path / "SST-2" / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    found = splits.read("sst2", Recipe(train_examples=20, validation_examples=10, subset_seed=4), str(tmp_path))
    whole = splits.read("sst2", Recipe(), str(tmp_path))
    assert found.train == splits.subset(whole.train, 20, 4) and found.validation == splits.subset(
        whole.validation, 10, 4
    )
    assert found.train.items != whole.train[:20] and found.validation.items != whole.validation[:10]
    assert found.notes == (
        "train: 20 of 60 examples, drawn with subset_seed=4",
        "validation: 10 of 40 examples, drawn with subset_seed=4",
    )
    assert whole.notes == splits.read("sst2", Recipe(train_examples=60), str(tmp_path)).notes == ()

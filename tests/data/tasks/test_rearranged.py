"""Folds, classification turned into ranking, and the number of texts of examples."""

import itertools

import pytest

from ag_jax.data.tasks.catalogue import TASKS
from ag_jax.data.tasks.folds import fold
from ag_jax.data.tasks.ranking import rank, ranked
from ag_jax.data.tasks.task import Choices, Examples, TaggedSentence, Texts, number_of_texts

SENTENCES = Examples(tuple(TaggedSentence(str(number), ("a",), ("O",)) for number in range(23)), "a test", 4)


def test_every_example_is_validated_in_one_fold():
    parts = [fold(SENTENCES, 10, number) for number in range(10)]
    validated = [example.id for _, validation in parts for example in validation]
    assert validated == [str(number) for number in range(23)]
    for train, validation in parts:
        assert len(validation) in (2, 3) and len(train) + len(validation) == 23
        assert not set(train) & set(validation)
        assert train.skipped == 4 and validation.skipped == 0, "what is skipped counts once"
        assert train.source == "a test"

    for folds in (1, 24):
        with pytest.raises(ValueError, match=f"a test.*2 to 23.*{folds}"):
            fold(SENTENCES, folds, 0)


def examples(*rows) -> Examples:
    return Examples(tuple(Texts(str(number), *row) for number, row in enumerate(rows)), "a test")


def test_qnli_is_ranked_by_question():
    rows = (("q", "right", 0), ("q", "wrong", 1), ("q", "wrong too", 1), ("r", "right", 0), ("s", "wrong", 1))
    made, left_out = rank(TASKS["qnli"], examples(*rows, ("q", "also right", 0)))
    assert ranked(TASKS["qnli"]).kind == "ranking" and ranked(TASKS["qnli"]).metric == "accuracy"
    assert left_out == 2 and len(made) == 2
    for choices, names in zip(made, ({"0", "1"}, {"5", "2"}), strict=True):
        assert set(choices.names) == names and len(choices.pairs) == 2
        (right,) = choices.right
        assert choices.pairs[right][1].endswith("right") and choices.pairs[1 - right][1].startswith("wrong")
        assert all(first == "q" for first, _ in choices.pairs)
    made, left_out = rank(TASKS["qnli"], examples(("p", "a", None), ("p", "b", None), ("q", "c", None)))
    assert made.items == (Choices("0+1", (("p", "a"), ("p", "b")), None, ("0", "1")),) and left_out == 1


def test_the_right_candidate_stands_anywhere():
    given = examples(*itertools.chain(*[((f"q{n}", "right", 0), (f"q{n}", "wrong", 1)) for n in range(200)]))
    made, left_out = rank(TASKS["qnli"], given)
    assert left_out == 0 and 70 < sum(choices.right == (0,) for choices in made) < 130


def test_what_cannot_be_ranked():
    with pytest.raises(ValueError, match="rte.*qnli, wnli"):
        ranked(TASKS["rte"])
    with pytest.raises(ValueError, match="a test.*qnli"):
        rank(TASKS["qnli"], examples(("a", "b", 0), ("c", "d", 1)))


def test_the_number_of_texts_of_every_example():
    single, pair = Texts("0", "a", None, 0), Texts("1", "a", "", 1)  # an empty second text is one, too
    choices = Choices("2", (("a", "b"), ("a", "c")), (0,))
    cases = {(single, single): 1, (pair, pair): 2, (single, pair): None, (): None, (choices,): None}
    assert {given: number_of_texts(Examples(given, "here")) for given in cases} == cases

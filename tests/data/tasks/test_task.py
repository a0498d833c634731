"""Properties of a task's examples."""

import pytest

from ag_jax.data.tasks.task import Choices, Examples, Texts, number_of_texts

SINGLE, PAIR = Texts("0", "a", None, 0), Texts("1", "a", "", 1)


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ((SINGLE, SINGLE), 1),
        ((PAIR, PAIR), 2),  # an empty second text is one, too
        ((SINGLE, PAIR), None),
        ((), None),
        ((Choices("2", (("a", "b"), ("a", "c")), 0),), None),
    ],
)
def test_the_number_of_texts_of_every_example(examples, expected):
    assert number_of_texts(Examples(examples, "here")) == expected

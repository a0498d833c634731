"""Toy corpora are what their description says."""

import pytest

from ag_jax.data.parallel import toys
from ag_jax.data.parallel.pairs import PairFiles


def test_copies_and_reversals():
    for kind, expected in (("copy", str.split), ("reverse", lambda text: text.split()[::-1])):
        pairs = toys.make(kind, 400)
        assert all(pair.target.split() == expected(pair.source) for pair in pairs)
        assert {len(pair.source.split()) for pair in pairs} == set(range(toys.SHORTEST, toys.LONGEST + 1))
        assert {word for pair in pairs for word in pair.source.split()} == set(toys.WORDS)
        assert len({pair.source for pair in pairs}) > 390


def test_a_dictionary_swaps_adjectives():
    """A translation by a second method: word by word, and then the adjectives behind the next word."""
    words = toys.ARTICLES | toys.ADJECTIVES | toys.NOUNS | toys.VERBS
    pairs = toys.make("dictionary", 300)
    for source, target in pairs:
        expected = source.split()
        for place, word in enumerate(source.split()):
            if word in toys.ADJECTIVES:
                expected[place : place + 2] = expected[place + 1], word
        assert target.split() == [words[word] for word in expected]
    assert {word for pair in pairs for word in pair.source.split()} == set(words)
    lengths = [len(pair.source.split()) for pair in pairs]
    assert len(set(lengths)) == 3 and abs(sum(lengths) / 300 - (5 + 2 * 2 / 3)) < 0.1  # two of three phrases have one


@pytest.mark.parametrize("kind", ["copy", "reverse", "dictionary"])
def test_pairs_are_a_function_of_the_seed(kind, tmp_path):
    assert toys.make(kind, 9, 4) == toys.make(kind, 30, 4)[:9] != toys.make(kind, 9, 5)
    toys.write(tmp_path / "deep", kind, {"train": 6, "test": 3}, seed=4)
    files = [[f"{tmp_path}/deep/{name}.{side}" for side in ("source", "target")] for name in ("train", "test")]
    assert [pair for both in files for pair in PairFiles(*both)] == toys.make(kind, 9, 4)

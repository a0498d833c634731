"""Words of texts and of their tokens, by hand."""

import numpy as np
import pytest

from ag_jax.analysis import words
from ag_jax.viewer import encode


def placed(text, pieces):
    """The characters of pieces that follow each other in a text."""
    places, at = [], 0
    for piece in pieces:
        at = text.index(piece, at)
        places.append((at, at + len(piece)))
        at += len(piece)
    return places


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("We rebuild.", ["We", " re", "build", "."], {"We": 1, "rebuild": 2, ".": 1}),
        (
            "don't say “1,000”!",
            ["don", "'", "t", " say", " “", "1", ",", "000", "”", "!"],
            {"don't": 3, "say": 1, "“": 1},
        ),
        ("a  well-known  b", ["a", " ", " well", "-", "known", "  b"], {"a": 1, "well-known": 3, "b": 1}),
        ("end.Next (one)", ["end", ".", "Next", " (", "one)"], {"end.Next": 3, "(": 1, "one)": 1}),
        ("他说，hello", ["他", "说", "，", "hel", "lo"], {"他": 1, "说": 1, "，": 1, "hello": 2}),
        ("हिन्दी भाषा", ["हि", "न्दी", " भाषा"], {"हिन्दी": 2, "भाषा": 1}),
        ("   ", ["  ", " "], {}),
    ],
)
def test_words_and_their_tokens(text, pieces, expected):
    """Punctuation marks are words, tokens of spaces belong to none, and a token makes one word of those it reaches."""
    found = words.words_of(text, placed(text, pieces))
    assert {word: end - first for word, first, end in found[: len(expected)]} == expected
    ends = [0, *(end for _, _, end in found)]
    assert all(first >= before for (_, first, _), before in zip(found, ends, strict=False))


def test_bytes_of_one_character_are_one_word():
    assert words.words_of("a 😀", [(0, 1), (1, 3), (2, 3), (2, 3)]) == (("a", 0, 1), ("😀", 1, 4))


def test_a_dot_begins_the_pieces_that_continue_a_word():
    tokens, of = (
        ("<s>", "▁", "▁re", "build", "##ing", ".", "▁of▁the", "</s>"),
        (("rebuilding", 2, 5), (".", 5, 6), ("of the", 6, 7)),
    )
    assert words.labels(tokens, of) == ["<s>", "␣", "re", "·build", "·ing", ".", "of the", "</s>"]
    assert [first for _, first in words.groups(tokens, of)] == [0, 1, 5, 6, 7]
    assert words.groups(tokens, of)[1] == ("rebuilding", 1)
    masked = words.renamed(of, ("<s>", "▁", "▁re", "<mask>", "ing", ".", "▁in▁the", "</s>"), np.isin(range(8), (3, 6)))
    assert [word for word, _, _ in masked] == ["re<mask>ing", ".", "in the"]


def test_attention_between_words_is_summed_over_columns_and_averaged_over_rows():
    weights = np.array([[0.1, 0.2, 0.7], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4]], np.float32)
    found = encode.between_words(weights, [0, 2], [0, 1])
    np.testing.assert_allclose(found, [[0.3, 0.7], [0.3, 0.7]], rtol=1e-6)
    np.testing.assert_allclose(encode.between_words(weights[:2], [0, 1], [0, 2]), [[0.3, 0.7], [0.9, 0.1]], rtol=1e-6)

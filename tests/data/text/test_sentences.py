"""Where sentences end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ag_jax.data.text.sentences import join_sentences, split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rained.", " We left!", " Why?", " Nobody knows."],
        ["Mr. Smith met Dr. J. R. Brown at 5 p.m. on Monday."],
        ["The U.S. Army paid $4.50, i.e. little."],
        ['"Stop."', " He stopped.", " (It was late.)", ' "Go!"', " I said"],
        ['He said "no!" and left.'],
        ["He came in 1944.", " 12 men followed."],
        ["Où?", " Été.", " Ça va."],
        ["See no. 7 of it.", " Then go."],
        ["He said no.", " We left."],
        ["So do I.", " We left."],
        ["J. Smith spoke.", " (Mr. Jones did not.)", " Then we left."],
        [],
    ],
)
def test_split(sentences):
    assert split_sentences("".join(sentences)) == sentences


def test_lines_end_sentences():
    text = "A heading\nThen text. More\n\n  indented  \n"
    assert split_sentences(text) == ["A heading", "Then text.", " More", "indented"]
    assert split_sentences(" \n \t\n") == []
    long = "x" * 1_000_000 + ". Then."  # takes no time
    assert [len(sentence) for sentence in split_sentences(long)] == [1_000_001, 6]


@given(st.text(alphabet="aB1.!?\"') \n", max_size=80))
def test_nothing_but_line_ends_is_lost_and_joining_undoes_splitting(text):
    sentences = split_sentences(text)
    assert "".join(sentences) == "".join(line.strip() for line in text.splitlines())
    assert all(sentence.strip() for sentence in sentences)
    assert split_sentences(join_sentences(sentences)) == sentences


@pytest.mark.parametrize(
    ("lengths", "is_wrapped"),
    [
        ([100, 50, 50], True),
        ([101, 50, 50], False),  # a line is too long
        ([90, 49, 49], False),  # most lines are short
        ([60] * 98 + [101] + [60] * 51, True),  # of a hundred lines and more, one in a hundred may be longer
        ([60] * 98 + [101] * 2, False),
    ],
)
def test_hard_wrapped_lines_are_joined_to_paragraphs(lengths, is_wrapped):
    lines = ["a" * length for length in lengths]
    paragraphs = split_sentences("\n".join([f" {lines[0]}", *lines[1:], "", "End of\nit. Fog."]))
    expected = [" ".join(lines), "End of it.", " Fog."] if is_wrapped else [*lines, "End of", "it.", " Fog."]
    assert paragraphs == expected
    assert split_sentences("\n".join(lines)) == lines  # without a blank line there are no paragraphs

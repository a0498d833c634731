"""Where sentences end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ag_jax.data.text.sentences import join_sentences, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rained. We left! Why? Nobody knows.", ["It rained.", " We left!", " Why?", " Nobody knows."]),
        ("Mr. Smith met Dr. J. R. Brown at 5 p.m. on Monday.", ["Mr. Smith met Dr. J. R. Brown at 5 p.m. on Monday."]),
        ("The U.S. Army paid $4.50, i.e. little.", ["The U.S. Army paid $4.50, i.e. little."]),
        (
            '"Stop." He stopped. (It was late.) "Go!" I said',
            ['"Stop."', " He stopped.", " (It was late.)", ' "Go!"', " I said"],
        ),
        ('He said "no!" and left.', ['He said "no!" and left.']),
        ("A heading\nThen text. More\n\n  indented  \n", ["A heading", "Then text.", " More", "indented"]),
        ("He came in 1944. 12 men followed.", ["He came in 1944.", " 12 men followed."]),
        ("Où? Été. Ça va.", ["Où?", " Été.", " Ça va."]),
        ("", []),
        (" \n \t\n", []),
    ],
)
def test_split(text, sentences):
    assert split_sentences(text) == sentences


@given(st.text(alphabet="aB1.!?\"') \n", max_size=80))
def test_nothing_but_line_ends_is_lost_and_joining_undoes_splitting(text):
    sentences = split_sentences(text)
    assert "".join(sentences) == "".join(line.strip() for line in text.splitlines())
    assert all(sentence.strip() for sentence in sentences)
    assert split_sentences(join_sentences(sentences)) == sentences


def test_hard_wrapped_lines_are_joined_to_paragraphs():
    wrapped = (
        "London. Michaelmas Term lately over, and the Lord Chancellor sitting in the great\n"
        "hall of the inn. Implacable November weather, with as much mud in all of the streets\n"
        "as if the waters had but newly retired.\n"
        "\n"
        "Fog everywhere. Fog up the river, where it flows among green aits and many meadows;\n"
        "fog down the river.\n"
    )
    sentences = split_sentences(wrapped)
    assert sentences[1].startswith(" Michaelmas") and sentences[1].endswith("sitting in the great hall of the inn.")
    assert sentences[2].endswith("of the streets as if the waters had but newly retired.")
    assert sentences[3] == "Fog everywhere." and len(sentences) == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See no. 7 of it. Then go.", ["See no. 7 of it.", " Then go."]),
        ("He said no. We left.", ["He said no.", " We left."]),
        ("So do I. We left.", ["So do I.", " We left."]),
        (
            "J. Smith spoke. (Mr. Jones did not.) Then we left.",
            ["J. Smith spoke.", " (Mr. Jones did not.)", " Then we left."],
        ),
        ("\n\n", []),
    ],
)
def test_stops_that_end_nothing(text, expected):
    assert split_sentences(text) == expected


def test_a_very_long_word_takes_no_time():
    text = "x" * 1_000_000 + ". Then."
    assert [len(sentence) for sentence in split_sentences(text)] == [1_000_001, 6]

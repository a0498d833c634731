"""Where sentences end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ag_jax.data.sentences import join_sentences, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rained. We left! Why? Nobody knows.", ["It rained.", " We left!", " Why?", " Nobody knows."]),
        ("Mr. Smith met Dr. J. R. Brown at 5 p.m. on Monday.", ["Mr. Smith met Dr. J. R. Brown at 5 p.m. on Monday."]),
        ("The U.S. Army paid $4.50, i.e. little.", ["The U.S. Army paid $4.50, i.e. little."]),
        ('"Stop." He stopped. (It was late.) "Go!" I said', ['"Stop."', " He stopped.", " (It was late.)", ' "Go!"', " I said"]),
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

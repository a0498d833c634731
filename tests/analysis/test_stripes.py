"""Shares on the diagonal and on stripes: handmade maps, a plain loop, and a model's packed and padded rows."""

import dataclasses
import math

import numpy as np
import pytest

from ag_jax.analysis import maps, stripes
from tests import tiny
from tests.analysis import examples
from tests.analysis.examples import SENTENCE, WordTokenizer


def plain(map_QK):
    """The three shares of one map, by loops."""
    n = len(map_QK)
    received = [sum(map_QK[i][j] for i in range(n) if i != j) for j in range(n)]
    heaviest = sorted(received, reverse=True)[: math.ceil(n / 20)]
    return sum(map_QK[i][i] for i in range(n)) / n, sum(heaviest) / n, received[0] / n


@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (20, 1), (21, 2), (40, 2), (41, 3), (140, 7)])
def test_a_stripe_for_twenty_tokens(tokens, count):
    assert stripes.stripe_count(tokens) == count
    uniform = stripes.uniform_shares(tokens)
    expected = 1 / tokens, count * (tokens - 1) / tokens**2, (tokens - 1) / tokens**2
    np.testing.assert_allclose(uniform, np.array(expected)[:, None], atol=1e-12)


def test_chance_in_a_window():
    """Of 9 tokens: a window of 4 is the token itself and two on each side, cut off at both ends."""
    n, seen = 9, [[abs(i - j) <= 2 for j in range(9)] for i in range(9)]
    local = plain([[1 / sum(row) if row[j] else 0 for j in range(n)] for row in seen])
    found = stripes.uniform_shares(n, (4, None, 4))
    expected = np.array([local, plain(np.full((n, n), 1 / n)), local]).T
    np.testing.assert_allclose(found, expected)


def test_against_loops():
    maps_NQK = np.random.default_rng(0).dirichlet(np.ones(41), (2, 41))
    found = stripes.shares(maps_NQK)
    for layer in range(2):
        np.testing.assert_allclose([of[layer] for of in found], plain(maps_NQK[layer]), rtol=1e-12)


def test_every_text_of_a_row_counts_by_itself():
    """Two texts of 7 and 4 tokens in one row, one of 5 with padding, and an empty row."""
    model = tiny.model()
    params = tiny.params(model, tiny.batch())
    rng = np.random.default_rng(3)
    segments_BL = np.array([[1] * 7 + [2] * 4, [1] * 5 + [0] * 6, [0] * 11], np.int32)
    batch = {
        "tokens": np.where(segments_BL > 0, rng.integers(5, tiny.VOCABULARY, segments_BL.shape), 1).astype(np.int32),
        "segment_ids": segments_BL,
        "token_type_ids": np.zeros_like(segments_BL),
    }
    measured = stripes.shares_of_texts(model, params, batch)
    weights_NBHQK = examples.sown(model, params, batch | {"masked_positions": np.zeros((3, 2), np.int32)})
    places = [(0, slice(0, 7)), (0, slice(7, 11)), (1, slice(0, 5))]
    assert measured.texts == len(places)
    for layer in range(2):
        expected = np.mean([plain(weights_NBHQK[layer, row, :, at, at].mean(0)) for row, at in places], axis=0)
        np.testing.assert_allclose([of[layer] for of in measured.found], expected, rtol=1e-5)
    chance = np.mean([plain(np.full((n, n), 1 / n)) for n in (7, 4, 5)], axis=0)
    np.testing.assert_allclose(measured.uniform, np.stack([chance, chance], 1))

    # The same as of a text's maps.
    drawn = maps.attention_maps(model, params, WordTokenizer(), SENTENCE, 13)
    alone = {"tokens": drawn.ids_L[None], "segment_ids": np.ones((1, 9), np.int32)}
    alone["token_type_ids"] = 0 * alone["segment_ids"]
    of_text = stripes.shares_of_texts(model, params, alone).found
    for ours, theirs in zip(stripes.shares(drawn.weights_NHQK.mean(1)), of_text, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_the_table_has_a_row_for_each_layer():
    made_up = examples.sentence()
    lines = stripes.shares_table(made_up).splitlines()
    found = stripes.shares(made_up.weights_NHQK.mean(1, dtype=np.float64))
    rows = [line.split() for line in lines]
    for layer in range(2):
        assert [str(layer), *(f"{of[layer]:.2f}" for of in found[:2])] in rows
    assert ["by", "chance", "0.11", "0.10"] in rows
    local = dataclasses.replace(made_up, windows=(2, None))
    names = [" ".join(line.split()[:3]) for line in stripes.shares_table(local).splitlines() if "chance" in line]
    assert names == ["by chance (2)", "by chance (all)"]

"""Collapse and repetition against loops over pairs and words, where texts share rows and over several batches."""

import itertools

import jax
import numpy as np

from ag_jax.objectives import plateau
from ag_jax.training import metrics
from tests import reference


def collapse(hidden_BLD, batch):
    """Return what `plateau.collapse` returns, from the cosine of each pair of positions."""
    means = {"collapse/masked": [], "collapse/all": []}
    for row, segments_L in enumerate(batch["segment_ids"]):
        masked = set(batch["masked_positions"][row][batch["masked_weights"][row] > 0])
        for places in reference.texts(segments_L):
            for name, counted in (("collapse/masked", [at for at in places if at in masked]), ("collapse/all", places)):
                units = [hidden_BLD[row, at] / np.linalg.norm(hidden_BLD[row, at]) for at in counted]
                if len(units) > 1:
                    means[name].append(np.mean([one @ other for one, other in itertools.permutations(units, 2)]))
    return {name: (sum(of_texts), len(of_texts)) for name, of_texts in means.items()}


def repetition(predicted_BM, batch, vocabulary):
    """Return what `plateau.repetition` returns, from the words at the masked positions alone."""
    used = batch["masked_weights"] > 0
    words = {"repetition/predicted": predicted_BM[used], "repetition/labels": batch["masked_labels"][used]}
    return {name: (np.bincount(of, minlength=vocabulary), used.sum()) for name, of in words.items()}


def test_collapse_is_the_mean_cosine_of_pairs_in_each_text():
    """A text with fewer than two positions does not count; the scale of hidden states and padding change nothing."""
    rng = np.random.default_rng(0)
    segments = np.array([[1] * 5 + [2] + [3] * 4 + [0] * 2, [1] * 6 + [2] * 6, [0] * 12, [0] * 2 + [1] * 10], np.int32)
    positions = np.array([[0, 1, 4, 5, 7], [3, 6, 7, 11, 0], [0] * 5, [2, 3, 4, 5, 11]], np.int32)
    weights = np.float32([[1] * 5, [1, 1, 1, 1, 0], [0] * 5, [1] * 5])
    batch = {"segment_ids": segments, "masked_positions": positions, "masked_weights": weights}
    hidden = (rng.standard_normal((4, 12, 5)) + 1) * rng.uniform(0.1, 10, (4, 12, 1))
    hidden[segments == 0] = np.nan
    found, expected = jax.jit(plateau.collapse)(hidden.astype(np.float32), batch), collapse(hidden, batch)
    for name, pair in expected.items():
        np.testing.assert_allclose(found[name], pair, rtol=1e-5)
    assert {name: texts for name, (_, texts) in expected.items()} == {"collapse/masked": 3, "collapse/all": 5}
    assert plateau.collapse(None, batch) == plateau.repetition(None, batch, 13) == {}


def test_the_most_frequent_word_is_that_of_all_batches():
    """In each batch another word is the most frequent, and one that is second in both is the most frequent of all."""
    sums, labels = {}, np.array([[5, 5, 2, 2, 2]])
    batch = {"masked_weights": np.float32([[1, 1, 1, 1, 0]]), "masked_labels": labels}
    for predicted in ([3, 3, 3, 7, 7], [4, 4, 7, 7, 7], [6, 7, 6, 6, 7]):
        sums = metrics.add(sums, repetition(np.array([predicted]), batch, 9))
    assert metrics.divide(sums) == {"repetition/predicted": 4 / 12, "repetition/labels": 6 / 12}
    assert metrics.divide({"repetition/labels": ([0.0, 0.0], 0.0)}) == {"repetition/labels": None}

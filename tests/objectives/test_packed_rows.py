"""Texts that share rows learn what they learn one a row: losses, masses, hidden states and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.kernels import reference as plain
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.models.encoder import Encoder
from ag_jax.models.masked_lm import PretrainingModel
from tests import tiny
from tests.cases import some

LENGTHS = (11, 7, 3, 9, 1, 5, 8, 2)
SHARED = ((0, 3, 5), (2,), (4, 1, 7, 6), ())  # the texts of every packed row
LENGTH, MASKED = 25, 13  # of packed rows, longer than the model's longest text
STEP = jnp.int32(3)
ASSIGNMENT = (("next", 1), ("period", 1), ("first", 1))
IMPLEMENTATIONS = {"reference": plain.attend, "tpu": Fused(functools.partial(tpu.attend, interpret=True))}


def pack(alone):
    """The rows of a batch that hold one text each, as the texts of fewer rows, and the (row, start) of every text."""
    packed, places = {}, {}
    for row, texts in enumerate(SHARED):
        start = 0
        for text in texts:
            places[text], start = (row, start), start + LENGTHS[text]
    for name, width in (("tokens", LENGTH), ("original", LENGTH), ("token_type_ids", LENGTH), ("segment_ids", LENGTH)):
        packed[name] = np.full((len(SHARED), width), int(name in ("tokens", "original")), np.int32)
        for text, (row, start) in places.items():
            number = SHARED[row].index(text) + 1 if name == "segment_ids" else alone[name][text, : LENGTHS[text]]
            packed[name][row, start : start + LENGTHS[text]] = number
    used = [0] * len(SHARED)
    slots = {name: alone[name] for name in ("masked_positions", "masked_labels", "masked_weights")}
    packed |= {name: np.zeros((len(SHARED), MASKED), field.dtype) for name, field in slots.items()}
    for text, (row, start) in sorted(places.items(), key=lambda item: item[1]):
        for slot in np.flatnonzero(alone["masked_weights"][text]):
            for name, field in slots.items():
                packed[name][row, used[row]] = field[text, slot] + start * (name == "masked_positions")
            used[row] += 1
    return packed, places


@pytest.fixture(scope="module")
def batches():
    """The texts one a row and packed, with the places of the texts in the packed rows."""
    alone = tiny.batch(LENGTHS)
    # Some texts have a full stop, some have none.
    tokens_BL = np.where(np.isin(alone["original"], (5, 9)) & (np.arange(8) % 3 == 0)[:, None], 7, alone["original"])
    alone = {**alone, "original": tokens_BL.astype(np.int32)}
    del alone["next_labels"]
    return alone, *pack(alone)


@pytest.fixture(scope="module")
def params(batches):
    return tiny.params(PretrainingModel(tiny.CONFIG), batches[0])


@functools.cache
def compiled(name, mode):
    objective = tiny.guided(PretrainingModel(tiny.CONFIG, attend=IMPLEMENTATIONS[name]), ASSIGNMENT, mode=mode)

    def loss(params, batch):
        outcome = tiny.evaluate(objective, params, batch, None, STEP)
        coefficients, weights = objective.coefficients(STEP), objective.normalizers(batch)
        total = sum(coefficients[term] * outcome.totals[term] / weights[term] for term in outcome.totals)
        return total, (outcome.totals, outcome.metrics, weights)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def test_the_rows_to_compare_are_what_they_should_be(batches):
    alone, packed, _ = batches
    assert packed["tokens"].shape == (4, 25) and tiny.CONFIG.max_length < 25
    assert packed["masked_weights"].sum() == alone["masked_weights"].sum() == 8
    at_masks = np.take_along_axis(packed["tokens"], packed["masked_positions"], axis=1)
    assert (at_masks[packed["masked_weights"] > 0] == 3).all()
    assert packed["segment_ids"].max(axis=1).tolist() == [3, 1, 4, 0]
    assert np.unique(packed["token_type_ids"][packed["segment_ids"] > 0]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "mode"),
    some([("reference", "loss"), ("tpu", "loss"), ("reference", "bias")], ("reference", "bias")),
)
def test_losses_masses_and_gradients_are_the_same(params, batches, name, mode):
    alone, packed, _ = batches
    (loss, aside), gradient = compiled(name, mode)(params, packed)
    (expected, expected_aside), expected_gradient = compiled("reference", mode)(params, alone)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert aside[2].keys() == ({"mlm", "ag"} if mode == "loss" else {"mlm"})
    assert mode == "bias" or aside[2]["ag"] == len(LENGTHS)
    for (path, one), other in zip(jax.tree.leaves_with_path(aside), jax.tree.leaves(expected_aside), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=jax.tree_util.keystr(path))
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected_gradient))
    found, wanted = jax.tree.leaves_with_path(gradient), jax.tree.leaves(expected_gradient)
    for (path, one), other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6 * largest, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_hidden_states_are_the_same_token_by_token(params, batches, name):
    alone, packed, places = batches

    def hidden(attend, batch):
        encoder = Encoder(tiny.CONFIG, attend)
        run = jax.jit(lambda params, batch: encoder.apply({"params": params}, batch, deterministic=True))
        return np.asarray(run(params["encoder"], batch))

    expected, found = hidden(plain.attend, alone), hidden(IMPLEMENTATIONS[name], packed)
    assert len(places) == len(LENGTHS)
    for text, (row, start) in places.items():
        n = LENGTHS[text]
        np.testing.assert_allclose(found[row, start : start + n], expected[text, :n], rtol=1e-5, atol=1e-5)


@pytest.mark.exhaustive
def test_texts_do_not_see_each_other(params, batches):
    """Were the row one text, its hidden states would be others: the comparisons above are of something."""
    packed = batches[1]
    merged = {**packed, "segment_ids": (packed["segment_ids"] > 0).astype(np.int32)}
    merged = {name: field[:, : tiny.CONFIG.max_length] for name, field in merged.items()}
    cut = {name: field[:, : tiny.CONFIG.max_length] for name, field in packed.items()}
    run = jax.jit(lambda batch: Encoder(tiny.CONFIG).apply({"params": params["encoder"]}, batch, deterministic=True))
    assert np.abs(run(merged) - run(cut))[0].max() > 0.1

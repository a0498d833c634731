"""Terms, weights and metrics of the objectives, against the float64 numpy model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.models.encoder import Ports
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.masked_lm import Pretraining
from tests import reference, tiny

MODEL = tiny.model()
STEP = jnp.int32(5)  # of 10: with the hold of 2 steps, alpha has fallen to 5/8
MIXED = (("next", 1), ("period", 1), ("first", 1))
PLAIN, GUIDED = Pretraining(MODEL), tiny.guided(MODEL, MIXED)


@pytest.fixture(scope="module")
def batch():
    return tiny.batch((11, 7, 5, 0, 9, 4))


@pytest.fixture(scope="module")
def params(batch):
    return tiny.params(MODEL, batch)


@pytest.fixture(scope="module")
def expected(params, batch):
    """Word logits, next-sentence logits and attention of the numpy model."""
    return reference.predict(tiny.float64(params), batch, tiny.CONFIG)


@functools.cache
def compiled(objective):
    return jax.jit(lambda params, batch, ports: tiny.evaluate(objective, params, batch, None, STEP, ports))


def call(objective, params, batch, ports=Ports()):
    return compiled(objective)(params, batch, ports)


@pytest.fixture(scope="module")
def outcome(params, batch):
    """Of the guided objective, with everything on."""
    return call(GUIDED, params, batch)


def test_pretraining_terms_and_metrics(params, batch, expected):
    outcome = call(PLAIN, params, batch)
    words, following, _ = expected
    logs, weights, labels = functions.log_softmax(words, axis=-1), batch["masked_weights"], batch["masked_labels"]
    mlm = -(np.take_along_axis(logs, labels[..., None], -1)[..., 0] * weights).sum()
    present = np.array([1, 1, 1, 0, 1, 1])
    nsp = -(functions.log_softmax(following, axis=-1)[np.arange(6), batch["next_labels"]] * present).sum()
    np.testing.assert_allclose(outcome.totals["mlm"], mlm, rtol=1e-5)
    np.testing.assert_allclose(outcome.totals["nsp"], nsp, rtol=1e-5)
    assert set(outcome.totals) == {"mlm", "nsp"} and outcome.outputs.statistics is None
    number = float(weights.sum())
    assert number == 0 + 1 + 2 + 0 + 4 + 2
    assert set(outcome.metrics) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    np.testing.assert_allclose(outcome.metrics["mlm_loss"], (mlm, number), rtol=1e-5)
    np.testing.assert_allclose(outcome.metrics["nsp_loss"], (nsp, 5), rtol=1e-5)
    right = (
        ((words.argmax(-1) == labels) * weights).sum(),
        ((following.argmax(-1) == batch["next_labels"]) * present).sum(),
    )
    np.testing.assert_allclose(outcome.metrics["mlm_accuracy"], (right[0], number))
    np.testing.assert_allclose(outcome.metrics["nsp_accuracy"], (right[1], 5))


def test_normalizers_depend_on_the_batch_alone(batch):
    assert {k: float(v) for k, v in Pretraining(MODEL).normalizers(batch).items()} == {"mlm": 9, "nsp": 5}
    assert {k: float(v) for k, v in tiny.guided(MODEL).normalizers(batch).items()} == {"mlm": 9, "nsp": 5, "ag": 5}
    assert set(tiny.guided(MODEL, mode="bias").normalizers(batch)) == {"mlm", "nsp"}
    without = Pretraining(PretrainingModel(tiny.CONFIG))
    assert set(without.normalizers(batch)) == set(without.coefficients(STEP)) == {"mlm"}


def test_normalizers_and_totals_of_parts_add_up_to_those_of_the_whole(params, batch, outcome):
    objective = GUIDED
    parts = [{name: field[rows] for name, field in batch.items()} for rows in (slice(0, 3), slice(3, 6))]
    halves = [call(objective, params, part) for part in parts]
    for whole, pieces in (
        (outcome.totals, [half.totals for half in halves]),
        (outcome.metrics, [half.metrics for half in halves]),
        (objective.normalizers(batch), [objective.normalizers(part) for part in parts]),
    ):
        added = jax.tree.map(jnp.add, *pieces)
        for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(added), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-6)


def test_coefficients():
    assert {k: float(v) for k, v in Pretraining(MODEL).coefficients(STEP).items()} == {"mlm": 1, "nsp": 1}
    guided = tiny.guided(MODEL, total_steps=10).coefficients
    np.testing.assert_allclose(
        [guided(jnp.int32(t))["ag"] for t in (0, 2, 5, 6, 10)], [3, 3, 15 / 8, 1.5, 0], rtol=1e-6
    )
    assert {float(guided(STEP)[term]) for term in ("mlm", "nsp")} == {1}
    assert set(tiny.guided(MODEL, mode="bias").coefficients(STEP)) == {"mlm", "nsp"}


def test_guided_term_is_before_alpha_and_equals_the_dense_loops(batch, outcome, expected):
    loss = reference.guidance_loss(
        expected[2], MIXED, batch["original"], batch["segment_ids"], "type_mean", "uniform", "uniform"
    )
    np.testing.assert_allclose(outcome.totals["ag"], loss, rtol=1e-5)
    np.testing.assert_allclose(outcome.metrics["ag_loss"], (loss, 5), rtol=1e-5)


def test_masses_for_each_layer(batch, outcome, expected):
    masses = reference.masses(expected[2], MIXED, batch["original"], batch["segment_ids"])
    assert {name for name in outcome.metrics if name.startswith("mass/")} == {"mass/next", "mass/period", "mass/first"}
    for (name, _), (total_N, rows) in zip(MIXED, masses, strict=True):
        total, weight = outcome.metrics[f"mass/{name}"]
        assert total.shape == weight.shape == (2,)
        np.testing.assert_allclose(total, total_N, rtol=1e-5)
        np.testing.assert_array_equal(weight, [rows, rows])


def test_guidance_leaves_the_other_terms_alone(params, batch, outcome):
    plain = call(PLAIN, params, batch)
    for term in ("mlm", "nsp"):
        np.testing.assert_allclose(outcome.totals[term], plain.totals[term], rtol=1e-6)


def test_periods_are_sought_in_the_tokens_as_they_were_before_masking(batch):
    changed = {**batch, "tokens": np.full_like(batch["tokens"], reference.PERIODS[0])}
    for one, other in zip(jax.tree.leaves(GUIDED.guides(batch)), jax.tree.leaves(GUIDED.guides(changed)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_empty_rows_add_nothing(params, batch):
    part = {name: field[:3] for name, field in batch.items()}
    more = {name: np.concatenate([field, np.zeros_like(field)]) for name, field in part.items()}
    few, many = call(GUIDED, params, part), call(GUIDED, params, more)
    for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
        if one.shape == other.shape:  # all but the statistics, which are per row
            np.testing.assert_allclose(one, other, rtol=1e-6)
    assert set(few.metrics) == set(many.metrics) and GUIDED.normalizers(more) == GUIDED.normalizers(part)


def test_a_batch_without_masks_or_tokens_is_not_nan(params, batch):
    empty = jax.tree.map(np.zeros_like, batch)
    objective = GUIDED
    gradient = jax.jit(
        jax.grad(lambda params: sum(tiny.evaluate(objective, params, empty, None, STEP).totals.values()))
    )(params)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
    assert all(float(total) == 0 for total in call(objective, params, empty).totals.values())


def test_bias_mode_adds_alpha_times_the_target_to_the_scores(params, batch, expected):
    objective = tiny.guided(MODEL, MIXED, mode="bias", alpha=8.0)
    alpha = 8.0 * 5 / 8
    bias = np.zeros((6, 3, 11, 11))
    for b, row in enumerate(zip(batch["original"], batch["segment_ids"], strict=True)):
        for head, (name, _) in enumerate(MIXED):
            for place in np.flatnonzero(row[1]):
                if reference.names_a_column(name, *row, place):
                    bias[b, head, place] = alpha * reference.dense_pattern(name, *row)[place]
    extra = np.random.default_rng(0).standard_normal((6, 1, 1, 11)).astype(np.float32)
    for more in (0 * extra, extra):  # what was plugged in before is kept
        outcome = call(objective, params, batch, Ports(attention_bias=jnp.asarray(more)))
        words, _, weights = reference.predict(tiny.float64(params), batch, tiny.CONFIG, bias_BHQK=bias + more)
        logs = np.take_along_axis(functions.log_softmax(words, axis=-1), batch["masked_labels"][..., None], -1)[..., 0]
        np.testing.assert_allclose(outcome.totals["mlm"], -(logs * batch["masked_weights"]).sum(), rtol=1e-5)
        assert set(outcome.totals) == {"mlm", "nsp"} and "ag_loss" not in outcome.metrics
        present = batch["segment_ids"].any(-1)
        masses = reference.masses(weights[:, present], MIXED, batch["original"][present], batch["segment_ids"][present])
        for (name, _), (total_N, _) in zip(MIXED, masses, strict=True):
            np.testing.assert_allclose(outcome.metrics[f"mass/{name}"][0], total_N, rtol=1e-5)
    assert not np.allclose(expected[2], weights, atol=0.1)


def test_dropout_only_with_random_keys(params, batch):
    objective = Pretraining(tiny.model(dropout=0.3, attention_dropout=0.3))
    quiet = call(objective, params, batch).totals["mlm"]
    assert quiet == call(PLAIN, params, batch).totals["mlm"]
    noisy = jax.jit(lambda key: tiny.evaluate(objective, params, batch, {"dropout": key}, STEP).totals["mlm"])
    one, again, other = (float(noisy(jax.random.key(seed))) for seed in (0, 0, 1))
    assert one == again != other and one != float(quiet)


def test_a_pattern_from_outside_guides(tmp_path, monkeypatch, params, batch, expected):
    (tmp_path / "patterns_for_guided.py").write_text(
        "from ag_jax.attention.patterns import Shift\n"
        "def two_back(tokens_BL, segments_BL, special):\n"
        "    return Shift(-2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = call(tiny.guided(MODEL, (("patterns_for_guided.two_back", 2),)), params, batch)
    total, weight = outcome.metrics["mass/patterns_for_guided.two_back"]
    mass_N, rows = np.zeros(2), 0
    for b, n in enumerate((11, 7, 5, 0, 9, 4)):
        for row in range(2, n):
            mass_N += expected[2][:, b, :2, row, row - 2].sum(-1)
            rows += 2
    np.testing.assert_allclose(total, mass_N, rtol=1e-5)
    np.testing.assert_array_equal(weight, [rows, rows])

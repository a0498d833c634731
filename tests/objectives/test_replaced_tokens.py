"""Replaced-token detection by hand, against the float64 numpy model, beside a generator, guided, and in parts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ag_jax import config_reader
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel, generator_parameters
from ag_jax.objectives import word_loss
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.predictions import WordDistributions
from ag_jax.objectives.replaced_tokens import ReplacedTokens, ReplacedTokensConfig, detection_loss, with_samples
from ag_jax.objectives.word_samples import gumbel, sample_words
from ag_jax.training import sharding
from ag_jax.training.sharding import MeshConfig, make_mesh
from ag_jax.training.step import loss_and_gradient
from tests import reference, tiny
from tests.cases import some

LENGTHS = (11, 7, 5, 0, 9, 4, 11, 2)
STEP = jnp.int32(5)
CONFIG = tiny.config(heads=4, width=16)
SMALL = tiny.config(heads=2, width=8, feedforward=10, embedding_width=16)
ALONE, BESIDE = ReplacedTokensModel(CONFIG), ReplacedTokensModel(CONFIG, SMALL)
UNIGRAM, MLM = ReplacedTokens(ALONE, 3.0), ReplacedTokens(BESIDE, 50.0)


def replaced(batch, seed=0):
    """The batch with random words at its masked positions, one of them the original."""
    rng, tokens = np.random.default_rng(seed), batch["original"].copy()
    slots = np.argwhere(batch["masked_weights"] > 0)
    for row, slot in slots[1:]:
        tokens[row, batch["masked_positions"][row, slot]] = rng.integers(3, tiny.VOCABULARY)
    return batch | {"tokens": tokens}


@pytest.fixture(scope="module")
def batch():
    return replaced(tiny.batch(LENGTHS))


@pytest.fixture(scope="module")
def masked():
    return tiny.batch(LENGTHS)


@pytest.fixture(scope="module")
def params(masked):
    return tiny.params(BESIDE, masked)


def alone(params):
    return {name: params[name] for name in ("encoder", "discriminator_head")}


@functools.cache
def compiled(objective):
    return jax.jit(lambda params, batch, key: tiny.evaluate(objective, params, batch, key, STEP))


def call(objective, params, batch, key=None):
    return compiled(objective)(params, batch, None if key is None else {"dropout": jax.random.key(key)})


def logits(params, batch):
    """Of the numpy model."""
    x, _ = reference.encode(params["encoder"], batch, CONFIG)
    head = params["discriminator_head"]
    return reference.linear(reference.gelu(reference.linear(x, head["dense"])), head["classifier"])[..., 0]


def test_loss_and_counts_by_hand():
    scores = jnp.array([[0.0, 2.0, -1.0, 3.0], [0.5, -200.0, 100.0, -7.0]])
    replaced_BL = jnp.array([[False, True, True, True], [False, True, True, False]])
    judged_BL = jnp.array([[True, True, True, False], [True, True, True, False]])
    loss, metrics = detection_loss(scores, replaced_BL, judged_BL)
    expected = np.log(2) + np.log1p(np.exp(-2)) + np.log1p(np.exp(1)) + np.log1p(np.exp(0.5)) + 200.0 + 0.0
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert {name: (float(total), float(weight)) for name, (total, weight) in metrics.items() if name != "rtd_loss"} == {
        "rtd_accuracy": (3, 6),  # 0 is no alarm; 2 and 100 are right
        "replaced_share": (4, 6),
        "replaced_found": (2, 4),
        "alarms_right": (2, 3),
    }
    np.testing.assert_allclose(metrics["rtd_loss"], (expected, 6), rtol=1e-6)


@pytest.mark.parametrize("ignored", [(), reference.DELIMITERS])
def test_equals_the_numpy_model(params, batch, ignored):
    scores = logits(tiny.float64(params), batch)
    judged = (batch["segment_ids"] > 0) & ~np.isin(batch["original"], ignored)
    labels = batch["tokens"] != batch["original"]
    probability = 1 / (1 + np.exp(-scores))
    loss = -(np.log(np.where(labels, probability, 1 - probability)) * judged).sum()
    outcome = call(ReplacedTokens(ALONE, 3.0, ignored), alone(params), batch)
    assert set(outcome.totals) == {"rtd"} and outcome.outputs.statistics is None
    np.testing.assert_allclose(outcome.totals["rtd"], loss, rtol=1e-5)
    number = 49 - (14 if ignored else 0)  # a delimiter at both ends of seven rows
    assert judged.sum() == number
    np.testing.assert_allclose(outcome.metrics["rtd_loss"], (loss, number), rtol=1e-5)
    right = (((scores > 0) == labels) & judged).sum()
    np.testing.assert_allclose(outcome.metrics["rtd_accuracy"], (right, number))
    np.testing.assert_allclose(outcome.metrics["replaced_share"], ((labels & judged).sum(), number))
    assert 0 < labels.sum() < batch["masked_weights"].sum(), "a word replaced by itself is not replaced"
    assert ReplacedTokens(ALONE, 3.0, ignored).normalizers(batch)["rtd"] == number


def test_normalizers_and_coefficients(batch, masked):
    assert {k: float(v) for k, v in UNIGRAM.normalizers(batch).items()} == {"rtd": 49}
    assert {k: float(v) for k, v in UNIGRAM.coefficients(STEP).items()} == {"rtd": 3}
    slots = float(masked["masked_weights"].sum())
    assert {k: float(v) for k, v in MLM.normalizers(masked).items()} == {"rtd": 49, "mlm": slots}
    assert {k: float(v) for k, v in MLM.coefficients(STEP).items()} == {"rtd": 50, "mlm": 1}
    guided = dataclasses.replace(tiny.guided(BESIDE), inner=MLM)
    assert set(guided.coefficients(STEP)) == {"rtd", "mlm", "ag"} and guided.primary_metric.metric == "rtd_loss"


def test_padding_and_empty_batches_add_nothing(params, batch):
    more = {name: np.concatenate([field, np.zeros_like(field)]) for name, field in batch.items()}
    few, many = ((of.totals, of.metrics) for of in (call(UNIGRAM, alone(params), rows) for rows in (batch, more)))
    for one, other in zip(jax.tree.leaves(few), jax.tree.leaves(many), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    empty = jax.tree.map(np.zeros_like, batch)
    loss = jax.jit(jax.grad(lambda params: sum(tiny.evaluate(MLM, params, empty, None, STEP).totals.values())))
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(loss(params)))


def test_the_tables_are_shared_and_nothing_else(params):
    names = {"/".join(key.key for key in path[:3]) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    assert {name for name in names if name.startswith("generator")} == {
        "generator/encoder/embeddings",
        "generator/encoder/layers",
        "generator/word_head/bias",
        "generator/word_head/dense",
        "generator/word_head/norm",
    }
    assert set(params["generator"]["encoder"]["embeddings"]) == {"projection"}
    assert set(params) == {"encoder", "discriminator_head", "generator"}
    assert set(params["encoder"]["embeddings"]) == {"word", "position", "segment", "norm"}
    assert params["discriminator_head"]["classifier"]["kernel"].shape == (16, 1)
    assert params["generator"]["word_head"]["dense"]["kernel"].shape == (8, 16)
    assert params["generator"]["encoder"]["layers"]["feedforward_in"]["kernel"].shape == (2, 8, 10)


@pytest.mark.parametrize(
    ("own", "settings"),
    some([(None, {}), (6, {}), (None, tiny.DEBERTA_V1)], (6, {}), (None, tiny.DEBERTA_V1)),
    ids=["shared", "projected", "deberta"],
)
def test_the_generator_is_a_masked_language_model_of_its_own(masked, own, settings):
    """Also where the encoder projects its embeddings, too, and where words are predicted
    from what a mask decoder makes.
    """
    small = tiny.config(**settings | {"heads": 2, "width": 8, "feedforward": 10, "embedding_width": own or 16})
    both = ReplacedTokensModel(tiny.config(**settings | {"heads": 4, "width": 16, "embedding_width": own}), small)
    params = tiny.params(both, masked)
    found = call(ReplacedTokens(both), params, masked)
    expected = jax.jit(lambda params: tiny.evaluate(Pretraining(PretrainingModel(small)), params, masked, None, STEP))(
        generator_parameters(params)
    )
    np.testing.assert_allclose(found.totals["mlm"], expected.totals["mlm"], rtol=1e-6)
    np.testing.assert_allclose(found.metrics["mlm_accuracy"], expected.metrics["mlm_accuracy"])
    assert ("projection" in params["encoder"]["embeddings"]) == bool(own)


def test_the_encoder_sees_samples_and_judges_them(params, masked):
    predictions = BESIDE.apply({"params": params}, masked, deterministic=True, method="generate")
    samples = sample_words(predictions, jax.random.fold_in(jax.random.key(0), 2))
    shown = masked | {"tokens": np.asarray(with_samples(masked, samples))}
    assert (shown["tokens"] != masked["original"]).sum() > 5
    chosen = np.zeros(shown["tokens"].shape, bool)
    for row, slot in np.argwhere(masked["masked_weights"] > 0):
        chosen[row, masked["masked_positions"][row, slot]] = True
        assert shown["tokens"][row, masked["masked_positions"][row, slot]] == samples[row, slot]
    np.testing.assert_array_equal(shown["tokens"][~chosen], masked["original"][~chosen])
    outcome, expected = call(MLM, params, masked), call(UNIGRAM, alone(params), shown)
    np.testing.assert_allclose(outcome.totals["rtd"], expected.totals["rtd"], rtol=1e-6)
    assert outcome.metrics["replaced_share"] == expected.metrics["replaced_share"]


def test_no_gradient_of_the_detection_reaches_the_generator(params, masked):
    def gradient(term):
        return jax.jit(jax.grad(lambda params: tiny.evaluate(MLM, params, masked, None, STEP).totals[term]))(params)

    of_rtd, of_mlm = gradient("rtd"), gradient("mlm")
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_rtd["generator"]))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_mlm["discriminator_head"]))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_mlm["encoder"]["layers"]))
    for gradient_of in (of_rtd, of_mlm):  # what is shared learns from both
        assert np.asarray(gradient_of["encoder"]["embeddings"]["word"]["embedding"]).any()
    assert np.asarray(of_mlm["generator"]["encoder"]["layers"]["attention"]["query"]["kernel"]).any()


def test_evaluation_always_draws_the_same_and_training_draws_anew(params, masked):
    assert call(MLM, params, masked).totals["rtd"] == call(MLM, params, masked).totals["rtd"]
    one, again, other = (float(call(MLM, params, masked, key).totals["rtd"]) for key in (1, 1, 2))
    assert one == again != other
    assert call(MLM, params, masked, 1).totals["mlm"] == call(MLM, params, masked).totals["mlm"]


@pytest.mark.parametrize("together", [2, 32])
def test_samples_follow_the_softmax(monkeypatch, together):
    monkeypatch.setattr(word_loss, "POSITIONS", together)
    rng = np.random.default_rng(0)
    hidden_BMD = np.broadcast_to(rng.standard_normal((1, 5, 3)), (6000, 5, 3)).astype(np.float32)
    embedding_VD, bias_V = rng.standard_normal((7, 3)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    words = WordDistributions(jnp.asarray(hidden_BMD), jnp.asarray(embedding_VD), jnp.asarray(bias_V))
    drawn_BM = np.asarray(jax.jit(sample_words)(words, jax.random.key(3)))
    assert drawn_BM.dtype == np.int32 and drawn_BM.shape == (6000, 5)
    scores = np.float64(hidden_BMD[0]) @ embedding_VD.T + bias_V
    probability = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    for position in range(5):
        counts = np.bincount(drawn_BM[:, position], minlength=7)
        assert stats.chisquare(counts, 6000 * probability[position]).pvalue > 1e-3
    independent = np.corrcoef(drawn_BM.T)[np.triu_indices(5, 1)]
    assert np.abs(independent).max() < 0.06


def test_noise_is_gumbels():
    noise = np.asarray(gumbel(jax.random.key(1), (50_000,)))
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3 and np.isfinite(noise).all()


def test_never_all_scores_at_once(monkeypatch, params):
    monkeypatch.setattr(word_loss, "POSITIONS", 2)
    long = tiny.batch(LENGTHS, masked=9)
    text = str(jax.make_jaxpr(lambda params: tiny.evaluate(MLM, params, long, None, STEP).totals)(params))
    assert f"f32[8,2,{tiny.VOCABULARY}]" in text and f"[8,9,{tiny.VOCABULARY}]" not in text


def test_slots_without_weight_change_nothing():
    batch = {
        "original": jnp.array([[10, 11, 12, 13], [20, 21, 22, 23]]),
        "masked_positions": jnp.array([[1, 3, 0], [0, 0, 0]]),
        "masked_weights": jnp.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
    }
    shown = with_samples(batch, jnp.array([[5, 6, 7], [8, 9, 4]]))
    np.testing.assert_array_equal(shown, [[10, 5, 12, 6], [20, 21, 22, 23]])


def by_parts(objective, params, batch, microbatches):
    def compute(params, batch, key, step):
        return loss_and_gradient(params, batch, key, step, objective=objective, microbatches=microbatches)

    return jax.jit(compute)(params, batch, jax.random.key(0), STEP)


def difference(one, other):
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tiny.float64(tree))]) for tree in (one, other))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("guided", some([False, True], True))
def test_accumulation_of_the_unigram_variant_is_exact(params, batch, guided):
    objective = dataclasses.replace(tiny.guided(ALONE), inner=UNIGRAM) if guided else UNIGRAM
    whole, parts = (by_parts(objective, alone(params), batch, number) for number in (1, 4))
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-6)
    assert difference(parts[2], whole[2]) <= 1e-6
    for name, (total, weight) in parts[1].items():
        np.testing.assert_allclose(total, whole[1][name][0], rtol=2e-6, err_msg=name)
        np.testing.assert_array_equal(weight, whole[1][name][1], err_msg=name)
    mean = whole[1]["rtd_loss"][0] / whole[1]["rtd_loss"][1]
    ag = whole[1]["ag_loss"][0] / whole[1]["ag_loss"][1] * 3 * 5 / 8 if guided else 0.0
    np.testing.assert_allclose(whole[0], 3 * mean + ag, rtol=1e-6)


@pytest.mark.exhaustive
def test_accumulation_beside_a_generator_keeps_what_does_not_hang_on_samples(params, masked):
    whole, parts = (by_parts(MLM, params, masked, number) for number in (1, 4))
    np.testing.assert_allclose(parts[1]["mlm_loss"], whole[1]["mlm_loss"], rtol=2e-6)
    assert difference(parts[2]["generator"], whole[2]["generator"]) <= 1e-6
    assert parts[1]["rtd_loss"][1] == whole[1]["rtd_loss"][1]
    assert parts[1]["rtd_loss"][0] != whole[1]["rtd_loss"][0]


def test_guidance_is_of_the_encoder_alone(params, masked):
    guided = dataclasses.replace(tiny.guided(BESIDE), inner=MLM)
    outcome, plain = call(guided, params, masked), call(MLM, params, masked)
    for term in ("rtd", "mlm"):
        np.testing.assert_allclose(outcome.totals[term], plain.totals[term], rtol=1e-6)
    predictions = BESIDE.apply({"params": params}, masked, deterministic=True, method="generate")
    samples = sample_words(predictions, jax.random.fold_in(jax.random.key(0), 2))
    shown = masked | {"tokens": np.asarray(with_samples(masked, samples))}
    _, weights = reference.encode(tiny.float64(params)["encoder"], shown, CONFIG)
    loss = reference.guidance_loss(
        weights, tiny.ASSIGNMENT, masked["original"], masked["segment_ids"], "type_mean", "uniform", "uniform"
    )
    np.testing.assert_allclose(outcome.totals["ag"], loss, rtol=1e-5)


@pytest.mark.parametrize("shape", some([((8, 1, 1),), ((2, 2, 2),)], ((2, 2, 2),)))
def test_the_same_on_any_mesh(params, masked, shape, eight_devices):
    noisy = ReplacedTokens(
        ReplacedTokensModel(tiny.config(heads=4, width=16, dropout=0.1), dataclasses.replace(SMALL, dropout=0.1))
    )
    mesh = make_mesh(MeshConfig(*shape), eight_devices)
    rngs = {"dropout": jax.random.key(4)}
    boxed = jax.eval_shape(lambda: noisy.model.init(jax.random.key(0), masked, deterministic=True))["params"]
    spread = jax.device_put(params, sharding.parameter_shardings(boxed, mesh))
    compute = jax.jit(lambda params, batch: tiny.evaluate(noisy, params, batch, rngs, STEP))
    expected, found = compute(params, masked), compute(spread, sharding.place_batch(masked, mesh))
    for name in expected.totals:
        np.testing.assert_allclose(found.totals[name], expected.totals[name], rtol=1e-5)
    np.testing.assert_array_equal(found.metrics["replaced_share"], expected.metrics["replaced_share"])


def test_config():
    assert ReplacedTokensConfig().coefficient == ReplacedTokensConfig(generator="unigram").coefficient == 1
    assert ReplacedTokensConfig(generator="mlm").coefficient == 50
    assert ReplacedTokensConfig(generator="mlm", weight=2.0).coefficient == 2
    for settings, message in (
        ({"generator": "bert"}, "replaced_tokens.generator must be one of none, unigram, mlm, got 'bert'"),
        ({"tokens": "specials"}, "replaced_tokens.tokens must be one of all, words"),
        ({"weight": -1.0}, "replaced_tokens.weight must be above 0, or none, got -1.0"),
        ({"weight": float("nan")}, "replaced_tokens.weight must be"),
        ({"generator_fraction": 0.0}, "generator_fraction must be above 0 and at most 1, got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            config_reader.check(ReplacedTokensConfig(**settings), "replaced_tokens")

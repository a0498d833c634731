"""Replaced-token detection by hand, and against the float64 numpy model, alone and beside a generator."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import special as functions
from scipy import stats

from ag_jax.models.heads import task_encoder
from ag_jax.models.replaced_tokens import ReplacedTokensModel, generator_parameters
from ag_jax.objectives import word_loss
from ag_jax.objectives.config import ReplacedTokensConfig
from ag_jax.objectives.predictions import WordDistributions
from ag_jax.objectives.replaced_tokens import ReplacedTokens, with_samples
from ag_jax.objectives.word_samples import gumbel, sample_words
from tests import reference, tiny
from tests.cases import some

STEP = jnp.int32(5)
SMALL = {"heads": 2, "width": 8, "feedforward": 10}
BESIDE = ReplacedTokensModel(tiny.CONFIG, tiny.config(**SMALL, embedding_width=12))


@pytest.fixture(scope="module")
def masked():
    return tiny.batch((11, 7, 5, 0, 9, 4, 11, 2))


def detect(params, batch, ignored, config):
    """Loss, metrics and number of tokens, from the numpy model."""
    hidden, weights = reference.encode(params["encoder"], batch, task_encoder(config))
    head = params["discriminator_head"]
    inner = reference.gelu(reference.linear(hidden, head["dense"]))
    scores = reference.linear(inner, head["classifier"])[..., 0]
    judged = (batch["segment_ids"] > 0) & ~np.isin(batch["original"], ignored)
    labels = batch["tokens"] != batch["original"]
    loss = (np.logaddexp(0, np.where(labels, -scores, scores)) * judged).sum()
    replaced, alarms, number = labels & judged, (scores > 0) & judged, judged.sum()
    found = (replaced & alarms).sum()
    assert 0 < found < min(replaced.sum(), alarms.sum()) < alarms.sum() + replaced.sum() < number
    metrics = {
        "rtd_loss": (loss, number),
        "rtd_accuracy": ((judged & (alarms == replaced)).sum(), number),
        "replaced_share": (replaced.sum(), number),
        "replaced_found": (found, replaced.sum()),
        "alarms_right": (found, alarms.sum()),
    }
    return loss, metrics, weights


def check_detection(outcome, loss, metrics):
    np.testing.assert_allclose(outcome.totals["rtd"], loss, rtol=1e-5)
    for name, expected in metrics.items():
        np.testing.assert_allclose(outcome.metrics[name], expected, rtol=1e-5, err_msg=name)


def test_equals_the_numpy_model(masked):
    """There is no generator; a word that is replaced by itself is not replaced, and ends of texts are not judged."""
    rng, tokens = np.random.default_rng(0), masked["original"].copy()
    for row, slot in np.argwhere(masked["masked_weights"] > 0)[1:]:
        tokens[row, masked["masked_positions"][row, slot]] = rng.integers(3, tiny.VOCABULARY)
    batch, objective = masked | {"tokens": tokens}, ReplacedTokens(ReplacedTokensModel(tiny.CONFIG), 3.0, (0, 2))
    params = tiny.params(objective.model, batch)
    outcome = tiny.evaluated(objective, params, batch, None, STEP)
    loss, metrics, _ = detect(tiny.float64(params), batch, (0, 2), tiny.CONFIG)
    check_detection(outcome, loss, metrics)
    assert set(outcome.totals) == {"rtd"} and metrics["rtd_loss"][1] == 49 - 14
    assert 0 < metrics["replaced_share"][0] < batch["masked_weights"].sum()
    assert {k: float(v) for k, v in objective.normalizers(batch).items()} == {"rtd": 35}
    assert {k: float(v) for k, v in objective.coefficients(STEP).items()} == {"rtd": 3}


@pytest.mark.parametrize(
    ("own", "settings"),
    some([(None, {}), (6, {}), (None, tiny.DEBERTA_V1)], (6, {}), (None, tiny.DEBERTA_V1)),
    ids=["shared", "projected", "deberta"],
)
def test_beside_a_generator(masked, own, settings):
    """The generator is a masked language model; the encoder sees its samples, judges them, and is guided."""
    small = tiny.config(**settings | SMALL, embedding_width=own or 12)
    model = ReplacedTokensModel(tiny.config(**settings, embedding_width=own), small)
    objective = dataclasses.replace(tiny.guided(model), inner=ReplacedTokens(model, 50.0))
    params = tiny.params(model, masked, seed=0 if own or settings else 2)  # with which some replaced words are found
    outcome = tiny.evaluated(objective, params, masked, None, STEP)

    generator = tiny.float64(generator_parameters(params))
    assert ("projection" in params["encoder"]["embeddings"]) == bool(own)
    if not settings:  # the mask decoder's positions are the generator's own
        assert set(params["generator"]["encoder"]["embeddings"]) == {"projection"}, "the other tables are shared"
    _, decoded, _ = reference.encode_and_decode(generator["encoder"], masked, small)
    at_masks = np.stack([row[places] for row, places in zip(decoded, masked["masked_positions"], strict=True)])
    head = generator["word_head"]
    inner = reference.gelu(reference.linear(at_masks, head["dense"]))
    inner = reference.layer_norm(inner, head["norm"], small.layer_norm_epsilon)
    words = inner @ generator["encoder"]["embeddings"]["word"]["embedding"].T + head["bias"]
    logs, labels, weights = functions.log_softmax(words, axis=-1), masked["masked_labels"], masked["masked_weights"]
    loss = -(np.take_along_axis(logs, labels[..., None], -1)[..., 0] * weights).sum()
    np.testing.assert_allclose(outcome.totals["mlm"], loss, rtol=1e-5)
    np.testing.assert_allclose(outcome.metrics["mlm_loss"], (loss, weights.sum()), rtol=1e-5)
    right = ((words.argmax(-1) == labels) * weights).sum()
    np.testing.assert_allclose(outcome.metrics["mlm_accuracy"], (right, weights.sum()))
    counts = np.bincount(words.argmax(-1).ravel(), weights.ravel(), minlength=words.shape[-1])
    np.testing.assert_array_equal(outcome.metrics["repetition/predicted"][0], counts)

    predictions = outcome.outputs.predictions["generator"]
    samples = jax.jit(sample_words)(predictions, jax.random.fold_in(jax.random.key(0), 2))
    shown = masked | {"tokens": masked["original"].copy()}
    for row, slot in np.argwhere(weights > 0):
        shown["tokens"][row, masked["masked_positions"][row, slot]] = samples[row, slot]
    assert (shown["tokens"] != masked["original"]).sum() > 5
    np.testing.assert_array_equal(outcome.outputs.encoder_batch["tokens"], shown["tokens"])
    loss, metrics, attention = detect(tiny.float64(params), shown, (), model.config)
    check_detection(outcome, loss, metrics)
    arguments = masked["original"], masked["segment_ids"], "type_mean", "uniform", "uniform"
    loss = reference.guidance_loss(attention, tiny.ASSIGNMENT, *arguments)
    np.testing.assert_allclose(outcome.totals["ag"], loss, rtol=1e-5)
    found = [
        {k: float(v) for k, v in of.items()} for of in (objective.normalizers(masked), objective.coefficients(STEP))
    ]
    assert found == [{"rtd": 49, "mlm": weights.sum(), "ag": 7}, {"rtd": 50, "mlm": 1, "ag": 15 / 8}]


def test_no_gradient_of_the_detection_reaches_the_generator(masked):
    """Shared parameters learn from both losses; in training, samples are drawn anew, and the generator's loss stays."""
    objective, params = ReplacedTokens(BESIDE, 50.0), tiny.params(BESIDE, masked)

    @jax.jit
    def slopes(params, rngs):
        def totals(params):
            found = tiny.evaluate(objective, params, masked, rngs, STEP).totals
            return found, found

        return jax.jacrev(totals, has_aux=True)(params)

    one, two = jax.random.key(1), jax.random.key(2)
    gradients, first = slopes(params, {"dropout": one})
    _, other = slopes(params, {"dropout": two})
    kept = tiny.evaluated(objective, params, masked, {"dropout": two, "samples": one}, STEP).totals
    assert first == kept and first["rtd"] != other["rtd"] and first["mlm"] == other["mlm"]
    of_rtd, of_mlm = gradients["rtd"], gradients["mlm"]
    for untouched in (of_rtd["generator"], of_mlm["discriminator_head"], of_mlm["encoder"]["layers"]):
        assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(untouched))
    for gradient in (of_rtd, of_mlm):
        assert np.asarray(gradient["encoder"]["embeddings"]["word"]["embedding"]).any()
    assert np.asarray(of_mlm["generator"]["encoder"]["layers"]["attention"]["query"]["kernel"]).any()


def test_samples_follow_the_softmax(monkeypatch, eight_devices):
    """A few positions at a time, and the same ones on several devices."""
    monkeypatch.setattr(word_loss, "POSITIONS", 2)
    rng = np.random.default_rng(0)
    hidden_BMD = np.broadcast_to(rng.standard_normal((1, 5, 3)), (6000, 5, 3)).astype(np.float32)
    embedding_VD, bias_V = rng.standard_normal((7, 3)).astype(np.float32), rng.standard_normal(7).astype(np.float32)
    sample = jax.jit(sample_words)
    drawn_BM = np.asarray(
        sample(WordDistributions(*map(jnp.asarray, (hidden_BMD, embedding_VD, bias_V))), jax.random.key(3))
    )
    assert drawn_BM.dtype == np.int32 and drawn_BM.shape == (6000, 5)
    scores = np.float64(hidden_BMD[0]) @ embedding_VD.T + bias_V
    for position, probability_V in enumerate(functions.softmax(scores, axis=-1)):
        counts = np.bincount(drawn_BM[:, position], minlength=7)
        assert stats.chisquare(counts, 6000 * probability_V).pvalue > 1e-3
    assert np.abs(np.corrcoef(drawn_BM.T)[np.triu_indices(5, 1)]).max() < 0.06, "positions are independent"
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=eight_devices)
    places = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), (), ()))
    spread = [jax.device_put(of, place) for of, place in zip((hidden_BMD, embedding_VD, bias_V), places, strict=True)]
    np.testing.assert_array_equal(sample(WordDistributions(*spread), jax.random.key(3)), drawn_BM)


def test_noise_is_gumbels():
    noise = np.asarray(gumbel(jax.random.key(1), (50_000,)))
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3 and np.isfinite(noise).all()


def test_slots_without_weight_change_nothing():
    batch = {
        "original": jnp.array([[10, 11, 12, 13], [20, 21, 22, 23]]),
        "masked_positions": jnp.array([[1, 3, 0], [0, 0, 0]]),
        "masked_weights": jnp.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
    }
    shown = with_samples(batch, jnp.array([[5, 6, 7], [8, 9, 4]]))
    np.testing.assert_array_equal(shown, [[10, 5, 12, 6], [20, 21, 22, 23]])


def test_the_usual_coefficient():
    for settings, coefficient in (
        ({}, 1),
        ({"generator": "unigram"}, 1),
        ({"generator": "mlm"}, 50),
        ({"generator": "mlm", "weight": 2.0}, 2),
    ):
        assert ReplacedTokensConfig(**settings).coefficient == coefficient

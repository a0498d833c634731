"""Pre-training with guidance of all layers or some, against the float64 numpy model and loops; texts may share rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.attention.config import GuidanceConfig
from ag_jax.models.encoder import Ports
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.pretraining import build
from tests import reference, tiny
from tests.objectives.test_plateau import collapse, repetition

MODEL = tiny.model()
STEP = jnp.int32(5)  # of 10: with the hold of 2 steps, alpha has fallen to 5/8
MIXED = (("next", 1), ("period", 1), ("first", 1))


@pytest.fixture(scope="module")
def batch():
    """A text without and texts with full stops, one of which is masked in what the encoder reads."""
    batch = tiny.mixed_batch()
    for name in ("tokens", "original"):
        for text in (np.s_[1, :7], np.s_[4, 3:10], np.s_[5, 4:]):
            batch[name][text] = np.where(np.isin(batch[name][text], reference.PERIODS), 7, batch[name][text])
    place = batch["masked_positions"][2, 0]
    batch["original"][2, place] = batch["masked_labels"][2, 0] = reference.PERIODS[0]
    assert batch["tokens"][2, place] == 3 and batch["masked_weights"][2, 0]
    return batch


@pytest.fixture(scope="module")
def params(batch):
    return tiny.params(MODEL, batch)


def check_words(outcome, words, following, batch):
    """Terms and metrics of words and next sentences, from numpy's logits."""
    logs, weights, labels = functions.log_softmax(words, axis=-1), batch["masked_weights"], batch["masked_labels"]
    mlm = -(np.take_along_axis(logs, labels[..., None], -1)[..., 0] * weights).sum()
    present = np.array([1, 1, 1, 0, 1, 1])
    nsp = -(functions.log_softmax(following, axis=-1)[np.arange(6), batch["next_labels"]] * present).sum()
    for term, total, number, right in (
        ("mlm", mlm, weights.sum(), ((words.argmax(-1) == labels) * weights).sum()),
        ("nsp", nsp, 5, ((following.argmax(-1) == batch["next_labels"]) * present).sum()),
    ):
        np.testing.assert_allclose(outcome.totals[term], total, rtol=1e-5)
        np.testing.assert_allclose(outcome.metrics[f"{term}_loss"], (total, number), rtol=1e-5)
        np.testing.assert_allclose(outcome.metrics[f"{term}_accuracy"], (right, number))


def check_masses(outcome, weights, batch):
    present = batch["segment_ids"].any(-1)
    of = [batch[name][present] for name in ("original", "segment_ids")]
    for (name, _), (total_N, rows) in zip(MIXED, reference.masses(weights[:, present], MIXED, *of), strict=True):
        total, weight = outcome.metrics[f"mass/{name}"]
        np.testing.assert_allclose(total, total_N, rtol=1e-5)
        np.testing.assert_array_equal(weight, [rows, rows])
    assert sum(name.startswith("mass/") for name in outcome.metrics) == 3


def test_terms_and_metrics(batch, params):
    """The term of guidance is before alpha; periods are sought in the tokens as they were before masking."""
    objective = tiny.guided(MODEL, MIXED)
    words, following, weights = reference.predict(tiny.float64(params), batch, tiny.CONFIG)
    batch = batch | {"masked_labels": batch["masked_labels"].copy()}
    batch["masked_labels"][1, 0] = words[1, 0].argmax()  # one that is right
    outcome = tiny.evaluated(objective, params, batch, None, STEP)
    assert set(outcome.totals) == {"mlm", "nsp", "ag"}
    check_words(outcome, words, following, batch)
    check_masses(outcome, weights, batch)
    hidden, _ = reference.encode(tiny.float64(params)["encoder"], batch, tiny.CONFIG)
    plateau = collapse(hidden, batch) | repetition(words.argmax(-1), batch, words.shape[-1])
    for name, pair in plateau.items():
        np.testing.assert_allclose(outcome.metrics[name][0], pair[0], rtol=2e-5, err_msg=name)
        assert outcome.metrics[name][1] == pair[1]
    arguments = batch["original"], batch["segment_ids"], "type_mean", "uniform", "uniform"
    loss = reference.guidance_loss(weights, MIXED, *arguments)
    np.testing.assert_allclose(outcome.totals["ag"], loss, rtol=1e-5)
    np.testing.assert_allclose(outcome.metrics["ag_loss"], (loss, 6), rtol=1e-5)
    masked = float(batch["masked_weights"].sum())
    assert {k: float(v) for k, v in objective.normalizers(batch).items()} == {"mlm": masked, "nsp": 5, "ag": 6}
    found = [float(objective.coefficients(jnp.int32(step))["ag"]) for step in (0, 2, 5, 6, 10)]
    np.testing.assert_allclose(found, [3, 3, 15 / 8, 1.5, 0], rtol=1e-6)
    assert {float(objective.coefficients(STEP)[term]) for term in ("mlm", "nsp")} == {1}
    without = Pretraining(PretrainingModel(tiny.CONFIG))
    assert set(without.normalizers(batch)) == set(without.coefficients(STEP)) == {"mlm"}


def test_bias_mode_adds_alpha_times_the_target_to_the_scores(batch, params):
    """The bias is added to one that the ports have already; it is found in what the model reads."""
    read = batch | {"original": batch["tokens"]}
    assert (np.isin(batch["tokens"], reference.PERIODS) != np.isin(batch["original"], reference.PERIODS)).any()
    objective = tiny.guided(MODEL, MIXED, mode="bias", alpha=8.0)
    bias = np.zeros((6, 3, 11, 11))
    for b, row in enumerate(zip(read["original"], batch["segment_ids"], strict=True)):
        for head, (name, _) in enumerate(MIXED):
            for place in np.flatnonzero(row[1]):
                if reference.names_a_column(name, *row, place):
                    bias[b, head, place] = 5 * reference.dense_pattern(name, *row)[place]
    more = np.random.default_rng(0).standard_normal((6, 1, 1, 11)).astype(np.float32)
    outcome = tiny.evaluated(objective, params, batch, None, STEP, Ports(attention_bias=jnp.asarray(more)))
    words, following, weights = reference.predict(tiny.float64(params), batch, tiny.CONFIG, bias_BHQK=bias + more)
    check_words(outcome, words, following, batch)
    check_masses(outcome, weights, read)
    assert (
        set(outcome.totals) == set(objective.normalizers(batch)) == set(objective.coefficients(STEP)) == {"mlm", "nsp"}
    )
    assert "ag_loss" not in outcome.metrics


def test_columns_of_pointers_lead_to_positions():
    """Offsets count from their tokens, none of them stays none in rows of any length, and columns keep their names."""
    length, absent = 2**15 + 2, -(2**15)
    offsets = np.full((1, 2, length), absent, np.int16)
    offsets[0, :, [0, 1, 2**15 + 1]] = [[1, 2], [-1, absent], [-2, -3]]
    rows = dict.fromkeys(("tokens", "segment_ids", "token_type_ids"), np.ones((1, length), np.int32))
    guided = dataclasses.replace(tiny.guided(MODEL, (("far", 1), ("head", 2))), columns=("head", "far"))
    far, head = (target.column_BQ[0] for target in guided.guides(rows | {"pointers": offsets}).targets)
    expected = np.full((2, length), -1)
    expected[:, [0, 1, 2**15 + 1]] = [[1, 0, 2**15 - 1], [2, -1, 2**15 - 2]]
    np.testing.assert_array_equal([head, far], expected)
    bias = dataclasses.replace(guided, config=GuidanceConfig("bias"))  # custom patterns must not find annotation
    with pytest.raises(ValueError, match="'far'"):
        bias.guides(rows | {"pointers": offsets})


WINDOWED, PLAIN = tiny.MODERNBERT | {"layers": 3}, {"layers": 3}  # the middle one of the windowed layers has a window


def expected(weights_NBHQK, batch, config, layers, absent):
    """Return L_AG, summed over texts, and the mass on the target of each pattern in each layer, by its definition."""
    total, masses = 0.0, {name: np.full((config.layers, 2), 0.0) for name in ("next", "first")}
    segments_BL = batch["segment_ids"]
    for layer in layers:
        reach = config.window // 2 if config.local_layers[layer] else 99
        for name, heads in (("next", [0]), ("first", [1, 2])):
            for b, q in np.argwhere(segments_BL > 0):
                text = reference.text_of(segments_BL[b], q)
                seen = [k for k in text if abs(k - q) <= reach]
                wanted = [k for k in ([q + 1] if name == "next" else [text[0]]) if k in seen]
                P = np.zeros(len(segments_BL[b]))
                P[wanted or seen] = 1 / len(wanted or seen)
                for head in heads:
                    H = weights_NBHQK[layer, b, head, q]
                    if wanted or name == "next" or absent == "uniform":
                        total += ((H - P) ** 2).sum() / (len(heads) * len(text) ** 2)
                    if wanted:
                        masses[name][layer] += H[wanted].sum(), 1
    return total, masses


@functools.cache
def case(is_windowed):
    """Return a model, its batch and parameters, and the attention of all layers."""
    model, batch = tiny.model(**(WINDOWED if is_windowed else PLAIN)), tiny.mixed_batch()
    params = tiny.params(model, batch)
    run = jax.jit(lambda params: model.apply({"params": params}, batch, deterministic=True, mutable=["intermediates"]))
    weights = run(params)[1]["intermediates"]["encoder"]["layers"]["attention"]["attention_weights"][0]
    return model, batch, params, np.asarray(weights, np.float64)


def guided(model, **settings):
    config = GuidanceConfig("loss", heads="next:1,first:2", **settings)
    inner, attack = Pretraining(model), AdversarialConfig()
    return build.guided_and_attacked(inner, config, attack, model.config, tiny.SPECIAL, steps=10)


@pytest.mark.parametrize(
    ("is_windowed", "settings", "layers"),
    [
        pytest.param(False, {"layers": "0,2"}, [0, 2], marks=pytest.mark.exhaustive),
        (True, {"layers": "global"}, [0, 2]),
        (True, {"layers": "1-2", "absent": "ignore"}, [1, 2]),
    ],
)
def test_guidance_of_some_layers(is_windowed, settings, layers):
    """The loss and the masses are those of the guided layers, of which some have a window."""
    model, batch, params, weights = case(is_windowed)
    found = tiny.evaluated(guided(model, **settings), params, batch, None, jnp.int32(0))
    loss, masses = expected(weights, batch, model.config, layers, settings.get("absent", "uniform"))
    np.testing.assert_allclose(found.totals["ag"], loss, rtol=1e-5)
    for name, rows in masses.items():
        np.testing.assert_allclose(np.stack(found.metrics[f"mass/{name}"], 1), rows, rtol=1e-5, atol=1e-6)


def test_patterns_of_columns_in_windows_need_a_rule():
    model, batch = tiny.model(**WINDOWED), tiny.mixed_batch()
    with pytest.raises(ValueError, match="pattern first .*absent=ignore"):
        guided(model).guides(batch)

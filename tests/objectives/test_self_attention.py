"""Adversarial self-attention: equations 9 and 10 in numpy for every head and encoder, and who
learns what from which term.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import adversary, guidance
from ag_jax.attention.attack import MaskCounts
from ag_jax.models.heads import HEADS, KINDS
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.objectives.adversarial.self_attention import mask_metrics
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.replaced_tokens import ReplacedTokens
from ag_jax.objectives.sentences import Sentences
from tests import reference, tiny
from tests.cases import some
from tests.objectives.adversaries import RNGS, STEP, Keeper, attacked, params_of, symmetric
from tests.objectives.test_supervised import flat_rows, numpy_logits

HEAD = Sentences("head", texts=2)
ENCODERS = ("roberta", "electra", "deberta_v1", "deberta_v2")


@functools.cache
def compiled(objective):
    return jax.jit(lambda params, batch: tiny.evaluate(objective, params, batch, RNGS, STEP))


def check_units(outcome, keeper, weight):
    """The penalty and what is said of the masks."""
    kept, everything = keeper.kept, keeper.inside.sum()
    np.testing.assert_allclose(outcome.totals["penalty"], kept.sum(), rtol=1e-6)
    np.testing.assert_allclose(outcome.metrics["kept_units"], (kept.sum(), weight), rtol=1e-6)
    np.testing.assert_allclose(outcome.metrics["masked/layers"][0], everything - kept, rtol=1e-6)
    total = len(kept) * everything
    np.testing.assert_allclose(outcome.metrics["masked"], (total - kept.sum(), total), rtol=1e-6)
    assert 0.15 < kept.sum() / total < 0.95


@pytest.mark.parametrize("kind", some(KINDS, "regression", "choice", "tagging", "span_or_none"))
def test_equation_9_for_every_head(kind):
    batch = tiny.task_batch(kind)
    objective = attacked(tiny.supervised(tiny.task_model(kind)), tau=0.3)
    params = params_of(objective, batch)
    outcome = compiled(objective)(params, batch)
    exact, keeper = tiny.float64(params), Keeper(params["adversary"], flat_rows(batch)["segment_ids"])
    clean, other = (numpy_logits(kind, "roberta", exact, batch, keep) for keep in (None, keeper))
    expected = 0.0
    for row in np.flatnonzero(batch["weights"]):
        if kind == "classification":
            expected += symmetric(clean[row], other[row])
        elif kind == "regression":
            expected += (clean[row, 0] - other[row, 0]) ** 2
        elif HEADS[kind].has_candidates:
            several = batch["labels"].shape[1]
            there = batch["choice_weights"][row] > 0
            expected += symmetric(*(logits.reshape(-1, several)[row, there] for logits in (clean, other)))
        elif kind == "tagging":
            expected += sum(
                symmetric(clean[row, at], other[row, at]) for at in np.flatnonzero(batch["label_weights"][row])
            )
        elif {batch["starts"][row], batch["ends"][row]} <= set(np.flatnonzero(batch["span_weights"][row])):
            places = np.flatnonzero(batch["span_weights"][row])
            sides = [symmetric(clean[row, places, side], other[row, places, side]) / 2 for side in (0, 1)]
            if kind == "span_or_none":  # as in the loss, the classifier weighs as much as both ends
                sides = [side / 2 for side in sides]
                sides.append(symmetric(*(np.array([logits[row, 0, 2], 0.0]) for logits in (clean, other))) / 2)
            expected += sum(sides)
    assert set(outcome.totals) == {"task", "asa", "penalty"} and expected > 0.01
    np.testing.assert_allclose(outcome.totals["asa"], expected, rtol=2e-4)
    weights = objective.normalizers(batch)
    assert weights["asa"] == weights["task"] and outcome.metrics["asa_loss"][1] == weights["asa"]
    texts = (flat_rows(batch)["segment_ids"] > 0).any(-1).sum()
    assert weights["penalty"] == texts
    check_units(outcome, keeper, texts)
    coefficients = {term: float(value) for term, value in objective.coefficients(STEP).items()}
    assert coefficients == pytest.approx({"task": 1, "asa": 1, "penalty": 0.09})
    plain = compiled(objective.inner)(params, batch)
    np.testing.assert_allclose(outcome.totals["task"], plain.totals["task"], rtol=1e-6)


@pytest.mark.parametrize(
    ("heads", "name"),
    some(
        itertools.product(["shared", "own"], ENCODERS),
        ("shared", "deberta_v2"),
        ("own", "deberta_v1"),
    ),
)
def test_equation_10_for_every_encoder(name, heads):
    """Masked words, next sentence and first positions of texts, some of which share a row; the
    mask decoder is attacked, too.
    """
    if heads == "own" and name not in ("roberta", "deberta_v1"):
        pytest.skip("one of each attention is enough")
    batch, model = tiny.mixed_batch(), tiny.model(**tiny.ENCODERS[name])
    objective = attacked(Pretraining(model, HEAD), shape=model.config, heads=heads, tau=0.1, tau_power=1)
    params = params_of(objective, batch)
    outcome = compiled(objective)(params, batch)
    exact, keeper = tiny.float64(params), Keeper(params["adversary"], batch["segment_ids"], 3 if heads == "own" else 1)
    firsts = np.array([[0, 0], [0, 0], [0, 0], [0, 0], [0, 3], [4, 0]])
    weights = np.array([[1, 0], [1, 0], [1, 0], [0, 0], [1, 1], [1, 0]])
    shown = batch | {"masked_positions": np.concatenate([firsts, batch["masked_positions"]], axis=1)}
    clean, other = (reference.predict(exact, shown, model.config, keep=keep) for keep in (None, keeper))
    apart_BM = symmetric(clean[0], other[0])
    expected = {
        "asa": (apart_BM[:, 2:] * batch["masked_weights"]).sum(),
        "asa_sentence": (apart_BM[:, :2] * weights).sum(),
        "asa_nsp": (symmetric(clean[1], other[1]) * (batch["segment_ids"] > 0).any(-1)).sum(),
    }
    assert set(outcome.totals) == {"mlm", "nsp", "penalty", *expected}
    for term, value in expected.items():
        np.testing.assert_allclose(outcome.totals[term], value, rtol=1e-3, err_msg=term)
        assert value > 1e-4
    normalizers = {term: float(value) for term, value in objective.normalizers(batch).items()}
    masked = batch["masked_weights"].sum()
    assert normalizers == {"mlm": masked, "nsp": 5, "asa": masked, "asa_nsp": 5, "asa_sentence": 6, "penalty": 6}
    assert objective.coefficients(STEP)["penalty"] == np.float32(0.1)
    check_units(outcome, keeper, 6)


@pytest.mark.parametrize("of", ["softmax", "squares", "none"])
def test_other_sentence_terms(of):
    batch, model = tiny.mixed_batch(), tiny.model()
    objective = attacked(Pretraining(model, Sentences(of)), tau=0.1)
    params = params_of(objective, batch)
    outcome = compiled(objective)(params, batch)
    if of == "none":
        assert set(outcome.totals) == {"mlm", "nsp", "asa", "asa_nsp", "penalty"}
        return
    exact, keeper = tiny.float64(params)["encoder"], Keeper(params["adversary"], batch["segment_ids"])
    clean, other = (reference.encode(exact, batch, model.config, keep=keep)[0] for keep in (None, keeper))
    rows, places = [0, 1, 2, 4, 5], [0, 0, 0, 0, 4]
    apart = symmetric(clean, other) if of == "softmax" else ((clean - other) ** 2).mean(-1)
    np.testing.assert_allclose(outcome.totals["asa_sentence"], apart[rows, places].sum(), rtol=1e-3)


@pytest.mark.parametrize("generator", some([False, True], True))
def test_equation_10_for_replaced_tokens(generator):
    """The generator is not attacked, and both passes judge the same samples."""
    batch = tiny.mixed_batch()
    small = tiny.config(heads=2, width=8, feedforward=10, embedding_width=12) if generator else None
    model = ReplacedTokensModel(tiny.CONFIG, small)
    objective = attacked(ReplacedTokens(model, 50.0, (), HEAD), tau=0.1)
    params = params_of(objective, batch)
    outcome = compiled(objective)(params, batch)
    exact, keeper = tiny.float64(params), Keeper(params["adversary"], batch["segment_ids"])
    shown = {name: np.asarray(field) for name, field in outcome.outputs.encoder_batch.items()}
    assert generator == bool((shown["tokens"] != batch["tokens"]).any())
    logits = []
    for keep in (None, keeper):
        hidden, _ = reference.encode(exact["encoder"], shown, tiny.CONFIG, keep=keep)
        head = exact["discriminator_head"]
        logits.append(
            reference.linear(reference.gelu(reference.linear(hidden, head["dense"])), head["classifier"])[..., 0]
        )
    apart_BL = symmetric(*(np.stack([of, 0 * of], axis=-1) for of in logits))
    np.testing.assert_allclose(outcome.totals["asa"], apart_BL[batch["segment_ids"] > 0].sum(), rtol=1e-3)
    firsts = apart_BL[[0, 1, 2, 4, 4, 5], [0, 0, 0, 0, 3, 4]].sum()
    np.testing.assert_allclose(outcome.totals["asa_sentence"], firsts, rtol=1e-3)
    check_units(outcome, keeper, 6)


@pytest.fixture(scope="module")
def case():
    """A pre-training objective with guidance, under attack; parameters, and the gradient of each term."""
    batch = tiny.batch((11, 7, 5, 0, 9, 4, 11, 2))
    objective = attacked(tiny.guided(tiny.model(), objective=lambda model: Pretraining(model, HEAD)), tau=0.1)
    params = params_of(objective, batch)

    gradients = jax.jit(jax.jacrev(lambda params: tiny.evaluate(objective, params, batch, RNGS, STEP).totals))(params)
    return objective, batch, params, gradients


def test_the_penalty_is_of_the_adversary_alone(case):
    """Oracle: the gradient of L_c is exactly 0 in every parameter of the model."""
    of_penalty = case[-1]["penalty"]
    of_model = {name: tree for name, tree in of_penalty.items() if name != "adversary"}
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(of_model))
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_penalty["adversary"]))


def test_the_model_and_the_adversary_both_learn_from_the_divergence(case):
    *_, gradients = case
    for term in ("asa", "asa_sentence", "asa_nsp"):
        of_term = gradients[term]
        assert np.abs(of_term["encoder"]["layers"]["attention"]["query"]["kernel"]).max() > 1e-4
        assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(of_term["adversary"]))
    for term in ("mlm", "nsp", "ag"):
        assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients[term]["adversary"]))


@pytest.mark.exhaustive
def test_reversal_turns_the_adversarys_gradient_and_no_other(case, monkeypatch):
    objective, batch, params, gradients = case
    monkeypatch.setattr(adversary, "reverse_gradient", lambda x, scale: x)
    straight = jax.jit(jax.jacrev(lambda params: tiny.evaluate(objective, params, batch, RNGS, STEP).totals))(params)[
        "asa"
    ]
    found = gradients["asa"]
    for name in straight:
        sign = -1 if name == "adversary" else 1
        largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(straight[name]))
        for one, other in zip(jax.tree.leaves(found[name]), jax.tree.leaves(straight[name]), strict=True):
            np.testing.assert_allclose(one, sign * other, rtol=1e-5, atol=1e-6 * largest)


def test_a_step_of_the_adversary_raises_the_divergence_and_one_of_the_model_lowers_it():
    objective = attacked(tiny.supervised(tiny.task_model("classification")))

    @jax.jit
    @jax.value_and_grad
    def asa(params, batch):
        return tiny.evaluate(objective, params, batch, RNGS, STEP).totals["asa"]

    def grown(params, batch, part, size):
        """How much larger it is with those parameters moved against their gradient, as an optimizer does."""
        before, gradient = asa(params, batch)
        ways = {name: gradient[name] for name in part}
        norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(ways)))
        moved = jax.tree.map(lambda leaf, way: leaf - size * way / norm, {name: params[name] for name in part}, ways)
        return asa(params | moved, batch)[0] / before

    for seed in range(3):
        batch = tiny.task_batch("classification", rows=16, seed=seed)
        params = params_of(objective, batch, seed)
        assert grown(params, batch, ["adversary"], 0.05) > 1.001, seed
        assert grown(params, batch, ["encoder", "task_head"], 0.005) < 0.999, seed


def test_the_gradient_of_the_model_is_the_slope(case):
    """Of the divergence, along a random direction short enough for no mask to change."""
    objective, batch, params, gradients = case
    rng = np.random.default_rng(3)
    model = {name: of for name, of in params.items() if name != "adversary"}
    way = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32), model)

    @jax.jit
    def value(size):
        moved = jax.tree.map(lambda leaf, of: leaf + size * of, model, way)
        outcome = tiny.evaluate(objective, params | moved, batch, RNGS, STEP)
        return outcome.totals["asa"], outcome.totals["penalty"]

    (ahead, kept), (behind, still) = value(2e-4), value(-2e-4)
    assert kept == still, "the masks changed"
    of = {name: gradients["asa"][name] for name in model}
    slope = sum(jax.tree.leaves(jax.tree.map(lambda one, other: (one * other).sum(), of, way)))
    np.testing.assert_allclose((ahead - behind) / 4e-4, slope, rtol=3e-2)


def test_guidance_stays_with_the_clean_pass(case):
    objective, batch, params, _ = case
    outcome, inner = compiled(objective)(params, batch), compiled(objective.inner)(params, batch)
    for term, total in inner.totals.items():
        np.testing.assert_allclose(outcome.totals[term], total, rtol=1e-6)
    assert {"mass/next", "mass/period", "ag_loss", "asa_loss"} <= set(outcome.metrics)
    assert objective.primary_metric == objective.inner.primary_metric and objective.prediction_names == (
        "task",
        "sentence",
        "nsp",
    )


def test_a_bias_of_guidance_is_in_both_passes():
    batch = tiny.mixed_batch()
    guided = tiny.guided(tiny.model(), mode="bias")
    objective = attacked(guided, tau=0.1)
    params = params_of(objective, batch)
    outcome = compiled(objective)(params, batch)
    bias = np.asarray(guidance.bias(guided.guides(batch), jnp.asarray(batch["segment_ids"]), 3, guided.alpha(STEP)))
    exact, keeper = tiny.float64(params), Keeper(params["adversary"], batch["segment_ids"])
    clean, other = (
        reference.predict(exact, batch, tiny.CONFIG, bias_BHQK=bias, keep=keep)[0] for keep in (None, keeper)
    )
    np.testing.assert_allclose(
        outcome.totals["asa"], (symmetric(clean, other) * batch["masked_weights"]).sum(), rtol=1e-3
    )


def test_an_evaluation_is_that_of_the_clean_model(case):
    objective, batch, params, _ = case
    both = (objective, objective.inner)
    found, plain = (
        jax.jit(lambda params, of=of: tiny.evaluate(of, params, batch, None, STEP).metrics)(params) for of in both
    )
    jax.tree.map(np.testing.assert_array_equal, found, plain)


def test_delay():
    objective = attacked(tiny.supervised(tiny.task_model("classification")), delay_steps=5)
    for step, begun in ((4, 0), (5, 1)):
        found = {term: float(value) for term, value in objective.coefficients(np.float32(step)).items()}
        assert found == pytest.approx({"task": 1, "asa": begun, "penalty": 0.09 * begun})
        units = MaskCounts(kept_B=np.float32([[1, 2], [4, 3]]), all_B=np.full((2, 2), 4, np.float32))
        says = mask_metrics(units, np.bool_(begun))
        assert says["masked"] == (6 * begun, 16), "what does not count yet is no mask"
        np.testing.assert_array_equal(says["masked/layers"], [[5 * begun, begun], [8, 8]])


@pytest.mark.parametrize("dropout", some(["shared", "independent"], "shared"))
def test_dropout_of_the_attacked_pass(dropout):
    """Of an attack that keeps everything, nothing is left but what dropout does differently."""
    batch, model = tiny.mixed_batch(), tiny.model(dropout=0.2, attention_dropout=0.2, **tiny.DEBERTA_V1)
    objective = attacked(Pretraining(model, HEAD), shape=model.config, keep_init=1 - 1e-12, dropout=dropout)
    params = params_of(objective, batch)
    params["adversary"] = jax.tree.map(lambda leaf: 0 * leaf, params["adversary"])
    outcome = compiled(objective)(params, batch)
    assert outcome.metrics["masked"][0] == 0
    for term in ("asa", "asa_nsp", "asa_sentence"):
        assert (abs(outcome.totals[term]) < 1e-6) == (dropout == "shared")
    plain = compiled(objective.inner)(params, batch)
    for term in ("mlm", "nsp"):
        np.testing.assert_allclose(outcome.totals[term], plain.totals[term], rtol=1e-6)


def test_the_mean_fraction():
    batch = tiny.mixed_batch()
    objective = attacked(Pretraining(PretrainingModel(tiny.CONFIG)), count="fraction")
    params = params_of(objective, batch)
    total = compiled(objective)(params, batch).totals["penalty"]
    keeper = Keeper(params["adversary"], batch["segment_ids"])
    reference.encode(tiny.float64(params)["encoder"], batch, tiny.CONFIG, keep=keeper)
    kept_NB = np.array([(mask * keeper.inside).sum((1, 2, 3)) for mask in keeper.masks.values()])
    np.testing.assert_allclose(total, (kept_NB / np.maximum(keeper.inside.sum((1, 2, 3)), 1)).sum(), rtol=1e-6)
    assert objective.normalizers(batch)["penalty"] == 5

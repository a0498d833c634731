"""Adversarial self-attention: equations 9 and 10 in numpy for every head, and who learns what from which term."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.attention import guidance
from ag_jax.models.heads import HEADS, KINDS
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.models.replaced_tokens import ReplacedTokensModel
from ag_jax.objectives.base import loss_factors
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.replaced_tokens import ReplacedTokens
from ag_jax.objectives.sentences import Sentences
from tests import reference, tiny
from tests.cases import some
from tests.objectives import perturbed
from tests.objectives.perturbed import RNGS, STEP, Keeper, attacked, params_of, symmetric
from tests.objectives.test_supervised import check_loss, flat_rows, numpy_logits

HEAD = Sentences("head", texts=2)
FIRSTS = [0, 1, 2, 4, 4, 5], [0, 0, 0, 0, 3, 4]  # rows and places of the first positions of texts in the mixed batch


def evaluated(objective, params, batch, rngs=RNGS):
    return tiny.evaluated(objective, params, batch, rngs, STEP)


def check_units(outcome, keeper, texts):
    """The penalty and what is said of the masks."""
    kept_N, everything = keeper.kept_NB.sum(1), keeper.inside.sum()
    np.testing.assert_allclose(outcome.totals["penalty"], kept_N.sum(), rtol=1e-6)
    np.testing.assert_allclose(outcome.metrics["kept_units"], (kept_N.sum(), texts), rtol=1e-6)
    np.testing.assert_allclose(outcome.metrics["masked/layers"], [everything - kept_N, [everything] * 2], rtol=1e-6)
    np.testing.assert_allclose(outcome.metrics["masked"], (2 * everything - kept_N.sum(), 2 * everything), rtol=1e-6)
    assert 0.15 < kept_N.sum() / (2 * everything) < 0.95


def divergence_of(kind, clean, other, batch):
    """The sum over examples, or tags, of the divergence of two passes' logits."""
    total = 0.0
    for row in np.flatnonzero(batch["weights"]):
        if kind == "classification":
            total += symmetric(clean[row], other[row])
        elif kind == "multilabel":
            total += symmetric(*(np.stack([of[row], np.zeros_like(of[row])], -1) for of in (clean, other))).mean()
        elif kind == "regression":
            total += (clean[row, 0] - other[row, 0]) ** 2
        elif HEADS[kind].has_candidates:
            there = batch["choice_weights"][row] > 0
            total += symmetric(*(logits.reshape(8, -1)[row, there] for logits in (clean, other)))
        elif kind == "tagging":
            places = np.flatnonzero(batch["label_weights"][row])
            total += symmetric(clean[row, places], other[row, places]).sum()
        elif {batch["starts"][row], batch["ends"][row]} <= set(np.flatnonzero(batch["span_weights"][row])):
            places = np.flatnonzero(batch["span_weights"][row])
            sides = sum(symmetric(clean[row, places, side], other[row, places, side]) / 2 for side in (0, 1))
            if kind == "span_or_none":  # as in the loss, the classifier weighs as much as both ends
                sides = sides / 2 + symmetric(*(np.array([of[row, 0, 2], 0.0]) for of in (clean, other))) / 2
            total += sides
    return total


@pytest.mark.parametrize("kind", some(KINDS, "regression", "choice", "tagging", "span_or_none"))
def test_equation_9_for_every_head(kind):
    """The loss has the task's term, and for multiple choice guidance, whose texts are the candidates."""
    batch, inner = tiny.task_batch(kind), tiny.supervised(tiny.task_model(kind))
    if kind == "choice":
        inner = tiny.guided(inner.model, objective=tiny.supervised)
    objective, rows = attacked(inner, tau=0.3), flat_rows(batch)
    params = params_of(objective, batch)
    outcome = evaluated(objective, params, batch)
    exact, keeper = tiny.float64(params), Keeper(params["adversary"], rows["segment_ids"])
    hidden = [reference.encode(exact["encoder"], rows, tiny.CONFIG, keep=keep) for keep in (None, keeper)]
    clean, other = (numpy_logits(kind, "roberta", exact, batch, of) for of, _ in hidden)
    check_loss(kind, outcome, objective, clean, batch)
    expected = divergence_of(kind, clean, other, batch)
    np.testing.assert_allclose(outcome.totals["asa"], expected, rtol=2e-4)
    assert expected > 0.01
    weights, texts = jax.jit(objective.normalizers)(batch), rows["segment_ids"].any(-1).sum()
    assert weights["asa"] == outcome.metrics["asa_loss"][1] and weights["penalty"] == texts
    np.testing.assert_allclose(weights["asa"], weights["task"], rtol=1e-6)  # thirds of labels are rounded
    check_units(outcome, keeper, texts)
    guidance_terms = {"ag": 15 / 8} if kind == "choice" else {}
    coefficients = {term: float(value) for term, value in objective.coefficients(STEP).items()}
    assert coefficients == pytest.approx({"task": 1, "asa": 1, "penalty": 0.09, **guidance_terms})
    assert set(outcome.totals) == set(coefficients)
    if kind == "choice":
        arguments = rows["tokens"], rows["segment_ids"], "type_mean", "uniform", "uniform"
        loss = reference.guidance_loss(hidden[0][1], tiny.ASSIGNMENT, *arguments)
        np.testing.assert_allclose(outcome.totals["ag"], loss, rtol=1e-5)
        np.testing.assert_allclose(outcome.metrics["ag_loss"], (loss, texts), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "heads"),
    some(
        [("roberta", "shared"), ("electra", "shared"), ("deberta_v1", "own"), ("deberta_v2", "shared")],
        ("deberta_v1", "own"),
    ),
)
def test_equation_10_for_every_encoder(name, heads):
    """Masked words, next sentence and first positions of texts, some of which share a row; the mask decoder, too."""
    batch, model = tiny.mixed_batch(), tiny.model(**tiny.ENCODERS[name])
    objective = attacked(Pretraining(model, HEAD), shape=model.config, heads=heads, tau=0.1, tau_power=1)
    params = params_of(objective, batch)
    outcome = evaluated(objective, params, batch)
    exact, keeper = tiny.float64(params), Keeper(params["adversary"], batch["segment_ids"], 3 if heads == "own" else 1)
    firsts = np.array([[0, 0], [0, 0], [0, 0], [0, 0], [0, 3], [4, 0]])
    weights = np.array([[1, 0], [1, 0], [1, 0], [0, 0], [1, 1], [1, 0]])
    np.testing.assert_array_equal(objective.prediction_weights(batch)["sentence"].elements, weights)
    shown = batch | {"masked_positions": np.concatenate([firsts, batch["masked_positions"]], axis=1)}
    clean, other = (reference.predict(exact, shown, model.config, keep=keep) for keep in (None, keeper))
    apart_BM, logs = symmetric(clean[0], other[0]), functions.log_softmax(clean[0][:, 2:], axis=-1)
    of_labels = np.take_along_axis(logs, batch["masked_labels"][..., None], -1)[..., 0]
    expected = {
        "mlm": -(of_labels * batch["masked_weights"]).sum(),
        "asa": (apart_BM[:, 2:] * batch["masked_weights"]).sum(),
        "asa_sentence": (apart_BM[:, :2] * weights).sum(),
        "asa_nsp": (symmetric(clean[1], other[1]) * (batch["segment_ids"] > 0).any(-1)).sum(),
    }
    assert set(outcome.totals) == {"nsp", "penalty", *expected}
    for term, value in expected.items():
        np.testing.assert_allclose(outcome.totals[term], value, rtol=1e-3, err_msg=term)
        assert value > 1e-4
    normalizers = {term: float(value) for term, value in jax.jit(objective.normalizers)(batch).items()}
    masked = batch["masked_weights"].sum()
    assert normalizers == {"mlm": masked, "nsp": 5, "asa": masked, "asa_nsp": 5, "asa_sentence": 6, "penalty": 6}
    assert objective.coefficients(STEP)["penalty"] == np.float32(0.1)
    check_units(outcome, keeper, 6)


def test_the_hidden_state_as_the_logits_of_a_text():
    """Guidance biases both passes; the penalty is of fractions of units, averaged over rows."""
    batch, model = tiny.mixed_batch(), PretrainingModel(tiny.CONFIG)
    guided = tiny.guided(model, mode="bias", objective=lambda model: Pretraining(model, Sentences("softmax", texts=2)))
    objective = attacked(guided, tau=0.1, count="fraction")
    params = params_of(objective, batch)
    outcome = evaluated(objective, params, batch)
    normalizers = jax.jit(objective.normalizers)(batch)
    assert set(outcome.totals) == set(normalizers) == {"mlm", "asa", "penalty", "asa_sentence"}
    alpha = guided.alpha(STEP)
    bias = np.asarray(jax.jit(lambda batch: guidance.bias(guided.guides(batch), batch["segment_ids"], 3, alpha))(batch))
    exact, keeper = tiny.float64(params)["encoder"], Keeper(params["adversary"], batch["segment_ids"])
    passes = ({"bias_BHQK": bias, "keep": keep} for keep in (None, keeper))
    clean, other = (reference.encode(exact, batch, model.config, **of_pass)[0] for of_pass in passes)
    np.testing.assert_allclose(outcome.totals["asa_sentence"], symmetric(clean, other)[FIRSTS].sum(), rtol=1e-3)
    vectors = Sentences("squares", texts=2).hidden(jnp.asarray(clean), batch)
    np.testing.assert_allclose(vectors.values[[0, 1, 2, 4, 4, 5], [0, 0, 0, 0, 1, 0]], clean[FIRSTS], rtol=1e-6)
    fractions = keeper.kept_NB / np.maximum(keeper.inside.sum((1, 2, 3)), 1)
    np.testing.assert_allclose(outcome.totals["penalty"], fractions.sum(), rtol=1e-6)
    assert normalizers["penalty"] == 5


def test_equation_10_for_replaced_tokens():
    """The generator is not attacked, and both passes judge the same samples."""
    batch, small = tiny.mixed_batch(), tiny.config(heads=2, width=8, feedforward=10, embedding_width=12)
    objective = attacked(ReplacedTokens(ReplacedTokensModel(tiny.CONFIG, small), 50.0, (), HEAD), tau=0.1)
    params = params_of(objective, batch)
    outcome = evaluated(objective, params, batch)
    exact, keeper = tiny.float64(params), Keeper(params["adversary"], batch["segment_ids"])
    shown = {name: np.asarray(field) for name, field in outcome.outputs.encoder_batch.items()}
    assert (shown["tokens"] != batch["tokens"]).any()
    logits, head = [], exact["discriminator_head"]
    for keep in (None, keeper):
        hidden, _ = reference.encode(exact["encoder"], shown, tiny.CONFIG, keep=keep)
        inner = reference.gelu(reference.linear(hidden, head["dense"]))
        logits.append(reference.linear(inner, head["classifier"])[..., 0])
    apart_BL = symmetric(*(np.stack([of, 0 * of], axis=-1) for of in logits))
    np.testing.assert_allclose(outcome.totals["asa"], apart_BL[batch["segment_ids"] > 0].sum(), rtol=1e-3)
    np.testing.assert_allclose(outcome.totals["asa_sentence"], apart_BL[FIRSTS].sum(), rtol=1e-3)
    check_units(outcome, keeper, 6)


@pytest.fixture(scope="module")
def case():
    """A pre-training objective with guidance, under attack, a batch, parameters, and a program.

    The program returns the gradient of each term by the parameters, the terms, and the metrics.
    """
    batch = tiny.batch((11, 7, 5, 0, 9, 4, 11, 2))
    objective = attacked(tiny.guided(tiny.model(), objective=lambda model: Pretraining(model, HEAD)), tau=0.1)
    params = jax.tree.map(np.asarray, params_of(objective, batch))

    def terms(params):
        outcome = tiny.evaluate(objective, params, batch, {"dropout": perturbed.KEY}, STEP)
        return outcome.totals, (outcome.totals, outcome.metrics)

    return objective, batch, params, jax.jit(jax.jacrev(terms, has_aux=True))


@pytest.fixture(scope="module")
def gradients(case):
    """The gradient of each term by the parameters, as numpy arrays."""
    *_, params, program = case
    return jax.tree.map(np.asarray, program(params)[0])


def norm(tree):
    return np.sqrt(sum((np.asarray(leaf, np.float64) ** 2).sum() for leaf in jax.tree.leaves(tree)))


def test_a_training_step_in_parts_sums_all_terms(case, gradients):
    """Though it computes the loss of words with their divergence, and parts have uneven numbers of words."""
    objective, batch, params, program = case
    _, (totals, metrics) = program(params)
    factors = {term: float(factor) for term, factor in loss_factors(objective, batch, STEP).items()}
    loss = sum(factors[term] * float(total) for term, total in totals.items())
    scaled = [jax.tree.map(lambda leaf, by=by: by * leaf, gradients[term]) for term, by in factors.items()]
    expected = jax.tree.map(lambda *leaves: sum(leaves), *scaled)
    found = perturbed.trained(objective, params, batch, microbatches=4)
    np.testing.assert_allclose(found[0], loss, rtol=1e-6)
    for part in ("adversary", "encoder", "word_head", "next_head"):
        difference = jax.tree.map(lambda one, other: np.asarray(one) - other, found[2][part], expected[part])
        assert norm(difference) <= 3e-6 * norm(expected[part]), part
    assert found[1].keys() == metrics.keys()
    for name, (total, weight) in metrics.items():
        np.testing.assert_allclose(found[1][name][0], total, rtol=3e-6, err_msg=name)
        np.testing.assert_array_equal(found[1][name][1], weight, err_msg=name)
    nothing = perturbed.trained(objective, params, jax.tree.map(np.zeros_like, batch), microbatches=4)
    assert nothing[0] == 0 and not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(nothing[2]))


def test_who_learns_from_which_term(gradients):
    """The adversary from divergence and penalty, the model from all but the penalty."""
    for term, gradient in gradients.items():
        of_adversary = [np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient["adversary"])]
        model = {name: tree for name, tree in gradient.items() if name != "adversary"}
        if term == "penalty":
            assert all(of_adversary) and not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(model))
        elif term.startswith("asa"):
            assert all(of_adversary)
            assert np.abs(model["encoder"]["layers"]["attention"]["query"]["kernel"]).max() > 1e-4
        else:
            assert not any(of_adversary)
    assert set(gradients) == {"mlm", "nsp", "ag", "asa", "asa_nsp", "asa_sentence", "penalty"}


def test_the_gradient_of_the_model_is_the_slope_and_that_of_the_adversary_is_reversed(case, gradients):
    """Along a way so short that no mask changes; steps of descent of the adversary raise the divergence and penalty."""
    *_, params, program = case
    rng, model = np.random.default_rng(3), {name: of for name, of in gradients["asa"].items() if name != "adversary"}

    def totals(way, size):
        moved = {
            name: jax.tree.map(lambda leaf, to: leaf + np.float32(size) * to, params[name], way[name]) for name in way
        }
        return program(params | moved)[1][0]

    before, way = totals({}, 0), jax.tree.map(lambda leaf: np.float32(rng.standard_normal(leaf.shape)), model)
    ahead, behind = totals(way, 2e-4), totals(way, -2e-4)
    assert ahead["penalty"] == behind["penalty"], "the masks changed"
    slope = sum(jax.tree.leaves(jax.tree.map(lambda one, other: (one * other).sum(), model, way)))
    np.testing.assert_allclose((ahead["asa"] - behind["asa"]) / 4e-4, slope, rtol=3e-2)
    for term, size in (("asa", 0.05), ("penalty", 0.3)):
        of, length = gradients[term]["adversary"], norm(gradients[term]["adversary"])
        down = jax.tree.map(lambda leaf, length=length: -np.asarray(leaf) / length, of)
        assert totals({"adversary": down}, size)[term] > 1.001 * before[term]


def test_an_evaluation_is_that_of_the_clean_model(case):
    objective, batch, params, _ = case
    assert {"mass/next", "mass/period", "ag_loss"} <= perturbed.evaluated_as_without(objective, params, batch)
    assert objective.prediction_names == ("task", "sentence", "nsp")


@pytest.mark.parametrize("dropout", some(["shared", "independent"], "shared"))
def test_dropout_of_the_attacked_pass(dropout):
    """If an attack masks nothing, both passes differ only by their dropout."""
    settings = tiny.DEBERTA_V1 | {"layers": 1, "mask_decoder_passes": 1}
    batch, model = tiny.mixed_batch(), tiny.model(attention_dropout=0.2, **settings)
    objective = attacked(Pretraining(model, HEAD), shape=model.config, keep_init=1 - 1e-12, dropout=dropout)
    params = params_of(objective, batch)
    params["adversary"] = jax.tree.map(lambda leaf: 0 * leaf, params["adversary"])
    outcome = evaluated(objective, params, batch)
    assert outcome.metrics["masked"][0] == 0
    for term in ("asa", "asa_nsp", "asa_sentence"):
        assert (abs(outcome.totals[term]) < 1e-6) == (dropout == "shared")


def test_an_adversary_at_birth():
    """Layers are drawn apart, with the encoder's deviation and no biases; `keep_init` is the share that is kept."""
    config = tiny.config(width=48)
    attacker = attacked(Pretraining(PretrainingModel(config)), shape=config, keep_init=0.8).attacker
    params = nn.unbox(attacker.init(jax.random.key(0)))
    kernels = np.concatenate([params[name]["kernel"] for name in ("query", "key")])
    np.testing.assert_allclose(kernels.std((1, 2)), [0.02] * 4, rtol=0.1)
    assert np.abs(np.corrcoef(kernels.reshape(4, -1)) - np.eye(4)).max() < 0.1
    assert not params["query"]["bias"].any() and params["key"]["bias"].shape == (2, 48)
    first = jax.tree.map(lambda leaf: leaf[0], attacker({"adversary": params}, {}, STEP))
    scores = jax.jit(first.scores)(jax.random.normal(jax.random.key(1), (8, 64, 48)))
    np.testing.assert_allclose((scores > 0).mean(), 0.8, atol=0.05)

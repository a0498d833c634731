"""Attacks in parts, packed, computed again, on kernels and on meshes; masks that nobody learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ag_jax.attention.attack import MaskPolicy
from ag_jax.attention.kernels import reference as plain
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.segments import same_segment_mask
from ag_jax.models.masked_lm import PretrainingModel
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.adversarial.masking import LargestMasks, RandomMasks, Trace
from ag_jax.objectives.consistency import DivergenceConfig
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.sentences import Sentences
from ag_jax.training import sharding
from ag_jax.training.hyperparameters import Hyperparameters
from ag_jax.training.optimizer import (
    AdversaryOptimizer,
    OptimizerConfig,
    decays,
    learning_rate_schedule,
    make_optimizer,
)
from ag_jax.training.program import make_program
from ag_jax.training.sharding import MeshConfig, make_mesh
from ag_jax.training.step import loss_and_gradient
from tests import reference, tiny
from tests.cases import some
from tests.objectives import test_packed_rows as packed_rows
from tests.objectives.adversaries import RNGS, STEP, attacked, params_of, symmetric

LENGTHS = (11, 7, 5, 0, 9, 4, 11, 2)
TRACE = Trace((0.5, 1.0), ((0.2, 0.6), (0.4, 0.0)))


def distance(one, other):
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tiny.float64(tree))]) for tree in (one, other))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def check_same(found, expected, tolerance=1e-6):
    """Losses, and gradients apart for model and adversary, whose sizes are far apart."""
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance)
    for part in ("adversary", "encoder"):
        if part in expected[-1]:
            assert distance(found[-1][part], expected[-1][part]) <= 3 * tolerance


def by_parts(objective, params, batch, microbatches):
    def compute(params, batch):
        return loss_and_gradient(params, batch, RNGS["dropout"], STEP, objective=objective, microbatches=microbatches)

    return jax.jit(compute)(params, batch)


@pytest.mark.parametrize("what", some(["choice", "tagging", "pretraining"], "pretraining"))
def test_accumulation_is_exact(what):
    """Of tags as the released code counts them, and of a penalty by fractions, too."""
    if what == "pretraining":
        inner = tiny.guided(tiny.model(), objective=lambda model: Pretraining(model, Sentences("head")))
        batch, objective = tiny.batch(LENGTHS), attacked(inner, tau=0.1)
    else:
        settings = {"divergence": DivergenceConfig(legacy=True), "count": "fraction"} if what == "tagging" else {}
        batch, objective = tiny.task_batch(what), attacked(tiny.supervised(tiny.task_model(what)), **settings)
    params = params_of(objective, batch)
    whole = by_parts(objective, params, batch, 1)
    parts = by_parts(objective, params, batch, 4)
    check_same(parts, whole)
    for name, (total, weight) in whole[1].items():
        np.testing.assert_allclose(parts[1][name][0], total, rtol=3e-6, err_msg=name)
        np.testing.assert_array_equal(parts[1][name][1], weight, err_msg=name)
    weights, coefficients = objective.normalizers(batch), objective.coefficients(STEP)
    totals = jax.jit(lambda params: tiny.evaluate(objective, params, batch, RNGS, STEP).totals)(params)
    loss = sum(float(coefficients[term] * totals[term] / weights[term]) for term in totals)
    np.testing.assert_allclose(whole[0], loss, rtol=1e-6)
    assert totals.keys() == weights.keys() == coefficients.keys()


IMPLEMENTATIONS = {"reference": plain.attend, "tpu": Fused(functools.partial(tpu.attend, interpret=True))}


@functools.cache
def of_rows(name, texts):
    """Loss, totals and gradient of a guided and attacked objective that looks at so many texts of a row."""
    model = PretrainingModel(tiny.CONFIG, attend=IMPLEMENTATIONS[name])
    inner = tiny.guided(
        model, packed_rows.ASSIGNMENT, objective=lambda model: Pretraining(model, Sentences("head", texts))
    )
    objective = attacked(inner)

    def loss(params, batch):
        outcome = tiny.evaluate(objective, params, batch, RNGS, STEP)
        coefficients, weights = objective.coefficients(STEP), objective.normalizers(batch)
        terms = {term: coefficients[term] * total / weights[term] for term, total in outcome.totals.items()}
        return sum(terms.values()), (terms, outcome.metrics)

    return objective, jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.parametrize("name", some(IMPLEMENTATIONS, "tpu"))
def test_texts_that_share_rows_are_attacked_as_alone(name):
    """On the kernels as well, to which the masks come as a bias."""
    alone = tiny.batch(packed_rows.LENGTHS)
    del alone["next_labels"]
    packed, _ = packed_rows.pack(alone)
    objective, of_packed = of_rows(name, 4)
    params = params_of(objective, alone)
    (_, (terms, metrics)), gradient = of_packed(params, packed)
    (_, (expected_terms, expected_metrics)), expected_gradient = of_rows("reference", 1)[1](params, alone)
    assert set(terms) == {"asa", "asa_sentence", "ag", "mlm", "penalty"} and terms["asa_sentence"] > 1e-3
    for one in terms:
        np.testing.assert_allclose(terms[one], expected_terms[one], rtol=2e-4, err_msg=one)
    np.testing.assert_array_equal(metrics["masked/layers"], expected_metrics["masked/layers"])
    for part in gradient:
        assert distance(gradient[part], expected_gradient[part]) < 1e-4, part


@pytest.mark.parametrize(
    ("encoder", "policy"), some([("roberta", "layer"), ("deberta_v1", "dots")], ("roberta", "layer"))
)
def test_computed_again_it_is_the_same(encoder, policy):
    """Random masks, which the backward pass must draw again as they were."""

    def slope(remat):
        model = tiny.model(dropout=0.1, attention_dropout=0.1, remat=remat, **tiny.ENCODERS[encoder])
        inner = Pretraining(model, Sentences("head"))
        objective = attacked(inner, "bernoulli", shape=model.config, share=0.2)
        batch = tiny.mixed_batch()
        params = params_of(objective, batch)
        loss = jax.jit(
            jax.value_and_grad(lambda params: sum(tiny.evaluate(objective, params, batch, RNGS, STEP).totals.values()))
        )
        return loss(params)

    check_same(slope(policy), slope("none"), 3e-6)


@pytest.fixture(scope="module")
def trained(eight_devices):
    """Two steps of two microbatches on a mesh, with dropout, guidance, and an adversary with its own optimizer."""
    model = tiny.model(heads=4, width=16, dropout=0.1, attention_dropout=0.2)
    inner = tiny.guided(model, objective=lambda model: Pretraining(model, Sentences("head")))
    objective = attacked(inner, shape=model.config, tau=0.1)
    optimizer = make_optimizer(
        OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, epsilon=1e-3),
        10,
        AdversaryOptimizer(OptimizerConfig(learning_rate=2e-2, epsilon=1e-3)),
    )
    example, batches = tiny.batch(), [tiny.batch(2 * LENGTHS, seed=seed) for seed in range(2)]
    config = AdversarialConfig("asa")

    def init(key):
        beside = adversarial.init(config, model.config, jax.random.key(4))
        return model.init(key, example, deterministic=True)["params"] | beside

    @functools.cache
    def run(shape):
        mesh = make_mesh(MeshConfig(*shape), eight_devices[: int(np.prod(shape))])
        program = make_program(lambda _: objective, lambda _: optimizer, init, mesh, len(batches[0]["tokens"]) // 2)
        state, losses = program.create(jax.random.key(0)), []
        for batch in batches:
            state, metrics = program.train_step(
                state, sharding.place_batch(batch, mesh), jax.random.key(1), Hyperparameters()
            )
            losses.append(float(metrics["loss"][0]))
        return state, losses, metrics, program.shardings

    return run


@pytest.mark.parametrize("shape", [pytest.param((8, 1, 1), marks=pytest.mark.exhaustive), (2, 2, 2)])
def test_every_mesh_trains_the_same(trained, shape):
    alone, spread = trained((1, 1, 1)), trained(shape)
    np.testing.assert_allclose(spread[1], alone[1], rtol=5e-6)
    assert distance(spread[0].params, alone[0].params) < 1e-5
    for key in ("masked", "masked/layers", "kept_units", "asa_loss", "adversary_gradient_norm", "gradient_norm"):
        np.testing.assert_allclose(spread[2][key][0], alone[2][key][0], rtol=5e-5, err_msg=key)
    assert alone[2]["adversary_gradient_norm"][0] > 0
    for leaf, wanted in zip(jax.tree.leaves(spread[0]), jax.tree.leaves(spread[3]), strict=True):
        assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)
    kernel = spread[0].params["adversary"]["query"]["kernel"]
    assert kernel.shape == (2, 16, 16) and kernel.addressable_shards[0].data.size == kernel.size // (
        shape[1] * shape[2]
    )


def test_the_adversary_is_optimized_apart():
    """Clipped by its own norm, with its own rate and decay; the model's part is what it would be alone."""
    params = {
        "encoder": {"kernel": jnp.ones((2, 3))},
        "adversary": {"query": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}},
    }
    gradient = jax.tree.map(lambda leaf: 1e4 * leaf, params) | {"encoder": {"kernel": jnp.full((2, 3), 0.1)}}
    model, own = OptimizerConfig(learning_rate=0.01), OptimizerConfig(learning_rate=0.3, weight_decay=0.5, epsilon=10.0)
    both = make_optimizer(model, 5, AdversaryOptimizer(own))
    found, _ = both.update(gradient, both.init(params), params)
    for part, config in (("encoder", model), ("adversary", own)):
        alone = make_optimizer(config, 5)
        expected, _ = alone.update(gradient[part], alone.init(params[part]), params[part])
        jax.tree.map(np.testing.assert_array_equal, found[part], expected)


def test_the_adversarys_optimizer_begins_with_the_attack():
    """Neither decay nor the zeros of a delay's gradients leave a trace: then it is that of a
    run of the steps that are left.
    """
    params = {"encoder": {"kernel": jnp.ones((2, 3))}, "adversary": {"query": {"kernel": jnp.ones((2, 2))}}}
    own = OptimizerConfig(learning_rate=0.3, warmup_steps=2, weight_decay=0.5)
    both, alone = make_optimizer(OptimizerConfig(), 9, AdversaryOptimizer(own, delay=4)), make_optimizer(own, 5)
    state, fresh = both.init(params), alone.init(params["adversary"])
    for step in range(8):
        factor = 0.0 if step < 4 else 1.0 + step
        gradient = jax.tree.map(lambda leaf, factor=factor: factor * leaf, params)
        found, state = both.update(gradient, state, params)
        expected = jax.tree.map(jnp.zeros_like, params["adversary"])
        if step >= 4:
            expected, fresh = alone.update(gradient["adversary"], fresh, params["adversary"])
        jax.tree.map(np.testing.assert_array_equal, found["adversary"], expected)
    assert jnp.abs(found["adversary"]["query"]["kernel"]).max() > 0.1


def test_without_an_attack_nothing_is_different():
    """Objective, parameters and the tree of the optimizer's state are those of the model alone."""
    inner, none = Pretraining(tiny.model()), AdversarialConfig()
    assert adversarial.wrap(inner, none, adversarial.AttackContext(tiny.CONFIG, 10)) is inner
    for method in ("none", "bernoulli", "magnitude"):
        assert adversarial.init(AdversarialConfig(method), tiny.CONFIG, jax.random.key(0)) == {}
    params = {"encoder": {"kernel": jnp.ones((2, 3))}}
    alone = make_optimizer(OptimizerConfig(), 5).init(params)
    schedule = learning_rate_schedule(OptimizerConfig(), 5)
    expected = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.0, mask=decays)).init(
        params
    )
    assert jax.tree.structure(alone) == jax.tree.structure(expected)


def in_layers(attack, segment_ids, scores=None, key=jax.random.key(3)):
    """Return the counts of each layer, and which units `NBQK` are kept."""
    visible_BQK = same_segment_mask(segment_ids)

    def one(layer, key):
        found = layer(jnp.zeros((*segment_ids.shape, 4)), visible_BQK, lambda: scores, key)
        return found.counts, (found.bias_BHQK == 0)[:, 0]

    return jax.vmap(one)(attack, jax.random.split(key, attack.share_N.shape[0]))


def test_random_masks():
    _, segment_ids = reference.packed([[40], [23, 17], [5]], 40)
    units, kept = in_layers(RandomMasks(jnp.array([0.05, 0.3]), MaskPolicy()), jnp.asarray(segment_ids))
    share = 1 - units.kept_B.sum(1) / units.all_B.sum(1)
    np.testing.assert_allclose(share, [0.05, 0.3], atol=0.02)
    assert units.all_B.tolist() == [[1600, 23**2 + 17**2, 25]] * 2
    correlation = np.corrcoef(np.ravel(kept[0, 0]), np.ravel(kept[1, 0]))[0, 1]
    assert abs(correlation) < 0.1, "layers draw apart"


def test_largest_masks():
    """In every row the ones that are attended to most, of its own text."""
    _, segment_ids = reference.packed([[11], [6, 5], []], 11)
    weights = reference.random_attention(segment_ids, 1, 1)[0][:, 0]
    units, kept = in_layers(
        LargestMasks(jnp.array([0.3]), MaskPolicy()), jnp.asarray(segment_ids), jnp.asarray(weights, jnp.float32)
    )
    masked = 0
    for row, segments_L in enumerate(segment_ids):
        for query in np.flatnonzero(segments_L):
            text = reference.text_of(segments_L, query)
            most = text[np.argsort(-weights[row, query, text])][: round(0.3 * len(text))]
            np.testing.assert_array_equal(np.flatnonzero(~np.asarray(kept[0, row, query])), np.sort(most))
            masked += len(most)
    assert units.all_B.sum() - units.kept_B.sum() == masked == 11 * 3 + 6 * 2 + 5 * 2


@pytest.mark.parametrize("name", ["roberta", "deberta_v1", "windowed"])
def test_magnitude_looks_at_the_layers_own_attention(name):
    """Averaged over the heads, under the masks of the layers below; the mask decoder has the mask of the last layer.

    In layers with a window, the share is one of the keys in the window.
    """
    batch, model = tiny.mixed_batch(), tiny.model(**(tiny.ENCODERS | tiny.ABLATIONS)[name])
    objective = attacked(Pretraining(model), "magnitude", shape=model.config, share=0.25)
    params = params_of(objective, batch)
    outcome = jax.jit(lambda params: tiny.evaluate(objective, params, batch, RNGS, STEP))(params)
    exact, masks = tiny.float64(params), {}

    def keep(index, x_BLD):
        if index not in masks:
            config, of = model.config, exact["encoder"]
            table = of["relative"]["embedding"] if "relative" in of else None
            layer = reference.take_layer(of["layers"], index)["attention"]
            _, weights = reference.attention(
                x_BLD, layer, batch["segment_ids"], table_RD=table, relative=config.relative, window=config.window
            )
            masks[index] = np.ones((6, 1, 11, 11))
            for row, segments_L in enumerate(batch["segment_ids"]):
                for query in np.flatnonzero(segments_L):
                    text = reference.text_of(segments_L, query)
                    seen = text if config.window is None else text[np.abs(text - query) <= config.window // 2]
                    order = np.argsort(-weights[row, :, query].mean(0)[seen])
                    masks[index][row, 0, query, seen[order][: int(np.floor(0.25 * len(seen) + 0.5))]] = 0
        return masks[index]

    clean, other = (reference.predict(exact, batch, model.config, keep=mask)[0] for mask in (None, keep))
    np.testing.assert_allclose(
        outcome.totals["masking"], (symmetric(clean, other) * batch["masked_weights"]).sum(), rtol=1e-3
    )
    number, count = outcome.metrics["masked"]
    assert number == sum((mask == 0).sum() for mask in masks.values())
    seen = np.abs(np.subtract.outer(range(11), range(11))) <= (model.config.window or 22) // 2
    inside = np.asarray(same_segment_mask(batch["segment_ids"]))
    assert count == model.config.layers * (inside & seen).sum()
    assert set(outcome.totals) == {"mlm", "nsp", "masking", "masking_nsp"} and "masking_loss" in outcome.metrics


@pytest.mark.parametrize(
    ("step", "shares"), [(0, (0.2, 0.6)), (5, (0.2, 0.6)), (7.5, (0.3, 0.3)), (10, (0.4, 0.0)), (12, (0.4, 0.0))]
)
def test_scheduled_masks_follow_the_trace(step, shares):
    objective = attacked(Pretraining(tiny.model()), "scheduled", recorded=TRACE, trace="runs/asa")
    attack = jax.jit(lambda step: objective.attacker({}, {}, step))(jnp.float32(step))
    np.testing.assert_allclose(attack.share_N, shares, atol=1e-6)


def test_no_mask_that_nobody_learns_has_a_penalty_or_a_gradient_of_its_own():
    batch = tiny.mixed_batch()
    objective = attacked(Pretraining(tiny.model(), Sentences("head")), "bernoulli", share=0.2)
    assert set(objective.coefficients(STEP)) == {"mlm", "nsp", "masking", "masking_nsp", "masking_sentence"}
    params = params_of(objective, batch)
    metrics = jax.jit(lambda params: tiny.evaluate(objective, params, batch, RNGS, STEP).metrics)(params)
    np.testing.assert_allclose(metrics["masked"][0] / metrics["masked"][1], 0.2, atol=0.06)
    other = jax.jit(
        lambda params: tiny.evaluate(objective, params, batch, {"dropout": jax.random.key(2)}, STEP).metrics
    )(params)
    assert metrics["masking_loss"][0] != other["masking_loss"][0]

"""The loss of predicted words and their divergence computed together, against the two computed apart."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.objectives import consistency
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig
from ag_jax.objectives.base import Objective, loss_factors
from ag_jax.objectives.consistency import DivergenceConfig
from ag_jax.objectives.masked_lm import Pretraining
from ag_jax.objectives.predictions import PredictionWeights, ScoredWords, WordDistributions, WordLabels
from ag_jax.objectives.sentences import Sentences
from ag_jax.objectives.word_loss import word_loss
from ag_jax.planning import costs
from ag_jax.planning.hlo import HloModule
from tests import tiny
from tests.cases import some

ROWS, SLOTS, WIDTH, WORDS = 4, 6, 8, 50
FACTORS = (0.7, 0.2)


def drawn(dtype=jnp.float32, slots=SLOTS):
    rng = np.random.default_rng(0)
    hiddens = [jnp.asarray(rng.normal(size=(ROWS, slots, WIDTH)), dtype) for _ in range(2)]
    embedding, bias = (
        jnp.asarray(rng.normal(size=(WORDS, WIDTH)), dtype),
        jnp.asarray(rng.normal(size=WORDS), "float32"),
    )
    weights_BM = jnp.asarray(rng.integers(0, 2, (ROWS, slots)), jnp.float32)
    return hiddens, embedding, bias, jnp.asarray(rng.integers(0, WORDS, (ROWS, slots))), weights_BM


def together(config, group_rows, labels, weights):
    def of(clean, other, embedding, bias):
        pair = (WordDistributions(hidden, embedding, bias) for hidden in (clean, other))
        return consistency.joint_words(config, *pair, WordLabels("mlm", labels, weights, group_rows), *FACTORS)

    return of


def apart(config, group_rows, labels, weights):
    def of(clean, other, embedding, bias):
        loss, correct, _ = word_loss(clean, embedding, bias, labels, weights, group_rows)
        pair = (WordDistributions(hidden, embedding, bias) for hidden in (clean, other))
        distance = consistency.divergence(*pair, PredictionWeights(weights), config)
        return FACTORS[0] * loss + FACTORS[1] * distance, ScoredWords(loss, correct, distance)

    return of


CONFIGS = [DivergenceConfig(*of) for of in itertools.product(("symmetric", "one_way"), ("none", "clean", "targets"))]


@pytest.mark.parametrize(
    ("config", "group_rows"),
    some(itertools.product(CONFIGS, [1, 2]), *zip(CONFIGS, itertools.cycle([1, 2]), strict=False)),
    ids=lambda value: f"{value.form}-{value.stop_gradient}" if isinstance(value, DivergenceConfig) else None,
)
def test_together_as_apart(config, group_rows):
    hiddens, embedding, bias, labels, weights = drawn()
    found, expected = (
        jax.jit(jax.value_and_grad(way(config, group_rows, labels, weights), (0, 1, 2, 3), has_aux=True))(
            *hiddens, embedding, bias
        )
        for way in (together, apart)
    )
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6), found, expected)
    value, _ = jax.jit(together(config, group_rows, labels, weights))(*hiddens, embedding, bias)
    np.testing.assert_allclose(value, expected[0][0], rtol=1e-5)  # without a gradient, too


def test_the_gradient_is_scaled_and_keeps_the_types():
    hiddens, embedding, bias, labels, weights = drawn(jnp.bfloat16)
    of = together(DivergenceConfig(), 1, labels, weights)
    once, thrice = (
        jax.grad(lambda *given, factor=factor: factor * of(*given)[0], (0, 1, 2, 3))(*hiddens, embedding, bias)
        for factor in (1, 3)
    )
    for one, three, given in zip(once, thrice, (*hiddens, embedding, bias), strict=True):
        assert one.dtype == given.dtype and np.any(one)
        np.testing.assert_allclose(3 * np.asarray(one, np.float32), np.asarray(three, np.float32), rtol=0.02, atol=1e-3)


def test_six_products_instead_of_nine():
    """With so many slots that there are two chunks, over which both ways loop."""
    hiddens, embedding, bias, labels, weights = drawn(slots=40)
    product = 2 * ROWS * 40 * WIDTH * WORDS
    for way, products in ((together, 6), (apart, 9)):
        of = way(DivergenceConfig(), 1, labels, weights)
        gradient = jax.grad(lambda *given, of=of: of(*given)[0], (0, 1, 2, 3))
        text = jax.jit(gradient).lower(*hiddens, embedding, bias).compile().as_text()
        assert costs.costs(HloModule(text), 1).flops == products * product


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["asa", "r_drop"])
def test_an_objective_computes_them_together(method):
    """Loss, metrics and gradient are those of its terms, each computed by itself."""
    batch, model = tiny.mixed_batch(), tiny.model(dropout=0.2, attention_dropout=0.2)
    inner = Pretraining(model, Sentences("head", 2))
    context = adversarial.AttackContext(model.config, 10)
    objective = adversarial.wrap(inner, AdversarialConfig(method), context)
    own = adversarial.init(AdversarialConfig(method), model.config, jax.random.key(1))
    params = tiny.params(model, batch) | nn.unbox(own)

    def trained(way, params):
        rngs, step = {"dropout": jax.random.key(1)}, jnp.int32(5)
        outputs = objective.forward(params, batch, rngs, step)
        return way(objective, outputs, batch, loss_factors(objective, batch, step))

    found, expected = (
        jax.jit(jax.value_and_grad(functools.partial(trained, way), has_aux=True))(params)
        for way in (type(objective).loss_of, Objective.loss_of)
    )
    assert found[0][1].keys() == expected[0][1].keys()
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), found, expected)

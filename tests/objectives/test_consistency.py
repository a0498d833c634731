"""How far predictions are apart, for every form, against numpy with gradients; of words, also with their loss."""

import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax.objectives import consistency, word_loss
from ag_jax.objectives.config import DivergenceConfig, Form, StopGradient
from ag_jax.objectives.consistency import divergence, total_weight
from ag_jax.objectives.predictions import Categorical, PredictionWeights, Values, WordDistributions, WordLabels, YesNo

ALL = [DivergenceConfig(form, stopped) for form, stopped in itertools.product(get_args(Form), get_args(StopGradient))]
WEIGHTS = np.array([[1, 1, 0.5], [0, 2, 0]], np.float32)
each_form = pytest.mark.parametrize("config", ALL, ids=lambda config: f"{config.form}-{config.stop_gradient}")


def drawn(*shape, seed=0):
    return np.float32(2 * np.random.default_rng(seed).standard_normal(shape))


def kl(a, b):
    """KL(softmax a || softmax b) in float64, with its gradients by a and by b."""
    log_p, log_q = (functions.log_softmax(np.asarray(logits, np.float64), axis=-1) for logits in (a, b))
    p, q, ratio = np.exp(log_p), np.exp(log_q), log_p - log_q
    value = (p * ratio).sum(-1)
    return value, p * (ratio - value[..., None]), q - p


def expected(clean, other, weights, config):
    """The divergence of logits, with its gradients by those of the clean pass and of the other one."""
    forth, to_clean, to_other = kl(clean, other)
    if config.stop_gradient == "targets":
        to_clean = 0 * to_clean
    if config.form == "symmetric":
        back, of_other, of_clean = kl(other, clean)
        forth = (forth + back) / 2
        to_clean = (to_clean + of_clean) / 2
        to_other = (to_other + (0 if config.stop_gradient == "targets" else of_other)) / 2
    if config.stop_gradient == "clean":
        to_clean = 0 * to_clean
    return (weights * forth).sum(), (weights[..., None] * to_clean, weights[..., None] * to_other)


@each_form
def test_classes_and_numbers(config):
    """Choices that are ruled out, with logits of -1e9, contribute 0 and no NaN."""
    clean, other = drawn(2, 3, 5), drawn(2, 3, 5, seed=1)
    clean[:, :, 4] = other[:, :, 4] = clean[1, 0] = other[1, 0] = -1e9
    numbers = clean[..., 0].copy(), other[..., 0].copy()
    numbers[0][1, 0], numbers[1][1, 0] = 1.5, 0.5

    @jax.jit
    def run(clean, other, a, b):
        def compare(kind, *pair):
            return jax.value_and_grad(
                lambda *both: divergence(*map(kind, both), PredictionWeights(WEIGHTS), config), (0, 1)
            )(*pair)

        of_classes = compare(Categorical, clean, other), compare(Categorical, clean, clean)
        return *of_classes, compare(YesNo, a, b), compare(Values, a, b), compare(Values, clean, other)

    values = drawn(2, 3, 5), drawn(2, 3, 5, seed=1)
    found, same, yes, single, _ = run(clean, other, *numbers)
    vectors = run(*values, *numbers)[4]
    wanted, slopes = expected(clean, other, WEIGHTS, config)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(found[1], slopes, atol=1e-5)
    assert same[0] == 0
    wanted, slopes = expected(*(np.stack([of, 0 * of], -1) for of in numbers), WEIGHTS, config)
    np.testing.assert_allclose(yes[0], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(yes[1], [of[..., 0] for of in slopes], atol=1e-6)
    cases = (single, numbers, WEIGHTS, 1), (vectors, values, WEIGHTS[..., None], 5)
    for (value, of), (a, b), weights, divisor in cases:
        np.testing.assert_allclose(value, (weights * (a - b) ** 2).sum() / divisor, rtol=1e-5)
        half = 0.5 if config.form == "symmetric" and config.stop_gradient == "targets" else 1
        to_clean = 0 if config.stop_gradient == "clean" or (half == 1 and config.stop_gradient == "targets") else half
        slope = 2 * weights * (a - b) / divisor
        np.testing.assert_allclose(of[0], to_clean * slope, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(of[1], -half * slope, rtol=1e-5, atol=1e-6)


def words(dtype="float32"):
    """Hidden states of two passes, embeddings, bias; labels and weights."""
    rng = np.random.default_rng(0)
    clean, other = (jnp.asarray(rng.normal(size=(4, 7, 5)), dtype) for _ in range(2))
    embedding = jnp.asarray(rng.normal(size=(41, 5)), dtype)
    weights = np.float32(rng.random((4, 7)) < 0.7) * 1.5
    return (clean, other, embedding, drawn(41)), rng.integers(0, 41, (4, 7)).astype(np.int32), weights


def joint(config, labels, weights, group_rows, clean, other, embedding, bias):
    pair = (WordDistributions(hidden, embedding, bias) for hidden in (clean, other))
    return consistency.joint_words(config, *pair, WordLabels("mlm", labels, weights, group_rows), 0.7, 0.2)


def apart(config, weights, clean, other, embedding, bias):
    pair = (WordDistributions(hidden, embedding, bias) for hidden in (clean, other))
    return divergence(*pair, PredictionWeights(weights), config)


def gradients_of(slopes, clean, other, embedding):
    """Gradients of hidden states, embeddings and bias from those of both passes' scores."""
    of_embedding = sum(np.einsum("bmv,bmd->vd", of, hidden) for of, hidden in zip(slopes, (clean, other), strict=True))
    return *(of @ embedding for of in slopes), of_embedding, sum(of.sum((0, 1)) for of in slopes)


@each_form
def test_words(monkeypatch, config):
    """A few positions at a time, and with their loss: both values, and three times the gradients of each."""
    number = ALL.index(config)
    monkeypatch.setattr(word_loss, "POSITIONS", (2, 7, 100)[number % 3])
    arrays, labels, weights = words()
    clean, other, embedding, bias = (np.asarray(array, np.float64) for array in arrays)
    scores = [hidden @ embedding.T + bias for hidden in (clean, other)]
    wanted, slopes = expected(*scores, weights, config)
    logs, plain = functions.log_softmax(scores[0], axis=-1), np.eye(41)[labels]
    loss, right = -(weights * (plain * logs).sum(-1)).sum(), (weights * (scores[0].argmax(-1) == labels)).sum()
    together = 0.2 * slopes[0] + 0.7 * weights[..., None] * (np.exp(logs) - plain), 0.2 * slopes[1]

    @jax.jit
    def run(*arrays):
        alone = lambda *arrays: apart(config, weights, *arrays)  # noqa: E731
        both = lambda *arrays: joint(config, labels, weights, 1 + number % 2, *arrays)  # noqa: E731
        thrice = [lambda *of: 3 * alone(*of), lambda *of: 3 * both(*of)[0]]
        return alone(*arrays), both(*arrays), [jax.value_and_grad(of, (0, 1, 2, 3))(*arrays) for of in thrice]

    distance, (value, sums), ((_, of_distance), (three, of_both)) = run(*arrays)
    np.testing.assert_allclose(distance, wanted, rtol=1e-5)
    np.testing.assert_allclose([value, three / 3], [0.7 * loss + 0.2 * wanted] * 2, rtol=1e-5)
    np.testing.assert_allclose([sums.loss, sums.correct, sums.divergence], [loss, right, wanted], rtol=1e-5)
    for found, of in ((of_distance, slopes), (of_both, together)):
        for one, two in zip(found, gradients_of(of, clean, other, embedding), strict=True):
            np.testing.assert_allclose(one, 3 * two, rtol=1e-4, atol=1e-4)


def test_words_in_bfloat16_and_never_all_scores(monkeypatch):
    monkeypatch.setattr(word_loss, "POSITIONS", 2)
    arrays, labels, weights = words("bfloat16")
    exact = [np.asarray(array, np.float64) for array in arrays]
    scores = [hidden @ exact[2].T + exact[3] for hidden in exact[:2]]
    _, slopes = expected(*scores, weights, DivergenceConfig())
    gradients = jax.grad(lambda *of: apart(DivergenceConfig(), weights, *of), argnums=(0, 1, 2, 3))
    for found, array, wanted in zip(jax.jit(gradients)(*arrays), arrays, gradients_of(slopes, *exact[:3]), strict=True):
        assert found.dtype == array.dtype
        np.testing.assert_allclose(np.asarray(found, np.float32), wanted, atol=0.02 * np.abs(wanted).max())
    for way in (gradients, jax.grad(lambda *of: joint(DivergenceConfig(), labels, weights, 1, *of)[0], (0, 1, 2, 3))):
        text = str(jax.make_jaxpr(way)(*arrays))
        assert "f32[4,2,41]" in text and "[4,7,41]" not in text
        assert [of.dtype for of in jax.eval_shape(way, *arrays)] == [array.dtype for array in arrays]


def test_as_in_the_released_code():
    """Numbers: softmax over the examples of the batch, divided by their number. Tags: all positions of all examples."""
    legacy, plain = DivergenceConfig(legacy=True), DivergenceConfig()
    clean, other, present = drawn(4), drawn(4, seed=1), np.array([1, 1, 1, 0], np.float32)
    found = divergence(Values(jnp.asarray(clean)), Values(jnp.asarray(other)), PredictionWeights(present), legacy)
    np.testing.assert_allclose(found, expected(clean[None, :3], other[None, :3], np.ones(1), plain)[0], rtol=1e-5)
    assert total_weight(PredictionWeights(present), legacy) == 3
    tags, weights = (drawn(2, 3, 5), drawn(2, 3, 5, seed=1)), PredictionWeights(WEIGHTS, jnp.array([1.0, 0.0]))
    rows = np.array([[1, 1, 1], [0, 0, 0]])
    found = divergence(*map(Categorical, tags), weights, legacy)
    np.testing.assert_allclose(found, expected(*tags, rows, plain)[0], rtol=1e-5)
    assert total_weight(weights, legacy) == 1 and total_weight(weights, plain) == 4.5
    found = divergence(*map(Categorical, tags), weights, plain)
    np.testing.assert_allclose(found, expected(*tags, WEIGHTS, plain)[0], rtol=1e-5)

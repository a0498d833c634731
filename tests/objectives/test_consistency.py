"""How far predictions are apart: against scipy, for every form, with its gradients; words a few positions at a time."""

import functools
import itertools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy import special as functions

from ag_jax import config_reader
from ag_jax.models.masked_lm import word_scores
from ag_jax.objectives import word_loss
from ag_jax.objectives.adversarial.config import AdversarialConfig, AsaConfig, FixedMaskConfig
from ag_jax.objectives.consistency import DivergenceConfig, Form, StopGradient, divergence, total_weight
from ag_jax.objectives.predictions import Categorical, PredictionWeights, Values, WordDistributions, YesNo
from tests.cases import some

ALL = [DivergenceConfig(form, stopped) for form, stopped in itertools.product(get_args(Form), get_args(StopGradient))]
WEIGHTS = np.array([[1, 1, 0.5], [0, 2, 0]], np.float32)


@pytest.fixture(params=ALL, ids=lambda config: f"{config.form}-{config.stop_gradient}")
def config(request):
    return request.param


def drawn(*shape, seed=0):
    return jnp.asarray(2 * np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def kl(p, q):
    return functions.rel_entr(p, q).sum(-1)


def expected(clean, other, weights, form):
    """Of logits, in float64."""
    p, q = (functions.softmax(np.asarray(logits, np.float64), axis=-1) for logits in (clean, other))
    forth, back = kl(p, q), kl(q, p)
    return (weights * (forth if form == "one_way" else (forth + back) / 2)).sum()


def test_distributions(config):
    clean, other = drawn(2, 3, 5), drawn(2, 3, 5, seed=1)
    found = divergence(Categorical(clean), Categorical(other), PredictionWeights(WEIGHTS), config)
    np.testing.assert_allclose(found, expected(clean, other, WEIGHTS, config.form), rtol=1e-5)
    assert divergence(Categorical(clean), Categorical(clean), PredictionWeights(WEIGHTS), config) == 0
    assert total_weight(PredictionWeights(WEIGHTS), config) == 4.5


def test_yes_and_no(config):
    clean, other = drawn(2, 3), drawn(2, 3, seed=1)
    both = [np.stack([logits, 0 * logits], axis=-1) for logits in (clean, other)]
    found = divergence(YesNo(clean), YesNo(other), PredictionWeights(WEIGHTS), config)
    np.testing.assert_allclose(found, expected(*both, WEIGHTS, config.form), rtol=1e-5)


def test_numbers_and_vectors(config):
    clean, other = drawn(2, 3), drawn(2, 3, seed=1)
    found = divergence(Values(clean), Values(other), PredictionWeights(WEIGHTS), config)
    np.testing.assert_allclose(found, (WEIGHTS * (clean - other) ** 2).sum(), rtol=1e-6)
    vectors = drawn(2, 3, 7), drawn(2, 3, 7, seed=1)
    found = divergence(*map(Values, vectors), PredictionWeights(WEIGHTS), config)
    np.testing.assert_allclose(found, (WEIGHTS * ((vectors[0] - vectors[1]) ** 2).mean(-1)).sum(), rtol=1e-6)


def test_what_may_not_be_chosen_brings_nothing_and_no_nan(config):
    clean, other = (drawn(2, 3, 5, seed=seed).at[:, :, 3:].set(-1e9).at[1, 0].set(-1e9) for seed in (0, 1))
    slope = jax.value_and_grad(
        lambda *both: divergence(*map(Categorical, both), PredictionWeights(WEIGHTS), config), argnums=(0, 1)
    )
    found, gradients = slope(clean, other)
    np.testing.assert_allclose(found, expected(clean[..., :3], other[..., :3], WEIGHTS, config.form), rtol=1e-5)
    assert all(np.isfinite(gradient).all() and not gradient[..., 3:].any() for gradient in gradients)


def test_who_learns(config):
    """A stopped clean pass gets no gradient; a stopped target leaves that of the cross entropy to it."""
    clean, other = drawn(2, 3, 5), drawn(2, 3, 5, seed=1)
    p, q = (np.asarray(functions.softmax(np.asarray(logits, np.float64), axis=-1)) for logits in (clean, other))

    def value(*both):
        return divergence(*map(Categorical, both), PredictionWeights(WEIGHTS), config)

    of_clean, of_other = jax.grad(value, argnums=(0, 1))(clean, other)
    weights = WEIGHTS[..., None] * (1 if config.form == "one_way" else 0.5)
    if config.stop_gradient == "none":
        check_grads(value, (clean / 2, other / 2), order=1, modes=["rev"], eps=1e-2, rtol=1e-2)
    if config.stop_gradient == "clean":
        assert not of_clean.any() and of_other.any()
    if config.stop_gradient == "targets":
        np.testing.assert_allclose(of_other, weights * (q - p), atol=1e-6)
        np.testing.assert_allclose(of_clean, 0 if config.form == "one_way" else weights * (p - q), atol=1e-6)


def words(batch=3, positions=7, width=5, number=41, dtype="float32"):
    rng = np.random.default_rng(0)
    hiddens = [jnp.asarray(rng.standard_normal((batch, positions, width)), dtype) for _ in range(2)]
    embedding, bias = jnp.asarray(rng.standard_normal((number, width)), dtype), drawn(number)
    return (*hiddens, embedding, bias), jnp.asarray(rng.random((batch, positions)) < 0.7, jnp.float32) * 1.5


@pytest.mark.parametrize(
    ("config", "together"),
    some(itertools.product(ALL, [2, 7, 100]), *zip(ALL, itertools.cycle([2, 7, 100]), strict=False)),
    ids=lambda value: f"{value.form}-{value.stop_gradient}" if isinstance(value, DivergenceConfig) else None,
    indirect=["config"],
)
def test_words_are_compared_whatever_the_part(monkeypatch, config, together):
    monkeypatch.setattr(word_loss, "POSITIONS", together)
    arrays, weights = words()

    def by_parts(clean, other, embedding, bias):
        return divergence(
            WordDistributions(clean, embedding, bias),
            WordDistributions(other, embedding, bias),
            PredictionWeights(weights),
            config,
        )

    def whole(clean, other, embedding, bias):
        scores = (Categorical(word_scores(hidden, embedding, bias)) for hidden in (clean, other))
        return divergence(*scores, PredictionWeights(weights), config)

    np.testing.assert_allclose(by_parts(*arrays), whole(*arrays), rtol=1e-5)
    of_all = functools.partial(jax.grad, argnums=(0, 1, 2, 3))
    found, wanted = (jax.jit(of_all(lambda *of, f=f: 3 * f(*of) ** 2))(*arrays) for f in (by_parts, whole))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6 * float(jnp.abs(wanted[2]).max()))
    assert config.stop_gradient != "clean" or not found[0].any()


def test_words_in_bfloat16_and_never_all_scores(monkeypatch):
    monkeypatch.setattr(word_loss, "POSITIONS", 2)
    arrays, weights = words(dtype="bfloat16")

    def value(clean, other, embedding, bias):
        return divergence(
            WordDistributions(clean, embedding, bias),
            WordDistributions(other, embedding, bias),
            PredictionWeights(weights),
            DivergenceConfig(),
        )

    gradients = jax.grad(value, argnums=(0, 1, 2, 3))(*arrays)
    assert [gradient.dtype for gradient in gradients] == [array.dtype for array in arrays]
    text = str(jax.make_jaxpr(jax.grad(value, argnums=(0, 1, 2, 3)))(*arrays))
    assert "f32[3,2,41]" in text and "[3,7,41]" not in text


def test_as_in_the_released_code():
    """Numbers: softmax over the examples of the batch, divided by their number. Tags: all positions of all examples."""
    legacy = DivergenceConfig(legacy=True)
    clean, other, present = drawn(4), drawn(4, seed=1), np.array([1, 1, 1, 0], np.float32)
    weights = PredictionWeights(jnp.asarray(present))
    found = divergence(Values(clean), Values(other), weights, legacy) / total_weight(weights, legacy)
    np.testing.assert_allclose(
        found, expected(clean[None, :3], other[None, :3], np.ones(1), "symmetric") / 3, rtol=1e-5
    )
    tags = drawn(2, 3, 5), drawn(2, 3, 5, seed=1)
    weights = PredictionWeights(jnp.asarray(WEIGHTS), jnp.array([1.0, 1.0]))
    found = divergence(*map(Categorical, tags), weights, legacy) / total_weight(weights, legacy)
    np.testing.assert_allclose(found, expected(*tags, np.ones((2, 3)), "symmetric") / 2, rtol=1e-5)
    assert total_weight(weights, DivergenceConfig()) == 4.5


@pytest.mark.parametrize(("name", "value"), [("form", "jensen"), ("stop_gradient", "other")])
def test_what_cannot_be_is_refused(name, value):
    of = DivergenceConfig(**{name: value})
    for section, config in (("asa", AsaConfig), ("masking", FixedMaskConfig)):
        with pytest.raises(
            ValueError, match=f"adversarial.{section}.divergence.{name} must be one of .*, got '{value}'"
        ):
            config_reader.check(AdversarialConfig(**{section: config(divergence=of)}), "adversarial")

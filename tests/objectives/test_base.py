"""The contract of objectives: delegation, the factors of the loss, what passes cost, delayed attacks, and refusals."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention.config import GuidanceConfig
from ag_jax.attention.guidance import guided_layers
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import (
    AdversarialConfig,
    AsaConfig,
    FixedMaskConfig,
    FreeLBConfig,
    SiftConfig,
    SmartConfig,
)
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.adversarial.r_drop import r_drop
from ag_jax.objectives.base import Objective, Wrapper, loss_factors
from ag_jax.objectives.config import TranslationConfig
from ag_jax.objectives.guided import Guided
from ag_jax.objectives.translation import Translation
from ag_jax.settings import schema
from tests import tiny
from tests import tiny_translation as small
from tests.objectives import perturbed

STEP = perturbed.STEP
SETTING = adversarial.AttackContext(tiny.config(dropout=0.1, embedding_width=3), 10)
ATTACKS = {
    "bernoulli": AdversarialConfig("bernoulli"),
    "smart": AdversarialConfig("smart", smart=SmartConfig(noise=1e-2, step_size=1e-2, epsilon=0.1)),
    "sift": AdversarialConfig("sift", sift=SiftConfig()),
    "r_drop": AdversarialConfig("r_drop"),
    "asa": AdversarialConfig("asa"),
    "freelb": AdversarialConfig("freelb", freelb=FreeLBConfig(step_size=0.3)),
}


def test_a_wrapper_delegates_the_whole_contract():
    """Arguments keep their order; methods that are added to `Objective` later are included."""
    derived = {"loss", "loss_of", "value_and_grad"}  # made of the others, so that a wrapper's own terms are in them
    contract = {name for name, _ in inspect.getmembers(Objective, inspect.isfunction)} - derived
    assert not derived & set(vars(Wrapper))
    names = {name: lambda self, *given, name=name: (name, *given) for name in contract}
    inner = type("Inner", (Objective,), {**names, "primary_metric": "metric", "prediction_names": "names"})()
    for name in contract:
        given = tuple(range(len(inspect.signature(getattr(Objective, name)).parameters) - 1))
        assert getattr(Wrapper(inner), name)(*given) == (name, *given)
    assert (Wrapper(inner).primary_metric, Wrapper(inner).prediction_names) == ("metric", "names")


def test_what_computes_its_own_gradient_is_outermost():
    other = type("Other", (FreeLB,), {})  # inherits the gradient
    freelb, guided = other(perturbed.Linear(), FreeLBConfig(), 3), tiny.guided(tiny.model())
    with pytest.raises(ValueError, match="Other .*Guided"):
        dataclasses.replace(guided, inner=freelb)
    for method, config in ATTACKS.items():
        with pytest.raises(ValueError, match="outermost"):
            adversarial.wrap(freelb, config, SETTING)
        assert isinstance(adversarial.wrap(guided, config, SETTING).inner, Guided), method


@pytest.mark.parametrize("method", ATTACKS)
def test_loss_and_gradient_are_those_of_the_terms_and_factors_given(method):
    """Factors of a larger batch, as microbatches get them: half of them halve loss and gradient of every term."""
    inner, batch = perturbed.Linear(has_size=True), perturbed.linear_batch()
    objective = adversarial.wrap(inner, ATTACKS[method], SETTING)
    factors = loss_factors(objective, batch, STEP)
    weights, coefficients = objective.normalizers(batch), objective.coefficients(STEP)
    added = {"sift": {"sift": 5}, "freelb": {}, "asa": {"asa": 1, "penalty": 0.09}, "bernoulli": {"masking": 1}}
    added = added.get(method, {method: 1})
    assert {**coefficients} == pytest.approx({"task": 1, "size": 0.5, **added})
    assert weights == {"task": 3, "size": 7, **dict.fromkeys(added, 3)}
    for term, factor in factors.items():
        np.testing.assert_allclose(factor, coefficients[term] / weights[term], rtol=1e-6)
    nothing = jax.tree.map(np.zeros_like, batch)
    assert loss_factors(objective, nothing, STEP) == coefficients, "without examples the divisor is 1"
    if method in ("asa", "bernoulli"):
        return  # of a model with attention
    run = jax.jit(functools.partial(objective.value_and_grad, perturbed.W, batch, {"dropout": perturbed.KEY}, STEP))
    (loss, metrics), gradient = run(factors)
    (half, again), half_gradient = run({term: factor / 2 for term, factor in factors.items()})
    np.testing.assert_allclose(half, loss / 2, rtol=1e-5)
    perturbed.close(half_gradient, jax.tree.map(lambda leaf: leaf / 2, gradient), rtol=1e-4)
    for name in metrics:
        np.testing.assert_allclose(again[name][0], metrics[name][0], rtol=1e-5, atol=1e-6, err_msg=name)
    assert run(factors | {"size": jnp.float32(0)})[0][0] < loss, "every term has a factor"


@functools.cache
def priced():
    model = tiny.task_model("classification", width=96, heads=3, feedforward=384, layers=1)
    objective, batch = tiny.supervised(model), tiny.task_batch("classification")
    params = perturbed.params_of(objective, batch)
    return objective, batch, params, perturbed.flops(objective, params, batch)


@pytest.mark.parametrize(
    ("attack", "passes"),
    [
        (lambda inner: FreeLB(inner, FreeLBConfig(steps=2, count="fairseq"), 96), 3),
        # A pass is one part forward and two backward; for each step of the noise there is one of each.
        (lambda inner: adversarial.smart(inner, SmartConfig(steps=2), 96), 2 + 2 * 2 / 3),
        # Without dropout, both forward passes are the same, and XLA computes them once.
        pytest.param(lambda inner: r_drop(inner, ATTACKS["r_drop"].r_drop), 5 / 3, marks=pytest.mark.exhaustive),
    ],
    ids=["freelb", "smart", "r_drop"],
)
def test_a_step_costs_as_many_passes(attack, passes):
    objective, batch, params, plain = priced()
    assert 0.9 * passes < perturbed.flops(attack(objective), params, batch) / plain < 1.1 * passes


def check_step(found, expected):
    """Assert that loss, metrics and gradient are the same; a weight of 0 stands for no measurement."""
    assert found[0] == expected[0]
    jax.tree.map(np.testing.assert_array_equal, found[2], expected[2])
    for name, (total, weight) in found[1].items():
        wanted = expected[1].get(name, (np.zeros_like(total), np.zeros_like(weight)))
        jax.tree.map(np.testing.assert_array_equal, (total, weight), wanted)


def test_until_freelb_begins_a_step_is_that_without_it():
    delayed, at_once = (
        FreeLB(perturbed.Linear(), FreeLBConfig(init_magnitude=1.0, begin_step=begin), 3) for begin in (5, 0)
    )
    for step, alone in ((4, delayed.inner), (5, at_once)):
        found, expected = (
            perturbed.trained(of, perturbed.W, perturbed.linear_batch(), 2, jnp.int32(step)) for of in (delayed, alone)
        )
        check_step(found, expected)
        assert np.any(found[1]["delta_norm"][1]) == (step == 5)


def test_until_an_attack_on_attention_begins_a_step_is_that_without_it():
    """Once it has begun, the loss has all terms, and the adversary learns."""
    inner, batch = tiny.supervised(tiny.task_model("classification", layers=1)), tiny.task_batch("classification")
    delayed = perturbed.attacked(inner, shape=inner.model.config, delay_steps=5)
    params = perturbed.params_of(delayed, batch)
    before, after = (perturbed.trained(delayed, params, batch, step=jnp.int32(step)) for step in (4, 5))
    model = {name: of for name, of in params.items() if name != "adversary"}
    loss, metrics, gradient = perturbed.trained(inner, model, batch, step=jnp.int32(4))
    check_step(before, (loss, metrics, gradient | {"adversary": jax.tree.map(np.zeros_like, params["adversary"])}))
    parts = {name: total / weight for name, (total, weight) in after[1].items() if name != "masked/layers"}
    np.testing.assert_allclose(after[0], parts["task_loss"] + parts["asa_loss"] + 0.09 * parts["kept_units"], rtol=1e-6)
    assert 0.1 < parts["masked"] < 0.9 and parts["asa_loss"] > 1e-3
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(after[2]["adversary"]))


def wrapped(config, encoder=tiny.CONFIG, inner=None):
    return adversarial.wrap(inner or perturbed.Linear(), config, adversarial.AttackContext(encoder, 10))


def layers(text):
    return guided_layers(GuidanceConfig("loss", layers=text), (False,) * 3, None)


def pairs(*tests):
    return TranslationConfig(tests=tests)


def made(*kind_and_style):
    return tiny.task_model(*kind_and_style).init(jax.random.key(0), {}, deterministic=True)


SMART, RMS = AdversarialConfig("smart"), tiny.config(norm="rms", norm_biases=False)
DELAYED = AdversarialConfig("asa", asa=AsaConfig(delay_steps=8))
LATE = AdversarialConfig("freelb", freelb=FreeLBConfig(begin_step=3))
REFUSED = [
    (lambda: wrapped(ATTACKS["r_drop"]), "attention_dropout"),
    (lambda: wrapped(ATTACKS["sift"], RMS), "sift.normalize"),
    (lambda: wrapped(ATTACKS["sift"], small.CONFIG, Translation(small.model())), "model.embedding_norm"),
    (lambda: wrapped(SMART, tiny.config(dtype="bfloat16")), "smart.epsilon"),
    (lambda: AdversarialConfig("scheduled"), "masking.trace"),
    (lambda: DELAYED.check_begins(8, 1), "asa.delay_steps"),
    (lambda: DELAYED.check_begins(10, 2), "asa.delay_steps"),  # its warm-up would not end
    (lambda: LATE.check_begins(3, 0), "freelb.begin_step"),
    (lambda: schema.check(FreeLBConfig(steps=0), "adversarial.freelb"), "adversarial.freelb.steps"),
    (lambda: pairs("a=b"), "translation.tests"),
    (lambda: pairs("a==c"), "translation.tests"),
    (lambda: pairs("a=b=c", "a=d=e"), "a, a"),
    (lambda: pairs("a=b=c", "wmt14/en=d=e"), "wmt14/en"),
    (lambda: pairs("..=b=c"), "translation.tests"),
    (lambda: layers("3"), "'3'"),
    (lambda: layers("2-1"), "2-1"),
    (lambda: layers("0,,1"), "''"),
    (lambda: layers("local"), "local"),
    (lambda: made("haiku"), "haiku"),
    (lambda: made("span", "xlnet"), "xlnet"),
]


@pytest.mark.parametrize(("attempt", "named"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_cannot_be_is_refused(attempt, named):
    with pytest.raises(ValueError, match=named):
        attempt()


def test_what_can_be_is_not_refused():
    for dtype, settings in (("float32", {}), ("bfloat16", {"epsilon": 2e-3}), ("bfloat16", {"mtdnn_compat": True})):
        config = AdversarialConfig("smart", smart=SmartConfig(**settings))
        assert wrapped(config, tiny.config(dtype=dtype)).term == "smart"
    assert wrapped(AdversarialConfig("sift", sift=SiftConfig(normalize="unit")), RMS).term == "sift"
    assert pairs("one=a.en=a.de").test_sets == {"one": ("a.en", "a.de")}
    DELAYED.check_begins(10, 1), LATE.check_begins(4, 9), AdversarialConfig("smart", asa=DELAYED.asa).check_begins(1, 0)
    assert wrapped(AdversarialConfig()) == perturbed.Linear()
    assert all(adversarial.init(AdversarialConfig(of), tiny.CONFIG, STEP) == {} for of in ("none", "bernoulli"))


@pytest.mark.parametrize(
    ("method", "section", "sentence"),
    [("asa", "asa", "none"), ("magnitude", "masking", "squares"), ("freelb", "freelb", "none"), ("none", "", "none")],
)
def test_the_settings_of_a_method(method, section, sentence):
    """Other sections are not in effect; only attacks on attention compare first positions."""
    others = {"masking": FixedMaskConfig(sentence="squares"), "asa": AsaConfig(tau=0.1, sentence="none")}
    config = AdversarialConfig(method, **others, freelb=FreeLBConfig(steps=3))
    assert config.in_effect == AdversarialConfig(method, **({section: getattr(config, section)} if section else {}))
    assert config.attention_attack == others.get(section) and config.sentence_prediction == sentence
    assert AsaConfig(tau=0.1).penalty == pytest.approx(0.01) and AsaConfig(tau=0.1, tau_power=1).penalty == 0.1

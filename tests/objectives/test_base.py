"""The contract of objectives: delegation by wrappers, the order of wrappers, and the factors of the loss."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, FreeLBConfig, SiftConfig, SmartConfig
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.base import Objective, Wrapper, loss_factors
from ag_jax.objectives.guided import Guided
from tests import tiny
from tests.cases import some
from tests.objectives import adversaries, perturbed

STEP = perturbed.STEP
# Attacks are told of dropout, which `r_drop` needs; the models of the cases have none.
SETTING = adversarial.AttackContext(tiny.config(dropout=0.1), 10)
ATTACKS = {
    "bernoulli": AdversarialConfig("bernoulli"),
    "smart": AdversarialConfig("smart", smart=SmartConfig(noise=1e-2, step_size=1e-2, epsilon=0.1)),
    "sift": AdversarialConfig("sift", sift=SiftConfig()),
    "r_drop": AdversarialConfig("r_drop"),
    "asa": AdversarialConfig("asa"),
    "freelb": AdversarialConfig("freelb", freelb=FreeLBConfig(step_size=0.3)),
}


def test_a_wrapper_that_overrides_nothing_is_the_inner_objective():
    """Every method of the contract, on an objective with guidance and several terms."""
    objective, batch = perturbed.CASES["nsp"]
    params, expected = perturbed.plain("nsp")
    wrapped = Wrapper(objective)
    jax.tree.map(np.testing.assert_array_equal, perturbed.trained(wrapped, params, batch), expected)
    assert (wrapped.primary_metric, wrapped.prediction_names) == (objective.primary_metric, objective.prediction_names)
    jax.tree.map(np.testing.assert_array_equal, wrapped.prediction_weights(batch), objective.prediction_weights(batch))
    both = (jax.jit(functools.partial(of.predict, rngs=None, step=STEP))(params, batch) for of in (wrapped, objective))
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_a_wrapper_delegates_the_whole_contract():
    """Otherwise a method that is added to the contract would be the base class's in every
    wrapper, not the inner one's.
    """
    derived = {"loss", "loss_of", "value_and_grad"}  # made of the others, so that a wrapper's own terms are in them
    contract = {name for name, _ in inspect.getmembers(Objective, inspect.isfunction)} | set(Objective.__annotations__)
    assert contract - derived <= set(vars(Wrapper)) and not derived & set(vars(Wrapper))


def test_what_computes_its_own_gradient_is_outermost():
    freelb = FreeLB(perturbed.Linear(), FreeLBConfig(), 3)
    guided = tiny.guided(tiny.model())
    with pytest.raises(ValueError, match="FreeLB .* wrap it around Guided"):
        dataclasses.replace(guided, inner=freelb)
    for method, config in ATTACKS.items():
        with pytest.raises(ValueError, match="FreeLB computes its gradient itself and must be the outermost"):
            adversarial.wrap(freelb, config, SETTING)
        inner = adversarial.wrap(guided, config, SETTING).inner
        assert isinstance(inner, Guided), method


def test_a_subclass_of_it_is_outermost_too():
    class Other(FreeLB):
        """Inherits the gradient."""

    with pytest.raises(ValueError, match="Other computes its gradient itself"):
        Wrapper(Other(perturbed.Linear(), FreeLBConfig(), 3))


@pytest.mark.parametrize("method", some(ATTACKS, "freelb", "sift"))
def test_loss_and_gradient_are_those_of_the_terms_and_factors_given(method):
    """Factors of a larger batch, as microbatches get them: twice the weights halve loss and gradient of every term."""
    inner, batch = perturbed.CASES["guided"]
    objective = adversarial.wrap(inner, ATTACKS[method], SETTING)
    params = adversaries.params_of(objective, batch) if method == "asa" else perturbed.params_of(inner, batch)
    factors = loss_factors(objective, batch, STEP)
    weights, coefficients = objective.normalizers(batch), objective.coefficients(STEP)
    assert {"task", "ag"} <= factors.keys() == weights.keys() == coefficients.keys()
    for found, wanted in ((weights, inner.normalizers(batch)), (coefficients, inner.coefficients(STEP))):
        assert {term: float(found[term]) for term in wanted} == {term: float(wanted[term]) for term in wanted}
    for term, factor in factors.items():
        np.testing.assert_allclose(factor, coefficients[term] / weights[term], rtol=1e-6)
    run = jax.jit(lambda factors: objective.value_and_grad(params, batch, {"dropout": perturbed.KEY}, STEP, factors))
    (loss, metrics), gradient = run(factors)
    (half, again), half_gradient = run({term: factor / 2 for term, factor in factors.items()})
    np.testing.assert_allclose(half, loss / 2, rtol=1e-5)
    perturbed.close(half_gradient, jax.tree.map(lambda leaf: leaf / 2, gradient), rtol=1e-4)
    for name in metrics:
        np.testing.assert_allclose(again[name][0], metrics[name][0], rtol=1e-5, atol=1e-6, err_msg=name)
    without = run(factors | {"ag": jnp.float32(0)})[0][0]
    assert without < loss, "every term has a factor"

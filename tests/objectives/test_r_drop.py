"""R-Drop: against two plain passes."""

import jax
import numpy as np
from scipy import special as functions

from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, RDropConfig
from ag_jax.objectives.adversarial.r_drop import r_drop
from ag_jax.objectives.config import DivergenceConfig
from tests import tiny
from tests.objectives import perturbed
from tests.objectives.test_consistency import expected

OTHER = jax.random.fold_in(perturbed.KEY, 0x5A)


def test_the_same_as_two_plain_passes():
    """Tags: cross entropy of the first pass, and KL both ways; the gradient is that of both passes' logits."""
    model, batch = tiny.task_model("tagging", layers=1, attention_dropout=0.3), tiny.task_batch("tagging")
    inner = tiny.supervised(model)
    params, objective = perturbed.params_of(inner, batch), r_drop(inner, RDropConfig(0.7))
    weights = (batch["label_weights"] * batch["weights"][:, None]).astype(np.float64)

    @jax.jit
    def passes(params, cotangents):
        def logits(params):
            keys = (perturbed.KEY, OTHER)
            return [model.apply({"params": params}, batch, deterministic=False, rngs={"dropout": key}) for key in keys]

        found, pull_back = jax.vjp(logits, params)
        return found, pull_back(cotangents)[0]

    nothing = np.zeros((8, tiny.LENGTH, 3), np.float32)
    one, other = (np.asarray(of, np.float64) for of in passes(params, [nothing, nothing])[0])
    distance, slopes = expected(one, other, 0.7 * weights, DivergenceConfig())
    log_p, labels = functions.log_softmax(one, axis=-1), np.eye(3)[batch["labels"]]
    loss, metrics, gradient = perturbed.trained(objective, params, batch)
    entropy = -(weights[..., None] * labels * log_p).sum()
    np.testing.assert_allclose(loss, (distance + entropy) / weights.sum(), 1e-5)
    np.testing.assert_allclose(metrics["r_drop_loss"], (distance / 0.7, weights.sum()), rtol=1e-4)
    assert metrics["r_drop_loss"][0] > 0.01
    slopes = slopes[0] + weights[..., None] * (np.exp(log_p) - labels), slopes[1]
    slopes = [np.float32(of / weights.sum()) for of in slopes]
    perturbed.close(gradient, passes(params, slopes)[1])
    perturbed.evaluated_as_without(objective, params, batch)


def test_only_dropout_differs():
    """Values of a linear model with noise: the second pass has another key, and no other number."""
    batch, w = perturbed.linear_batch(), np.asarray(perturbed.W["w"], np.float64)
    objective = r_drop(perturbed.Noisy(perturbed.Linear()), RDropConfig(3.0, DivergenceConfig("one_way")))
    apart = perturbed.noise_of(perturbed.KEY) - perturbed.noise_of(OTHER)
    squares = ((apart * batch["segment_ids"][:, :, None]).sum(1) @ w) ** 2
    loss, metrics, _ = perturbed.trained(objective, perturbed.W, batch)
    np.testing.assert_allclose(metrics["r_drop_loss"], (squares.sum(), 3), rtol=1e-5)
    np.testing.assert_allclose(loss, (metrics["task_loss"][0] + 3 * squares.sum()) / 3, rtol=1e-5)
    config = AdversarialConfig("r_drop")
    for name in ("dropout", "attention_dropout"):  # one of both rates is enough
        context = adversarial.AttackContext(tiny.config(**{name: 0.1}), 10)
        assert adversarial.wrap(perturbed.Linear(), config, context).term == "r_drop"

"""R-Drop: against two plain passes, without dropout, beside masks that keep everything, and its settings."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as functions

from ag_jax import config_reader
from ag_jax.attention.attack import MaskPolicy
from ag_jax.models.encoder import Ports
from ag_jax.objectives.adversarial import wrap as adversarial
from ag_jax.objectives.adversarial.config import AdversarialConfig, RDropConfig
from ag_jax.objectives.adversarial.masking import RandomMasks
from ag_jax.objectives.adversarial.r_drop import r_drop
from ag_jax.objectives.adversarial.self_attention import AttackedAttention
from ag_jax.objectives.base import Wrapper
from ag_jax.objectives.consistency import DivergenceConfig
from ag_jax.objectives.masked_lm import Pretraining
from tests import tiny
from tests.cases import some
from tests.objectives import perturbed

DROPS = {"dropout": 0.2, "attention_dropout": 0.3}
RNGS = {"dropout": perturbed.KEY}
OTHER = {"dropout": jax.random.fold_in(perturbed.KEY, 0x5A)}


def kl(one, other):
    """KL(p || q) of each row of logits."""
    log_p, log_q = (functions.log_softmax(np.asarray(of, np.float64), axis=-1) for of in (one, other))
    return (np.exp(log_p) * (log_p - log_q)).sum(-1)


@pytest.mark.parametrize(
    ("kind", "form"),
    some(
        itertools.product(["classification", "tagging"], ["symmetric", "one_way"]),
        ("tagging", "symmetric"),
    ),
)
def test_the_same_as_two_plain_passes(kind, form):
    """Cross entropy of the first pass, and KL of both by the sum of weights; the gradient as JAX has it of this sum."""
    model, batch = tiny.task_model(kind, **DROPS), tiny.task_batch(kind)
    inner = tiny.supervised(model)
    params, weight = perturbed.params_of(inner, batch), 0.7
    objective = r_drop(inner, RDropConfig(weight, DivergenceConfig(form=form)))
    weights = np.asarray(batch["label_weights" if kind == "tagging" else "weights"], np.float64)
    weights = weights * np.asarray(batch["weights"])[:, None] if kind == "tagging" else weights

    def passes(params):
        return [model.apply({"params": params}, batch, deterministic=False, rngs=rngs) for rngs in (RNGS, OTHER)]

    one, other = jax.jit(passes)(params)
    assert np.abs(np.asarray(one - other))[weights > 0].min(-1).max() > 1e-3, "dropout is independent"
    distance = kl(one, other) if form == "one_way" else (kl(one, other) + kl(other, one)) / 2
    log_p = functions.log_softmax(np.asarray(one, np.float64), axis=-1)
    entropy = -np.take_along_axis(log_p, np.asarray(batch["labels"])[..., None], -1)[..., 0]
    expected = (weights * (entropy + weight * distance)).sum() / weights.sum()

    def plainly(params):
        log_p, log_q = (jax.nn.log_softmax(logits) for logits in passes(params))
        of_labels = jnp.take_along_axis(log_p, batch["labels"][..., None], -1)[..., 0]
        there = (jnp.exp(log_p) * (log_p - log_q)).sum(-1)
        back = (jnp.exp(log_q) * (log_q - log_p)).sum(-1)
        found = there if form == "one_way" else (there + back) / 2
        return (weights.astype(np.float32) * (weight * found - of_labels)).sum() / weights.sum().astype(np.float32)

    loss, metrics, gradient = perturbed.trained(objective, params, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["r_drop_loss"][0], (weights * distance).sum(), rtol=1e-4)
    np.testing.assert_allclose(metrics["r_drop_loss"][1], weights.sum())
    perturbed.close(gradient, jax.jit(jax.grad(plainly))(params))
    evaluated = [tiny.evaluate(of, params, batch, None, perturbed.STEP).totals for of in (inner, objective)]
    assert evaluated[0].keys() == evaluated[1].keys()
    np.testing.assert_array_equal(*(list(totals.values()) for totals in evaluated))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["classification", "regression", "nsp"])
def test_without_dropout_nothing_is_added(name):
    """The divergence is exactly 0, and the gradient is that of the inner objective."""
    (objective, batch), (params, plain) = perturbed.CASES[name], perturbed.plain(name)
    loss, metrics, gradient = perturbed.trained(r_drop(objective, RDropConfig(weight=5.0)), params, batch)
    added = {key for key in metrics if key.startswith("r_drop")}
    assert added == {"r_drop_loss"} | ({"r_drop_nsp_loss"} if name == "nsp" else set())
    assert all(metrics[key][0] == 0 and metrics[key][1] > 0 for key in added)
    np.testing.assert_allclose(loss, plain[0], rtol=1e-6)
    perturbed.close(gradient, plain[2], rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class KeepAll:
    """An attack that masks nothing."""

    def __call__(self, params, encoder_batch, step):
        return RandomMasks(jnp.zeros(tiny.CONFIG.layers), MaskPolicy())


def test_it_is_attention_attacked_by_masks_that_keep_everything():
    """Words and next sentences of pre-training, beside guidance: the second passes have the same dropout."""
    inner, batch = tiny.guided(tiny.model(**DROPS)), tiny.mixed_batch()
    params = perturbed.params_of(inner, batch)
    kept = AttackedAttention(inner, "masking", KeepAll(), DivergenceConfig())
    expected, found = (perturbed.trained(of, params, batch) for of in (kept, r_drop(inner, RDropConfig())))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    perturbed.close(found[2], expected[2])
    for name in ("loss", "nsp_loss"):
        np.testing.assert_allclose(found[1][f"r_drop_{name}"], expected[1][f"masking_{name}"], rtol=1e-5)
        assert found[1][f"r_drop_{name}"][0] > 1e-3


@dataclasses.dataclass(frozen=True)
class Recorded(Wrapper):
    """An objective that remembers the ports of its second passes."""

    ports: list = dataclasses.field(default_factory=list, hash=False)

    def predict(self, params, encoder_batch, rngs, step, ports=Ports()):
        self.ports.append(ports)
        return self.inner.predict(params, encoder_batch, rngs, step, ports)


def test_it_has_nothing_of_a_mask():
    """No attack in the second pass, no masked share, no parameters, and nothing at first positions in pre-training."""
    inner = Recorded(Pretraining(tiny.model(**DROPS)))
    config, encoder = AdversarialConfig("r_drop", r_drop=RDropConfig(weight=3.0)), tiny.config(**DROPS)
    objective = adversarial.wrap(inner, config, adversarial.AttackContext(encoder, 10))
    assert objective == r_drop(inner, RDropConfig(weight=3.0)) and config.in_effect == config
    batch = tiny.mixed_batch()
    metrics = perturbed.trained(objective, perturbed.params_of(inner, batch), batch)[1]
    assert inner.ports and all(ports == Ports() for ports in inner.ports)
    assert not {name for name in metrics if "mask" in name or "adversary" in name}
    assert {term: float(value) for term, value in objective.coefficients(perturbed.STEP).items()} == {
        **{"mlm": 1, "nsp": 1},
        **{"r_drop": 3, "r_drop_nsp": 3},
    }
    assert adversarial.init(config, encoder, perturbed.KEY) == {}
    assert config.attention_attack is None and config.sentence_prediction == "none"


@pytest.mark.exhaustive
def test_it_costs_two_passes():
    settings = {"width": 96, "heads": 3, "feedforward": 384, **DROPS}
    objective = tiny.supervised(tiny.task_model("classification", **settings))
    batch = tiny.task_batch("classification")
    params = perturbed.params_of(objective, batch)
    cost, plain = (perturbed.flops(of, params, batch) for of in (r_drop(objective, RDropConfig()), objective))
    assert 1.9 < cost / plain < 2.1


def test_a_model_without_dropout_is_rejected():
    """One of both rates is enough."""
    inner, config = perturbed.Linear(), AdversarialConfig("r_drop")
    with pytest.raises(ValueError, match="r_drop compares two passes .* attention_dropout of the model are 0"):
        adversarial.wrap(inner, config, adversarial.AttackContext(tiny.CONFIG, 10))
    for name in DROPS:
        context = adversarial.AttackContext(tiny.config(**{name: 0.1}), 10)
        assert adversarial.wrap(inner, config, context).term == "r_drop"
    with pytest.raises(ValueError, match="adversarial.r_drop.weight must be .*at least 0"):
        config_reader.check(AdversarialConfig(r_drop=RDropConfig(weight=-1.0)), "adversarial")

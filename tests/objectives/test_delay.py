"""Attacks that begin after some steps: until then a step is that of the objective without the attack."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.objectives.adversarial.config import AsaConfig, FreeLBConfig
from ag_jax.objectives.adversarial.freelb import FreeLB
from ag_jax.objectives.adversarial.self_attention import LearntMasks, adversarial_self_attention
from tests.cases import some
from tests.objectives import perturbed

BEGIN = 5


def freelb(begin):
    objective, batch = perturbed.CASES["classification"]
    return (
        FreeLB(objective, FreeLBConfig(init_magnitude=1.0, begin_step=begin), perturbed.SMALL.embedding_width),
        batch,
        {},
    )


def asa(begin):
    objective, batch = perturbed.CASES["classification"]
    attacker = LearntMasks(AsaConfig(delay_steps=begin), objective.model.config)
    adversary = {"adversary": nn.unbox(attacker.init(jax.random.key(1)))}
    return adversarial_self_attention(objective, attacker), batch, adversary


@pytest.mark.parametrize(
    ("attack", "metric", "microbatches"),
    some(
        [(freelb, "delta_norm", 1), (freelb, "delta_norm", 2), (asa, "masked", 1), (asa, "masked", 2)],
        (asa, "masked", 1),
    ),
)
def test_a_step_before_the_attack_begins(attack, metric, microbatches):
    delayed, batch, own = attack(BEGIN)
    params = perturbed.params_of(delayed.inner, batch) | own
    at_once = attack(0)[0]
    for step in (BEGIN - 1, BEGIN):
        loss, metrics, gradient = perturbed.trained(delayed, params, batch, microbatches, jnp.int32(step))
        expected = perturbed.trained(
            delayed.inner if step < BEGIN else at_once, params, batch, microbatches, jnp.int32(step)
        )
        assert loss == expected[0]
        jax.tree.map(np.testing.assert_array_equal, gradient, expected[2])
        for name, (total, weight) in metrics.items():
            wanted = expected[1].get(name, (0 * total, 0 * weight))  # a weight of 0 stands for no measurement
            jax.tree.map(np.testing.assert_array_equal, (total, weight), wanted)
        assert np.any(metrics[metric][1]) == (step == BEGIN)


@pytest.mark.parametrize("attack", some([freelb, asa], freelb))
def test_only_one_of_both_is_computed(attack):
    """The compiled step chooses between two branches, and has no choice if the attack begins at once."""
    for begin in (0, BEGIN):
        objective, batch, own = attack(begin)
        params = perturbed.params_of(objective.inner, batch) | own
        text = str(jax.make_jaxpr(lambda *given, of=objective: perturbed.trained(of, *given))(params, batch))
        assert (" cond[" in text) == bool(begin)
